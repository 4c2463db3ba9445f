const amqp = require('amqplib');

async function main() {
  const connection = await amqp.connect('amqp://guest:guest@127.0.0.1:5672/%2F');
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue('tasks', { durable: true });
  for (let number = 1; number <= 10; number++) {
    channel.sendToQueue('tasks', Buffer.from(`task ${number}`));
  }
  await channel.waitForConfirms(); // for all ten at once
  console.log('10 tasks are stored');
  await connection.close();
}

main();
