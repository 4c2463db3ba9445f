import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import java.util.ArrayList;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;

/** Streams, as queues of that type. */
final class Streams {
    private static final Map<String, Object> STREAM = Map.of("x-queue-type", "stream");

    /** What a consumer gets, as "offset body". */
    private static List<String> reading(Connection connection, String queue, Object offset)
            throws Exception {
        Channel channel = connection.createChannel();
        channel.basicQos(20);
        List<String> found = new CopyOnWriteArrayList<>();
        channel.basicConsume(queue, false, Map.of("x-stream-offset", offset), (tag, delivery) -> {
            long at = (Long) delivery.getProperties().getHeaders().get("x-stream-offset");
            found.add(at + " " + new String(delivery.getBody()));
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});
        return found;
    }

    private static List<String> range(int first, int last) {
        List<String> wanted = new ArrayList<>();
        for (int n = first; n <= last; n++) {
            wanted.add(n + " " + n);
        }
        return wanted;
    }

    static String read() throws Exception {
        int[] readers = {0};
        Amqp.withQueue("streams", STREAM, (channel, queue) -> {
            Date moment = null;
            for (int n = 0; n < 20; n++) {
                if (n == 10) {
                    // A timestamp has seconds.
                    Thread.sleep(1100);
                    moment = new Date();
                }
                Amqp.publish(channel, queue, "" + n);
            }
            Map<Object, List<String>> wanted = new LinkedHashMap<>();
            wanted.put("first", range(0, 20));
            wanted.put("last", range(19, 20));
            wanted.put("next", range(20, 20));
            wanted.put(15, range(15, 20));
            wanted.put(moment, range(10, 20));
            try (Connection connection = Amqp.connect()) {
                Map<Object, List<String>> found = new LinkedHashMap<>();
                for (Object offset : wanted.keySet()) {
                    found.put(offset, reading(connection, queue, offset));
                }
                Amqp.publish(channel, queue, "20");
                for (Object offset : wanted.keySet()) {
                    List<String> expected = wanted.get(offset);
                    Protocol.until(() -> found.get(offset).size() >= expected.size(),
                            "messages from " + offset);
                    Protocol.equal(List.copyOf(found.get(offset)), expected, "from " + offset);
                }
            }
            readers[0] = wanted.size();
        });
        return readers[0] + " readers, each from its own place";
    }

    /** Readers at nodes that survive, while the publisher's is killed. */
    static String readKilled() throws Exception {
        String queue = Protocol.name("streams-kill");
        try (Connection connection = Amqp.connect()) {
            connection.createChannel().queueDeclare(queue, true, false, false, STREAM);
        }
        List<?> urls = (List<?>) Protocol.ask("leader", queue).get("urls");
        try (Connection second = Amqp.factory((String) urls.get(1)).newConnection();
                Connection third = Amqp.factory((String) urls.get(2)).newConnection()) {
            List<List<String>> readers =
                    List.of(reading(second, queue, "first"), reading(third, queue, "first"));
            int confirmed = publish(second.createChannel(), queue);
            for (List<String> found : readers) {
                Protocol.until(() -> found.size() >= confirmed, "all that is confirmed");
                Protocol.equal(List.copyOf(found), range(0, confirmed - 1), "messages");
            }
            second.createChannel().queueDelete(queue);
            return confirmed + " confirmed; 2 readers: in order, no gap, none again";
        }
    }

    private static int publish(Channel channel, String queue) throws Exception {
        channel.confirmSelect();
        AtomicBoolean dead = new AtomicBoolean();
        int confirmed = 0;
        for (int after = 0; after < Protocol.AFTER_KILL; after += dead.get() ? 1 : 0) {
            channel.basicPublish("", queue, null, ("" + confirmed).getBytes());
            channel.waitForConfirmsOrDie(Protocol.RECONNECT_MS_MAX);
            confirmed++;
            if (confirmed == Protocol.BEFORE_KILL) {
                Thread killer = new Thread(() -> {
                    try {
                        Protocol.ask("kill", queue);
                        dead.set(true);
                    } catch (Exception gone) {
                        // The harness went away.
                    }
                });
                killer.setDaemon(true);
                killer.start();
            }
        }
        return confirmed;
    }
}
