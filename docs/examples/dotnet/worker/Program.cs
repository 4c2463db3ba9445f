using System.Text;
using RabbitMQ.Client;
using RabbitMQ.Client.Events;

var factory = new ConnectionFactory { Uri = new Uri("amqp://guest:guest@127.0.0.1:5672/%2F") };
await using var connection = await factory.CreateConnectionAsync();
await using var channel = await connection.CreateChannelAsync();
await channel.QueueDeclareAsync("tasks", durable: true, exclusive: false, autoDelete: false);
// One task at a time: the next goes to whoever is free.
await channel.BasicQosAsync(prefetchSize: 0, prefetchCount: 1, global: false);

var consumer = new AsyncEventingBasicConsumer(channel);
consumer.ReceivedAsync += async (_, delivery) =>
{
    var task = Encoding.UTF8.GetString(delivery.Body.Span); // the bytes are ours until the first await
    await Task.Delay(200); // the work
    Console.WriteLine($"done: {task}");
    await channel.BasicAckAsync(delivery.DeliveryTag, multiple: false); // only now may the queue forget it
};
Console.WriteLine("ready");
await channel.BasicConsumeAsync("tasks", autoAck: false, consumer);
await Task.Delay(Timeout.Infinite);
