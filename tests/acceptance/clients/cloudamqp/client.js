// @cloudamqp/amqp-client on Node.js.
'use strict';
const assert = require('node:assert/strict');
const { setTimeout: sleep } = require('node:timers/promises');
const { AMQPClient } = require('@cloudamqp/amqp-client');
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
} = require('../node/protocol.js');

const CONFIRM_MS_MAX = 30_000;

function within(promise, ms) {
  const late = sleep(ms, null, { ref: false }).then(() => Promise.reject(new Error('too late')));
  return Promise.race([promise, late]);
}

async function connected(url, work) {
  const client = new AMQPClient(url, undefined, null);
  client.onerror = () => {};
  const connection = await within(client.connect(), 10_000);
  try {
    return await work(connection);
  } finally {
    if (!connection.closed) await within(connection.close(), 10_000).catch(() => {});
  }
}

function withQueue(what, work, args = {}) {
  return connected(given.urls[0], async (connection) => {
    const channel = await connection.channel();
    await channel.confirmSelect();
    const queue = (await channel.queueDeclare(name(what), { durable: true }, args)).name;
    try {
      return await work(channel, queue);
    } finally {
      await (await connection.channel()).queueDelete(queue);
    }
  });
}

const publish = (channel, queue, body, properties = {}, mandatory = false) =>
  channel.basicPublish('', queue, body, properties, mandatory);

const steps = {
  confirms: () =>
    withQueue('confirms', async (channel, queue) => {
      const sent = [...Array(200).keys()].map((n) => publish(channel, queue, `${n}`));
      await Promise.all(sent);
      assert.equal((await channel.queueDeclare(queue, { passive: true })).messageCount, 200);
      return '200 confirmed';
    }),

  acks: () =>
    withQueue('acks', async (channel, queue) => {
      for (let n = 0; n < 60; n++) await publish(channel, queue, `${n}`);
      await channel.prefetch(10);
      const held = [];
      await channel.basicConsume(queue, { noAck: false }, (message) => void held.push(message));
      await until(() => held.length >= 10, 'ten deliveries');
      await sleep(200);
      assert.equal(held.length, 10);
      for (let n = 0; n < 60; n++) {
        await until(() => held.length > n, `delivery ${n}`);
        await held[n].ack();
      }
      assert.deepEqual(
        held.map((message) => message.bodyString()),
        [...Array(60).keys()].map(String),
      );
      return '60 in order, never more than 10 held';
    }),

  'channel-error': () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      let told;
      await assert.rejects(channel.queueDeclare(name('missing'), { passive: true }), (error) => {
        told = error.message;
        return /404|NOT_FOUND/.test(told);
      });
      await (await connection.channel()).queueDeclare(name('here'), { exclusive: true });
      return told;
    }),

  topic: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      await channel.confirmSelect();
      await channel.exchangeDeclare(name('topic'), 'topic', { autoDelete: true });
      const { name: queue } = await channel.queueDeclare('', { exclusive: true });
      await channel.queueBind(queue, name('topic'), '*.b.#');
      for (const key of ['a.b', 'a.c', 'x.b.y.z', 'b'])
        await channel.basicPublish(name('topic'), key, key);
      const found = [];
      for (let got; (got = await channel.basicGet(queue)); ) found.push(got.bodyString());
      assert.deepEqual(found, ['a.b', 'x.b.y.z']);
    }),

  rpc: () =>
    connected(given.urls[0], async (connection) => {
      const [server, client] = [await connection.channel(), await connection.channel()];
      const { name: queue } = await server.queueDeclare(name('rpc'), { autoDelete: true });
      await server.basicConsume(queue, { noAck: false }, async (message) => {
        const { replyTo, correlationId } = message.properties;
        await publish(server, replyTo, message.bodyString().toUpperCase(), { correlationId });
        await message.ack();
      });
      const heard = {};
      const replyTo = 'amq.rabbitmq.reply-to';
      await client.basicConsume(replyTo, { noAck: true }, (message) => {
        heard[message.properties.correlationId] = message.bodyString();
      });
      for (let n = 0; n < 10; n++)
        await publish(client, queue, `ask ${n}`, { replyTo, correlationId: `${n}` });
      await until(() => Object.keys(heard).length === 10, 'ten answers');
      assert.equal(heard[7], 'ASK 7');
      return '10 answers through amq.rabbitmq.reply-to';
    }),

  exclusive: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      const { name: queue } = await channel.queueDeclare('', { exclusive: true });
      assert.match(queue, /^amq\.gen-/);
      await connected(given.urls[0], async (other) => {
        const stranger = await other.channel();
        await assert.rejects(stranger.queueDeclare(queue, { passive: true }), /405|LOCKED/);
      });
    }),

  mandatory: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      await channel.confirmSelect();
      const returned = [];
      channel.onReturn = (message) => returned.push(message);
      await publish(channel, name('nowhere'), 'back', {}, true);
      // The return comes before the confirm.
      assert.equal(returned.length, 1);
      assert.equal(returned[0].replyCode, 312);
      return returned[0].replyText;
    }),

  get: () =>
    withQueue('get', async (channel, queue) => {
      assert.equal(await channel.basicGet(queue, { noAck: false }), null);
      await publish(channel, queue, 'one');
      const message = await channel.basicGet(queue, { noAck: false });
      assert.equal(message.bodyString(), 'one');
      await message.ack();
    }),

  headers: () =>
    withQueue('headers', async (channel, queue) => {
      const headers = {
        true: true,
        int: -70_000,
        long: 2 ** 40,
        double: 0.5, // it writes floats of 32 bits
        text: 'zażółć ☃',
        table: { nested: { deep: [1, 'two', null] } },
        list: [false, 2 ** 40, { in: 'list' }],
        time: new Date(1_700_000_000_000),
      };
      const body = new Uint8Array(256).map((_, n) => n);
      const about = { headers, priority: 5, messageId: 'm', type: 't', deliveryMode: 2 };
      await publish(channel, queue, body, about);
      const message = await channel.basicGet(queue);
      assert.deepEqual(new Uint8Array(message.body), body);
      assert.deepEqual(message.properties.headers, headers);
      assert.equal(message.properties.priority, 5);
      assert.equal(message.properties.messageId, 'm');
      return `${Object.keys(headers).length} headers`;
    }),

  cancel: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      const { name: queue } = await channel.queueDeclare(name('cancel'), { durable: true });
      const consumer = await channel.basicConsume(queue, { noAck: true }, () => {});
      await connected(given.urls[0], async (other) =>
        (await other.channel()).queueDelete(queue),
      );
      await assert.rejects(within(consumer.wait(), WAIT_MS_MAX), /cancel/i);
      assert.equal(channel.closed, false);
    }),

  tx: () =>
    withQueue('tx', async (other, queue) => {
      await connected(given.urls[0], async (connection) => {
        const channel = await connection.channel();
        await channel.txSelect();
        await publish(channel, queue, 'dropped');
        await channel.txRollback();
        await publish(channel, queue, 'kept');
        await channel.txCommit();
      });
      assert.equal((await other.queueDeclare(queue, { passive: true })).messageCount, 1);
    }),

  large: () =>
    withQueue('large', async (channel, queue) => {
      const body = Buffer.alloc(1 << 20, 'quorate');
      await publish(channel, queue, body);
      assert.deepEqual(Buffer.from((await channel.basicGet(queue)).body), body);
      return `${body.length} bytes`;
    }),

  // It closes after two intervals without a byte: a broker that sends one an interval is late.
  heartbeat: () =>
    connected(`${given.urls[0]}?heartbeat=1`, async (connection) => {
      await sleep(4000);
      assert.equal(connection.closed, false);
      await (await connection.channel()).queueDeclare('', { exclusive: true });
      return 'idle for 4 s at 1 s';
    }),

  requeue: () =>
    withQueue('requeue', async (channel, queue) => {
      await publish(channel, queue, 'again');
      const first = await channel.basicGet(queue, { noAck: false });
      assert.equal(first.redelivered, false);
      await first.nack(true);
      const second = await channel.basicGet(queue, { noAck: false });
      assert.equal(second.redelivered, true);
      await second.reject(false);
      assert.equal(await channel.basicGet(queue), null);
    }),

  'dead-letter': () =>
    withQueue('dead', async (channel, dead) => {
      const dying = {
        'x-message-ttl': 50,
        'x-dead-letter-exchange': '',
        'x-dead-letter-routing-key': dead,
      };
      const work = async (other, short) => {
        await publish(other, short, 'late');
        let got;
        await until(async () => (got = await channel.basicGet(dead)), 'dead letter');
        const [death] = got.properties.headers['x-death'];
        assert.equal(death.reason, 'expired');
        assert.equal(death.queue, short);
        assert.equal(death.count, 1);
        return 'expired, with x-death';
      };
      return withQueue('short', work, dying);
    }),

  failover,

  close: () =>
    connected(given.urls[0], async (connection) => {
      const channel = await connection.channel();
      const { name: queue } = await channel.queueDeclare('', { exclusive: true });
      for (let n = 0; n < 500; n++) void publish(channel, queue, `${n}`).catch(() => {});
      await within(connection.close(), WAIT_MS_MAX);
      assert.equal(connection.closed, true);
      return 'close resolved with 500 publishes in flight';
    }),
};

// A consumer at a node that survives takes all the while; the publisher reconnects by itself.
async function failover() {
  const queue = name('failover');
  await connected(given.urls[0], async (connection) =>
    (await connection.channel()).queueDeclare(queue, { durable: true }, { 'x-queue-type': 'quorum' }),
  );
  const { urls } = await ask('leader', queue);
  const seen = [];
  return connected(urls[1], async (survivor) => {
    const consumer = await survivor.channel();
    await consumer.prefetch(20);
    await consumer.basicConsume(queue, { noAck: false }, (message) => {
      seen.push(message.bodyString());
      return message.ack();
    });
    const deadline = Date.now() + RECONNECT_MS_MAX;
    const confirmed = [];
    let [reconnects, after, killing, dead] = [0, 0, null, false];
    while (after < AFTER_KILL) {
      assert.ok(Date.now() < deadline, `${confirmed.length} confirmed, and not done in time`);
      try {
        await connected(urls[reconnects % urls.length], async (connection) => {
          const channel = await connection.channel();
          await channel.confirmSelect();
          while (after < AFTER_KILL) {
            const sent = publish(channel, queue, `${confirmed.length}`, { deliveryMode: 2 });
            await within(sent, CONFIRM_MS_MAX);
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
    await consumer.queueDelete(queue);
    const twice = seen.length - new Set(seen).size;
    return `${confirmed.length} confirmed, ${reconnects} reconnects, ${twice} twice`;
  });
}

run(steps);
