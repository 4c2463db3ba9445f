// amqplib on Node.js.
'use strict';
const assert = require('node:assert/strict');
const { once } = require('node:events');
const { setTimeout: sleep } = require('node:timers/promises');
const { promisify } = require('node:util');
const amqp = require('amqplib');
const {
  WAIT_MS_MAX,
  RECONNECT_MS_MAX,
  BEFORE_KILL,
  AFTER_KILL,
  given,
  name,
  ask,
  until,
  run,
} = require('./protocol.js');

async function connected(url, work) {
  const connection = await amqp.connect(url, { timeout: 10_000 });
  // Without a listener an error ends the process.
  connection.on('error', () => {});
  try {
    return await work(connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

function withQueue(what, options, work) {
  return connected(given.urls[0], async (connection) => {
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue(name(what), { durable: true, ...options });
    try {
      return await work(channel, queue, connection);
    } finally {
      const other = await connection.createChannel();
      await other.deleteQueue(queue);
    }
  });
}

async function publish(channel, queue, body, options = {}) {
  channel.sendToQueue(queue, Buffer.from(body), options);
  await channel.waitForConfirms();
}

const steps = {
  confirms: () =>
    withQueue('confirms', {}, async (channel, queue) => {
      for (let n = 0; n < 200; n++) channel.sendToQueue(queue, Buffer.from(`${n}`));
      await channel.waitForConfirms();
      assert.equal((await channel.checkQueue(queue)).messageCount, 200);
      return '200 confirmed';
    }),

  acks: () =>
    withQueue('acks', {}, async (channel, queue) => {
      for (let n = 0; n < 60; n++) channel.sendToQueue(queue, Buffer.from(`${n}`));
      await channel.waitForConfirms();
      await channel.prefetch(10);
      const held = [];
      await channel.consume(queue, (message) => held.push(message));
      await until(() => held.length >= 10, 'ten deliveries');
      await sleep(200);
      assert.equal(held.length, 10);
      for (let n = 0; n < 60; n++) {
        await until(() => held.length > n, `delivery ${n}`);
        channel.ack(held[n]);
      }
      const bodies = held.map((message) => message.content.toString());
      assert.deepEqual(bodies, [...Array(60).keys()].map(String));
      return '60 in order, never more than 10 held';
    }),

  'channel-error': () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.createChannel();
      let told;
      channel.on('error', (error) => (told = error));
      await assert.rejects(channel.checkQueue(name('missing')), /404/);
      assert.equal(told.code, 404);
      const again = await connection.createChannel();
      await again.assertQueue(name('here'), { exclusive: true });
      return told.message;
    }),

  topic: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.createConfirmChannel();
      await channel.assertExchange(name('topic'), 'topic', { autoDelete: true });
      const { queue } = await channel.assertQueue('', { exclusive: true });
      await channel.bindQueue(queue, name('topic'), '*.b.#');
      for (const key of ['a.b', 'a.c', 'x.b.y.z', 'b'])
        channel.publish(name('topic'), key, Buffer.from(key));
      await channel.waitForConfirms();
      const found = [];
      for (let got; (got = await channel.get(queue, { noAck: true })); )
        found.push(got.content.toString());
      assert.deepEqual(found, ['a.b', 'x.b.y.z']);
    }),

  rpc: () =>
    connected(given.urls[0], async (connection) => {
      const [server, client] = [await connection.createChannel(), await connection.createChannel()];
      const { queue } = await server.assertQueue(name('rpc'), { autoDelete: true, durable: false });
      await server.consume(queue, (message) => {
        const { replyTo, correlationId } = message.properties;
        const answer = message.content.toString().toUpperCase();
        server.sendToQueue(replyTo, Buffer.from(answer), { correlationId });
        server.ack(message);
      });
      const heard = {};
      const replyTo = 'amq.rabbitmq.reply-to';
      const take = (m) => (heard[m.properties.correlationId] = m.content.toString());
      await client.consume(replyTo, take, { noAck: true });
      for (let n = 0; n < 10; n++)
        client.sendToQueue(queue, Buffer.from(`ask ${n}`), { replyTo, correlationId: `${n}` });
      await until(() => Object.keys(heard).length === 10, 'ten answers');
      assert.equal(heard[7], 'ASK 7');
      return '10 answers through amq.rabbitmq.reply-to';
    }),

  exclusive: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.createChannel();
      const { queue } = await channel.assertQueue('', { exclusive: true });
      assert.match(queue, /^amq\.gen-/);
      await connected(given.urls[0], async (other) => {
        const stranger = await other.createChannel();
        stranger.on('error', () => {});
        await assert.rejects(stranger.checkQueue(queue), /405/);
      });
    }),

  mandatory: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.createConfirmChannel();
      const returned = [];
      channel.on('return', (message) => returned.push(message));
      await publish(channel, name('nowhere'), 'back', { mandatory: true });
      // The return comes before the confirm.
      assert.equal(returned.length, 1);
      assert.equal(returned[0].fields.replyCode, 312);
      return returned[0].fields.replyText;
    }),

  get: () =>
    withQueue('get', {}, async (channel, queue) => {
      assert.equal(await channel.get(queue), false);
      await publish(channel, queue, 'one');
      const message = await channel.get(queue);
      assert.equal(message.content.toString(), 'one');
      channel.ack(message);
    }),

  headers: () =>
    withQueue('headers', {}, async (channel, queue) => {
      const headers = {
        true: true,
        byte: -7,
        short: 300,
        int: -70_000,
        long: 2 ** 40,
        double: 0.1,
        float: { '!': 'float', value: 0.5 },
        text: 'zażółć ☃',
        bytes: Buffer.from([0, 255]),
        time: { '!': 'timestamp', value: 1700000000 },
        decimal: { '!': 'decimal', value: { digits: 31415, places: 4 } },
        table: { nested: { deep: [1, 'two', null] } },
        list: [false, 2 ** 40, { in: 'list' }],
        void: null,
      };
      const body = Buffer.from([...Array(256).keys()]);
      const properties = { headers, priority: 5, messageId: 'm', expiration: '600000', type: 't' };
      await publish(channel, queue, body, { ...properties, timestamp: 1700000000, userId: 'guest' });
      const message = await channel.get(queue, { noAck: true });
      assert.deepEqual(message.content, body);
      assert.deepEqual({ ...message.properties.headers }, { ...headers, float: 0.5 });
      assert.equal(message.properties.priority, 5);
      assert.equal(message.properties.timestamp, 1700000000);
      return `${Object.keys(headers).length} headers`;
    }),

  cancel: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.createChannel();
      const { queue } = await channel.assertQueue(name('cancel'), { durable: true });
      const heard = [];
      await channel.consume(queue, (message) => heard.push(message));
      await connected(given.urls[0], async (other) =>
        (await other.createChannel()).deleteQueue(queue),
      );
      await until(() => heard.length, 'cancel notification');
      assert.deepEqual(heard, [null]);
    }),

  large: () =>
    withQueue('large', {}, async (channel, queue) => {
      const body = Buffer.alloc(1 << 20, 'quorate');
      await publish(channel, queue, body);
      assert.deepEqual((await channel.get(queue, { noAck: true })).content, body);
      return `${body.length} bytes`;
    }),

  heartbeat: () =>
    connected(`${given.urls[0]}?heartbeat=1`, async (connection) => {
      await sleep(4000);
      await (await connection.createChannel()).assertQueue('', { exclusive: true });
      return 'idle for 4 s at 1 s';
    }),

  requeue: () =>
    withQueue('requeue', {}, async (channel, queue) => {
      await publish(channel, queue, 'again');
      const first = await channel.get(queue);
      assert.equal(first.fields.redelivered, false);
      channel.nack(first);
      const second = await channel.get(queue);
      assert.equal(second.fields.redelivered, true);
      channel.reject(second, false);
      assert.equal(await channel.get(queue), false);
    }),

  'dead-letter': () =>
    withQueue('dead', {}, async (channel, dead) => {
      const options = {
        messageTtl: 50,
        deadLetterExchange: '',
        deadLetterRoutingKey: dead,
      };
      return withQueue('short', options, async (other, short) => {
        await publish(other, short, 'late');
        let got;
        await until(async () => (got = await channel.get(dead, { noAck: true })), 'dead letter');
        const [death] = got.properties.headers['x-death'];
        assert.equal(death.reason, 'expired');
        assert.equal(death.queue, short);
        assert.equal(death.count, 1);
        return 'expired, with x-death';
      });
    }),

  failover,

  // Its callback comes when the broker has read all that was under way, and closed.
  close: async () => {
    const callbacks = require('amqplib/callback_api');
    const connect = (url, done) => callbacks.connect(url, { timeout: 10_000 }, done);
    const connection = await promisify(connect)(given.urls[0]);
    const errors = [];
    connection.on('error', (error) => errors.push(error));
    const channel = await promisify((done) => connection.createChannel(done))();
    const queue = await promisify((done) => channel.assertQueue('', { exclusive: true }, done))();
    const other = await promisify((done) => connection.createChannel(done))();
    for (let n = 0; n < 500; n++) channel.sendToQueue(queue.queue, Buffer.from(`${n}`));
    await within(promisify((done) => other.close(done))(), 'the close of a channel');
    for (let n = 0; n < 500; n++) channel.sendToQueue(queue.queue, Buffer.from(`${n}`));
    const ended = once(connection, 'close');
    await within(promisify((done) => connection.close(done))(), 'the callback of close');
    await within(ended, 'the event close');
    assert.deepEqual(errors, []);
    return 'called back with 1,000 publishes in flight';
  },
};

async function within(promise, what) {
  const late = sleep(WAIT_MS_MAX, null, { ref: false });
  await Promise.race([promise, late.then(() => assert.fail(`${what} did not come`))]);
}

// A consumer at a node that survives takes all the while; the publisher reconnects by itself.
async function failover() {
  const queue = name('failover');
  const options = { durable: true, arguments: { 'x-queue-type': 'quorum' } };
  await connected(given.urls[0], async (connection) =>
    (await connection.createChannel()).assertQueue(queue, options),
  );
  const { urls } = await ask('leader', queue);
  const seen = [];
  return connected(urls[1], async (survivor) => {
    const consumer = await survivor.createChannel();
    await consumer.prefetch(20);
    await consumer.consume(queue, (message) => {
      if (message === null) return; // the queue is deleted in the end
      seen.push(message.content.toString());
      consumer.ack(message);
    });
    const deadline = Date.now() + RECONNECT_MS_MAX;
    const confirmed = [];
    let [reconnects, after, killing, dead] = [0, 0, null, false];
    while (after < AFTER_KILL) {
      assert.ok(Date.now() < deadline, `${confirmed.length} confirmed, and not done in time`);
      try {
        await connected(urls[reconnects % urls.length], async (connection) => {
          const channel = await connection.createConfirmChannel();
          channel.on('error', () => {});
          while (after < AFTER_KILL) {
            await publish(channel, queue, `${confirmed.length}`, { persistent: true });
            confirmed.push(`${confirmed.length}`);
            if (dead) after++;
            if (!killing && confirmed.length === BEFORE_KILL)
              killing = ask('kill', queue).then(() => (dead = true));
          }
        });
      } catch {
        reconnects++;
        await sleep(100);
      }
    }
    await until(() => confirmed.every((body) => seen.includes(body)), 'all that is confirmed');
    await consumer.deleteQueue(queue);
    const twice = seen.length - new Set(seen).size;
    return `${confirmed.length} confirmed, ${reconnects} reconnects, ${twice} twice`;
  });
}

run(steps);
