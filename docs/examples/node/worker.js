const { setTimeout: sleep } = require('node:timers/promises');
const amqp = require('amqplib');

async function main() {
  const connection = await amqp.connect('amqp://guest:guest@127.0.0.1:5672/%2F');
  const channel = await connection.createChannel();
  await channel.assertQueue('tasks', { durable: true });
  await channel.prefetch(1); // one task at a time: the next goes to whoever is free
  console.log('ready');
  await channel.consume('tasks', async (message) => {
    await sleep(200); // the work
    console.log('done:', message.content.toString());
    channel.ack(message); // only now may the queue forget it
  });
}

main();
