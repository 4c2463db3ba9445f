import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;

public class NewTask {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://guest:guest@127.0.0.1:5672/%2F");
        try (Connection connection = factory.newConnection();
                Channel channel = connection.createChannel()) {
            channel.queueDeclare("tasks", true, false, false, null);
            channel.confirmSelect();
            for (int number = 1; number <= 10; number++) {
                channel.basicPublish("", "tasks", null, ("task " + number).getBytes());
            }
            channel.waitForConfirmsOrDie(10_000); // for all ten at once
            System.out.println("10 tasks are stored");
        }
    }
}
