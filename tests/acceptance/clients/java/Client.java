import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import com.rabbitmq.client.impl.LongStringHelper;
import java.io.IOException;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;

/** RabbitMQ's Java client. */
public final class Client {
    public static void main(String[] arguments) {
        Map<String, Callable<String>> steps = new HashMap<>();
        steps.put("confirms", Client::confirms);
        steps.put("acks", Client::acks);
        steps.put("channel-error", Client::channelError);
        steps.put("topic", Client::topic);
        steps.put("rpc", Client::rpc);
        steps.put("exclusive", Client::exclusive);
        steps.put("mandatory", Client::mandatory);
        steps.put("get", Client::get);
        steps.put("headers", Client::headers);
        steps.put("cancel", Client::cancel);
        steps.put("tx", Client::tx);
        steps.put("large", Client::large);
        steps.put("heartbeat", Client::heartbeat);
        steps.put("requeue", Client::requeue);
        steps.put("dead-letter", Client::deadLetter);
        steps.put("failover", Failover::run);
        steps.put("streams", Streams::read);
        steps.put("streams+kill", Streams::readKilled);
        Protocol.run(arguments[0], steps);
        // Connections that recover have threads.
        System.exit(0);
    }

    private static String confirms() throws Exception {
        Amqp.withQueue("confirms", null, (channel, queue) -> {
            for (int n = 0; n < 200; n++) {
                channel.basicPublish("", queue, null, ("" + n).getBytes());
            }
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            Protocol.equal(channel.messageCount(queue), 200L, "messages in the queue");
        });
        return "200 confirmed";
    }

    private static String acks() throws Exception {
        Amqp.withQueue("acks", null, (channel, queue) -> {
            for (int n = 0; n < 60; n++) {
                channel.basicPublish("", queue, null, ("" + n).getBytes());
            }
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            channel.basicQos(10);
            List<Delivery> held = new CopyOnWriteArrayList<>();
            channel.basicConsume(queue, false, (tag, delivery) -> held.add(delivery), tag -> {});
            Protocol.until(() -> held.size() >= 10, "ten deliveries");
            Thread.sleep(200);
            Protocol.equal(held.size(), 10, "deliveries while none is acknowledged");
            for (int n = 0; n < 60; n++) {
                int count = n;
                Protocol.until(() -> held.size() > count, "delivery " + n);
                Protocol.equal(new String(held.get(n).getBody()), "" + n, "body");
                channel.basicAck(held.get(n).getEnvelope().getDeliveryTag(), false);
            }
        });
        return "60 in order, never more than 10 held";
    }

    /** The code that the broker closed the channel with. */
    private static int refusal(Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (IOException | AlreadyClosedException error) {
            Throwable cause = error instanceof IOException ? error.getCause() : error;
            if (((ShutdownSignalException) cause).getReason()
                    instanceof com.rabbitmq.client.AMQP.Channel.Close close) {
                return close.getReplyCode();
            }
            throw error;
        }
        throw new AssertionError("it was not refused");
    }

    private static String channelError() throws Exception {
        try (Connection connection = Amqp.connect()) {
            Channel channel = connection.createChannel();
            String missing = Protocol.name("missing");
            Protocol.equal(refusal(() -> channel.queueDeclarePassive(missing)), 404, "code");
            Protocol.equal(channel.isOpen(), false, "the channel is open");
            Channel again = connection.createChannel();
            again.queueDeclare(Protocol.name("here"), false, true, false, null);
            return channel.getCloseReason().getReason().protocolMethodName() + " 404";
        }
    }

    private static String topic() throws Exception {
        Amqp.withQueue("topic", null, (channel, queue) -> {
            String exchange = Protocol.name("topic");
            channel.exchangeDeclare(exchange, "topic", false, true, null);
            channel.queueBind(queue, exchange, "*.b.#");
            for (String key : List.of("a.b", "a.c", "x.b.y.z", "b")) {
                channel.basicPublish(exchange, key, null, key.getBytes());
            }
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            List<String> found = new ArrayList<>();
            for (GetResponse got; (got = channel.basicGet(queue, true)) != null; ) {
                found.add(new String(got.getBody()));
            }
            Protocol.equal(found, List.of("a.b", "x.b.y.z"), "keys that match");
        });
        return "";
    }

    private static String rpc() throws Exception {
        try (Connection connection = Amqp.connect()) {
            String queue = Protocol.name("rpc");
            Channel serving = connection.createChannel();
            serving.queueDeclare(queue, false, false, true, null);
            RpcServer server = new RpcServer(serving, queue) {
                @Override
                public byte[] handleCall(byte[] request, BasicProperties answer) {
                    return new String(request).toUpperCase().getBytes();
                }
            };
            Thread thread = new Thread(() -> {
                try {
                    server.mainloop();
                } catch (IOException | ShutdownSignalException closed) {
                    // The end of the test.
                }
            });
            thread.setDaemon(true);
            thread.start();
            RpcClientParams params = new RpcClientParams().channel(connection.createChannel())
                    .exchange("").routingKey(queue).timeout((int) Protocol.WAIT_MS_MAX);
            RpcClient client = new RpcClient(params);
            for (int n = 0; n < 10; n++) {
                Protocol.equal(client.stringCall("ask " + n), "ASK " + n, "answer");
            }
            client.close();
            server.close();
        }
        return "10 calls of RpcClient, which uses direct reply-to";
    }

    private static String exclusive() throws Exception {
        try (Connection connection = Amqp.connect(); Connection other = Amqp.connect()) {
            String queue = connection.createChannel().queueDeclare().getQueue();
            Protocol.equal(queue.startsWith("amq.gen-"), true, "the server named it");
            Channel stranger = other.createChannel();
            int code = refusal(() -> stranger.queueDeclarePassive(queue));
            Protocol.equal(code, 405, "code for another connection");
        }
        return "";
    }

    private static String mandatory() throws Exception {
        try (Connection connection = Amqp.connect()) {
            Channel channel = connection.createChannel();
            List<String> order = new CopyOnWriteArrayList<>();
            channel.addReturnListener(back -> order.add("return " + back.getReplyCode()));
            channel.addConfirmListener((tag, several) -> order.add("ack"), (tag, several) -> {});
            channel.confirmSelect();
            channel.basicPublish("", Protocol.name("nowhere"), true, null, new byte[] {1});
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            Protocol.until(() -> order.size() == 2, "return and confirm");
            Protocol.equal(order, List.of("return 312", "ack"), "order");
        }
        return "the return, then the confirm";
    }

    private static String get() throws Exception {
        Amqp.withQueue("get", null, (channel, queue) -> {
            Protocol.equal(channel.basicGet(queue, false), null, "the empty queue");
            Amqp.publish(channel, queue, "one");
            GetResponse got = channel.basicGet(queue, false);
            Protocol.equal(new String(got.getBody()), "one", "body");
            channel.basicAck(got.getEnvelope().getDeliveryTag(), false);
        });
        return "";
    }

    private static String headers() throws Exception {
        LongString two = LongStringHelper.asLongString("two");
        Map<String, Object> deep = new HashMap<>();
        List<Object> list = new ArrayList<>(List.of(1, two));
        list.add(null);
        deep.put("deep", list);
        Map<String, Object> sent = new LinkedHashMap<>();
        sent.put("true", true);
        sent.put("byte", (byte) -7);
        sent.put("short", (short) -300);
        sent.put("int", -70_000);
        sent.put("long", 1L << 62);
        sent.put("float", 0.1f);
        sent.put("double", 0.1);
        sent.put("decimal", new BigDecimal("3.1415"));
        sent.put("text", LongStringHelper.asLongString("zażółć ☃"));
        sent.put("bytes", new byte[] {0, -1});
        sent.put("time", new Date(1_700_000_000_000L));
        sent.put("table", deep);
        sent.put("list", List.of(false, 1L << 40, two));
        sent.put("void", null);
        BasicProperties properties = new BasicProperties("application/x-test", "none", sent, 2, 5,
                "c", "r", "600000", "m", new Date(1_700_000_000_000L), "t", "guest", "a", null);
        Amqp.withQueue("headers", null, (channel, queue) -> {
            channel.basicPublish("", queue, properties, new byte[] {0, 1, -1});
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            GetResponse got = channel.basicGet(queue, true);
            Map<String, Object> found = got.getProps().getHeaders();
            for (String key : sent.keySet()) {
                Protocol.equal(found.get(key), sent.get(key), "header " + key);
            }
            Protocol.equal(found.size(), sent.size(), "number of headers");
            BasicProperties back = got.getProps().builder().headers(null).build();
            BasicProperties wanted = properties.builder().headers(null).build();
            Protocol.equal(back, wanted, "properties");
            Protocol.equal(got.getBody(), new byte[] {0, 1, -1}, "body");
        });
        return sent.size() + " headers";
    }

    private static String cancel() throws Exception {
        try (Connection connection = Amqp.connect()) {
            Channel channel = connection.createChannel();
            String queue = Protocol.name("cancel");
            channel.queueDeclare(queue, true, false, false, null);
            List<String> cancelled = new CopyOnWriteArrayList<>();
            channel.basicConsume(queue, false, "mine", (tag, delivery) -> {}, tag -> cancelled.add(tag));
            connection.createChannel().queueDelete(queue);
            Protocol.until(() -> cancelled.equals(List.of("mine")), "cancel notification");
        }
        return "";
    }

    private static String tx() throws Exception {
        Amqp.withQueue("tx", null, (other, queue) -> {
            try (Connection connection = Amqp.connect()) {
                Channel channel = connection.createChannel();
                channel.txSelect();
                channel.basicPublish("", queue, null, "dropped".getBytes());
                channel.txRollback();
                channel.basicPublish("", queue, null, "kept".getBytes());
                Protocol.equal(other.messageCount(queue), 0L, "messages before the commit");
                channel.txCommit();
                Protocol.equal(other.messageCount(queue), 1L, "messages after the commit");
            }
        });
        return "";
    }

    private static String large() throws Exception {
        byte[] body = "quorate!".repeat(1 << 17).getBytes();
        Amqp.withQueue("large", null, (channel, queue) -> {
            channel.basicPublish("", queue, null, body);
            channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
            Protocol.equal(channel.basicGet(queue, true).getBody(), body, "body");
        });
        return body.length + " bytes";
    }

    private static String heartbeat() throws Exception {
        ConnectionFactory factory = Amqp.factory(Protocol.given.urls.get(0));
        factory.setRequestedHeartbeat(1);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection()) {
            Thread.sleep(4000);
            connection.createChannel().queueDeclare();
        }
        return "idle for 4 s at 1 s";
    }

    private static String requeue() throws Exception {
        Amqp.withQueue("requeue", null, (channel, queue) -> {
            Amqp.publish(channel, queue, "again");
            GetResponse first = channel.basicGet(queue, false);
            Protocol.equal(first.getEnvelope().isRedeliver(), false, "redelivered at first");
            channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
            GetResponse second = channel.basicGet(queue, false);
            Protocol.equal(second.getEnvelope().isRedeliver(), true, "redelivered after nack");
            channel.basicReject(second.getEnvelope().getDeliveryTag(), false);
            Protocol.equal(channel.basicGet(queue, false), null, "the queue after reject");
        });
        return "";
    }

    private static String deadLetter() throws Exception {
        Amqp.withQueue("dead", null, (channel, dead) -> {
            Map<String, Object> arguments = Map.of("x-message-ttl", 50,
                    "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead);
            Amqp.withQueue("short", arguments, (other, queue) -> {
                Amqp.publish(other, queue, "late");
                List<Delivery> got = new CopyOnWriteArrayList<>();
                channel.basicConsume(dead, true, (tag, letter) -> got.add(letter), tag -> {});
                Protocol.until(() -> !got.isEmpty(), "dead letter");
                List<?> deaths = (List<?>) got.get(0).getProperties().getHeaders().get("x-death");
                Map<?, ?> death = (Map<?, ?>) deaths.get(0);
                Protocol.equal(death.get("reason").toString(), "expired", "reason");
                Protocol.equal(death.get("queue").toString(), queue, "queue");
                Protocol.equal(death.get("count"), 1L, "count");
            });
        });
        return "expired, with x-death";
    }
}
