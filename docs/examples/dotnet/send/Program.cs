using System.Text;
using RabbitMQ.Client;

var factory = new ConnectionFactory { Uri = new Uri("amqp://guest:guest@127.0.0.1:5672/%2F") };
await using var connection = await factory.CreateConnectionAsync();
await using var channel = await connection.CreateChannelAsync(new CreateChannelOptions(
    publisherConfirmationsEnabled: true, publisherConfirmationTrackingEnabled: true));
await channel.QueueDeclareAsync("hello", durable: true, exclusive: false, autoDelete: false);

// Returns when a majority has it on disk, and throws a PublishException if it was refused.
await channel.BasicPublishAsync("", "hello", Encoding.UTF8.GetBytes("Hello, Quorate!"));
Console.WriteLine("sent and confirmed");
