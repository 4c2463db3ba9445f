import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;

public class Send {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://guest:guest@127.0.0.1:5672/%2F");
        try (Connection connection = factory.newConnection();
                Channel channel = connection.createChannel()) {
            channel.queueDeclare("hello", true, false, false, null);
            channel.confirmSelect();
            channel.basicPublish("", "hello", null, "Hello, Quorate!".getBytes());
            channel.waitForConfirmsOrDie(10_000); // a majority has it on disk
            System.out.println("sent and confirmed");
        }
    }
}
