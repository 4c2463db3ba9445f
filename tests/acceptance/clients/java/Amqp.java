import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.util.Map;

/** Connections, and queues that are deleted afterwards. */
final class Amqp {
    interface Work {
        void on(Channel channel, String queue) throws Exception;
    }

    static ConnectionFactory factory(String url) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setNetworkRecoveryInterval(200);
        return factory;
    }

    static Connection connect() throws Exception {
        return factory(Protocol.given.urls.get(0)).newConnection();
    }

    /** A channel in confirm mode, and a queue that is deleted afterwards. */
    static void withQueue(String what, Map<String, Object> arguments, Work work) throws Exception {
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            String queue =
                    channel.queueDeclare(Protocol.name(what), true, false, false, arguments).getQueue();
            try {
                channel.confirmSelect();
                work.on(channel, queue);
            } finally {
                connection.createChannel().queueDelete(queue);
            }
        }
    }

    static void publish(Channel channel, String queue, String body) throws Exception {
        channel.basicPublish("", queue, null, body.getBytes());
        channel.waitForConfirmsOrDie(Protocol.WAIT_MS_MAX);
    }
}
