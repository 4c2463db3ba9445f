import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;

public class Worker {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://guest:guest@127.0.0.1:5672/%2F");
        Connection connection = factory.newConnection();
        Channel channel = connection.createChannel();
        channel.queueDeclare("tasks", true, false, false, null);
        channel.basicQos(1); // one task at a time: the next goes to whoever is free

        System.out.println("ready");
        channel.basicConsume("tasks", false, (tag, delivery) -> {
            work();
            System.out.println("done: " + new String(delivery.getBody()));
            // Only now may the queue forget it.
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});
    }

    private static void work() {
        try {
            Thread.sleep(200);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
