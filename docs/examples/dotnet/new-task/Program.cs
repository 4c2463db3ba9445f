using System.Text;
using RabbitMQ.Client;

var factory = new ConnectionFactory { Uri = new Uri("amqp://guest:guest@127.0.0.1:5672/%2F") };
await using var connection = await factory.CreateConnectionAsync();
await using var channel = await connection.CreateChannelAsync(new CreateChannelOptions(
    publisherConfirmationsEnabled: true, publisherConfirmationTrackingEnabled: true));
await channel.QueueDeclareAsync("tasks", durable: true, exclusive: false, autoDelete: false);

var confirms = new List<Task>();
for (var number = 1; number <= 10; number++)
{
    var body = Encoding.UTF8.GetBytes($"task {number}");
    confirms.Add(channel.BasicPublishAsync("", "tasks", body).AsTask());
}
await Task.WhenAll(confirms); // for all ten at once
Console.WriteLine("10 tasks are stored");
