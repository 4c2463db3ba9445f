import com.rabbitmq.client.Address;
import com.rabbitmq.client.AddressResolver;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The client's automatic recovery: its publisher begins at the leader, which is killed. The
 * consumer is declared on the same connection, so recovery brings it back too.
 */
final class Failover {
    static String run() throws Exception {
        String queue = Protocol.name("failover");
        try (Connection connection = Amqp.connect()) {
            Map<String, Object> arguments = Map.of("x-queue-type", "quorum");
            connection.createChannel().queueDeclare(queue, true, false, false, arguments);
        }
        List<Address> addresses = new ArrayList<>();
        for (Object url : (List<?>) Protocol.ask("leader", queue).get("urls")) {
            URI uri = URI.create((String) url);
            addresses.add(new Address(uri.getHost(), uri.getPort()));
        }
        ConnectionFactory factory = Amqp.factory(Protocol.given.urls.get(0));
        AddressResolver inOrder = new AddressResolver() {
            @Override
            public List<Address> getAddresses() {
                return addresses;
            }

            @Override
            public List<Address> maybeShuffle(List<Address> given) {
                // The leader's comes first.
                return given;
            }
        };
        try (Connection connection = factory.newConnection(inOrder)) {
            return publish(connection, queue);
        }
    }

    private static String publish(Connection connection, String queue) throws Exception {
        AtomicInteger recoveries = new AtomicInteger();
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recovered) {
                recoveries.incrementAndGet();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recovering) {}
        });
        Channel consumer = connection.createChannel();
        consumer.basicQos(20);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger twice = new AtomicInteger();
        consumer.basicConsume(queue, false, (tag, delivery) -> {
            if (!seen.add(new String(delivery.getBody()))) {
                twice.incrementAndGet();
            }
            consumer.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});

        Channel channel = connection.createChannel();
        channel.confirmSelect();
        AtomicBoolean dead = new AtomicBoolean();
        long deadline = System.currentTimeMillis() + Protocol.RECONNECT_MS_MAX;
        int confirmed = 0;
        int after = 0;
        while (after < Protocol.AFTER_KILL) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError(confirmed + " confirmed, and not done in time");
            }
            try {
                channel.basicPublish("", queue, MessageProperties.MINIMAL_PERSISTENT_BASIC,
                        ("" + confirmed).getBytes());
                if (!channel.waitForConfirms(Protocol.WAIT_MS_MAX)) {
                    continue; // refused while there is no leader
                }
            } catch (Exception lost) {
                // Until the client has recovered.
                Thread.sleep(100);
                continue;
            }
            confirmed++;
            after += dead.get() ? 1 : 0;
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
        int total = confirmed;
        Protocol.until(() -> seen.size() >= total, "all that is confirmed");
        channel.queueDelete(queue);
        return confirmed + " confirmed, " + recoveries + " recoveries, " + twice + " twice";
    }
}
