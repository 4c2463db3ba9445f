const amqp = require('amqplib');

async function main() {
  const connection = await amqp.connect('amqp://guest:guest@127.0.0.1:5672/%2F');
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue('hello', { durable: true });
  channel.sendToQueue('hello', Buffer.from('Hello, Quorate!'));
  await channel.waitForConfirms(); // a majority has it on disk
  console.log('sent and confirmed');
  await connection.close();
}

main();
