const amqp = require('amqplib');

async function main() {
  const connection = await amqp.connect('amqp://guest:guest@127.0.0.1:5672/%2F');
  const channel = await connection.createChannel();
  await channel.assertQueue('hello', { durable: true });
  console.log('waiting for messages');
  await channel.consume('hello', (message) => {
    console.log('received:', message.content.toString());
    channel.ack(message);
  });
}

main();
