using System.Text;
using RabbitMQ.Client;
using RabbitMQ.Client.Events;

var factory = new ConnectionFactory { Uri = new Uri("amqp://guest:guest@127.0.0.1:5672/%2F") };
await using var connection = await factory.CreateConnectionAsync();
await using var channel = await connection.CreateChannelAsync();
await channel.QueueDeclareAsync("hello", durable: true, exclusive: false, autoDelete: false);

var consumer = new AsyncEventingBasicConsumer(channel);
consumer.ReceivedAsync += async (_, delivery) =>
{
    Console.WriteLine($"received: {Encoding.UTF8.GetString(delivery.Body.Span)}");
    await channel.BasicAckAsync(delivery.DeliveryTag, multiple: false);
};
Console.WriteLine("waiting for messages");
await channel.BasicConsumeAsync("hello", autoAck: false, consumer);
await Task.Delay(Timeout.Infinite);
