// nats.js on Node.js. Each step is done as it is, and again while the node that leads the stream is killed.
'use strict';
const assert = require('node:assert/strict');
const { createHash } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { connect, wsconnect } = require('@nats-io/transport-node');
const { jetstream, jetstreamManager, AckPolicy } = require('@nats-io/jetstream');
const { Kvm } = require('@nats-io/kv');
const { Objm } = require('@nats-io/obj');
const { Svcm } = require('@nats-io/services');
const {
  RECONNECT_MS_MAX,
  BEFORE_KILL,
  AFTER_KILL,
  given,
  name,
  ask,
  until,
  run,
} = require('../../node/protocol.js');

// What a request, or an attempt at one, may take.
const timeout = 2_000;
const ACK_WAIT_MS = 10_000;
const OBJECT_BYTES = 4 << 20;
const nanos = (ms) => ms * 1_000_000;

// To the first that answers; then to any other when that one dies.
async function connected(urls, work, options = {}) {
  const { username: user, password: pass } = new URL(urls[0]);
  const client = await connect({
    servers: urls.map((url) => new URL(url).host),
    user,
    pass,
    noRandomize: true,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 100,
    ...options,
  });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}

// A stream that `make` makes, a client at the node that leads it, and one at another node.
async function scene(what, kill, make, work) {
  const called = name(what).replaceAll('.', '-') + (kill ? '-kill' : '');
  const stream = await connected(given.urls, (client) => make(client, called));
  const {
    urls: [leader, ...others],
  } = await ask('leader', stream);
  return connected([leader, ...others], (near) =>
    connected([...others, leader], async (far) => {
      const detail = await work({ stream, near, far, kill });
      await (await jetstreamManager(far)).streams.delete(stream);
      return detail;
    }),
  );
}

async function plain(client, called) {
  const manager = await jetstreamManager(client);
  await manager.streams.add({ name: called, subjects: [called], num_replicas: 3 });
  return called;
}

// An attempt for each number, again until it succeeds; the leader dies in the midst.
async function throughout(it, attempt, [before, after] = [BEFORE_KILL, AFTER_KILL]) {
  const deadline = Date.now() + RECONNECT_MS_MAX;
  const load = { count: 0, wait: 0, toString: told };
  let [dead, last] = [!it.kill, Date.now()];
  while (after > 0) {
    try {
      await attempt(load.count);
    } catch (error) {
      if (!it.kill || Date.now() > deadline || error instanceof assert.AssertionError) throw error;
      await sleep(20);
      continue;
    }
    load.count++;
    load.wait = Math.max(load.wait, Date.now() - last);
    last = Date.now();
    if (dead) after--;
    else if (load.count === before) ask('kill', it.stream).then(() => (dead = true));
  }
  return load;
}

function told() {
  return `${this.count} acknowledged, the longest wait ${(this.wait / 1_000).toFixed(2)} s`;
}

// Numbers, each stored once however often it was tried.
function publishAll(it) {
  const js = jetstream(it.near, { timeout });
  return throughout(it, async (number) => {
    const ack = await js.publish(it.stream, `${number}`, { msgID: `${number}`, timeout });
    assert.equal(ack.seq, number + 1);
  });
}

const publish = (kill) =>
  scene('publish', kill, plain, async (it) => {
    const load = await publishAll(it);
    const [js, manager] = [jetstream(it.far), await jetstreamManager(it.far)];
    for (let number = 0; number < load.count; number++) {
      const found = await manager.streams.getMessage(it.stream, { seq: number + 1 });
      assert.equal(found.string(), `${number}`);
    }
    const again = await js.publish(it.stream, '', { msgID: '7' });
    assert.deepEqual([again.seq, again.duplicate], [8, true]);
    await assert.rejects(js.publish(it.stream, '', { expect: { lastSequence: 7 } }), { code: 10071 });
    assert.equal((await manager.streams.info(it.stream)).state.messages, load.count);
    return `${load}`;
  });

// What a consumer got and acknowledged for sure. Nothing of it may come again.
class Settled {
  inTime = new Map();
  twice = 0;
  wrong = '';

  constructor(client) {
    this.client = client;
  }

  async take(message) {
    const [number, came] = [Number(message.string()), Date.now()];
    if (this.inTime.has(number)) {
      this.twice++;
      if (this.inTime.get(number)) this.wrong = `${number} came again though it was acknowledged`;
    }
    while (Date.now() - came < ACK_WAIT_MS) {
      try {
        // As `ackAck`, which may be called once only.
        await this.client.request(message.msg.reply, '+ACK', { timeout });
        this.inTime.set(number, Date.now() - came < ACK_WAIT_MS / 2);
        return;
      } catch {
        await sleep(50);
      }
    }
  }

  async finished(load, consumer) {
    await until(() => this.wrong || this.inTime.size >= load.count, 'all that is acknowledged');
    assert.equal(this.wrong, '');
    const info = await consumer.info();
    const found = [info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending];
    assert.deepEqual(found, [load.count, 0, 0]);
    return `${load}, ${this.twice} twice`;
  }
}

const READER = {
  durable_name: 'reader',
  ack_policy: AckPolicy.Explicit,
  ack_wait: nanos(ACK_WAIT_MS),
};

const pull = (kill) =>
  scene('pull', kill, plain, async (it) => {
    await (await jetstreamManager(it.far)).consumers.add(it.stream, READER);
    const consumer = await jetstream(it.far).consumers.get(it.stream, 'reader');
    const settled = new Settled(it.far);
    let [stop, failure] = [false, null];
    const taking = (async () => {
      while (!stop) {
        try {
          for await (const message of await consumer.fetch({ max_messages: 10, expires: 2_000 })) {
            if (message.seq === 4 && message.info.deliveryCount === 1) message.nak();
            else await settled.take(message);
          }
        } catch (error) {
          if (!kill) failure = error;
          await sleep(20);
        }
      }
    })();
    try {
      return await settled.finished(await publishAll(it), consumer);
    } finally {
      stop = true;
      await taking;
      assert.equal(failure, null);
    }
  });

const push = (kill) =>
  scene('push', kill, plain, async (it) => {
    await (
      await jetstreamManager(it.far)
    ).consumers.add(it.stream, {
      ...READER,
      deliver_subject: `${it.stream}-deliver`,
      idle_heartbeat: nanos(1_000),
      flow_control: true,
    });
    const settled = new Settled(it.far);
    const consumer = await jetstream(it.far).consumers.getPushConsumer(it.stream, 'reader');
    const messages = await consumer.consume({ callback: (message) => settled.take(message) });
    const detail = await settled.finished(await publishAll(it), consumer);
    await messages.close();
    return detail;
  });

const ordered = (kill) =>
  scene('ordered', kill, plain, async (it) => {
    const came = [];
    const consumer = await jetstream(it.far).consumers.get(it.stream);
    const callback = (message) => came.push(Number(message.string()));
    const messages = await consumer.consume({ callback, idle_heartbeat: 1_000, expires: 5_000 });
    const load = await publishAll(it);
    await until(() => came.length >= load.count, 'all that is acknowledged');
    assert.deepEqual(came, [...Array(load.count).keys()]);
    await messages.close();
    return `${load}`;
  });

const kv = (kill) =>
  scene(
    'kv',
    kill,
    async (client, called) => {
      await new Kvm(client).create(called, { history: 5, replicas: 3 });
      return `KV_${called}`;
    },
    async (it) => {
      const called = it.stream.slice('KV_'.length);
      const near = await new Kvm(jetstream(it.near, { timeout })).open(called);
      const far = await new Kvm(it.far).open(called);
      for (const value of ['1', '2', '3']) await near.put('a.b', value);
      const history = [];
      for await (const entry of await far.history({ key: 'a.b' })) history.push(entry.string());
      assert.deepEqual(history, ['1', '2', '3']);
      assert.equal((await far.get('a.b', { revision: 2 })).string(), '2');
      await assert.rejects(far.create('a.b', '4'), { code: 10071 });
      await assert.rejects(far.update('a.b', '4', 2), { code: 10071 });
      const revision = await far.update('a.b', '4', 3);
      await near.put('gone', '');
      await near.delete('gone');
      const keys = [];
      for await (const key of await far.keys()) keys.push(key);
      assert.deepEqual(keys, ['a.b']);
      assert.equal((await far.get('gone')).operation, 'DEL');

      const watched = [];
      const watcher = await far.watch({ key: 'count' });
      const watching = (async () => {
        for await (const entry of watcher) watched.push(Number(entry.string()));
      })();
      let last = await near.create('count', '-1');
      const load = await throughout(it, async (number) => {
        try {
          last = await near.update('count', `${number}`, last, timeout);
        } catch (error) {
          // What became of an attempt without an answer, the bucket knows.
          const found = await near.get('count');
          last = found.revision;
          assert.ok([number - 1, number].includes(Number(found.string())), found.string());
          if (found.string() !== `${number}`) throw error;
        }
      });
      await until(() => watched.at(-1) === load.count - 1, 'the last one, watched');
      assert.ok(watched.every((value, n) => n === 0 || value > watched[n - 1]), `${watched}`);
      assert.equal((await far.get('count')).string(), `${load.count - 1}`);
      const entry = await far.get('a.b');
      assert.deepEqual([entry.string(), entry.revision], ['4', revision]);
      watcher.stop();
      await watching;
      return `${load}`;
    },
  );

const objects = (kill) =>
  scene(
    'objects',
    kill,
    async (client, called) => {
      await new Objm(client).create(called, { replicas: 3 });
      return `OBJ_${called}`;
    },
    async (it) => {
      const called = it.stream.slice('OBJ_'.length);
      const near = await new Objm(jetstream(it.near, { timeout })).open(called);
      const far = await new Objm(it.far).open(called);
      const put = (number) => near.putBlob({ name: `${number}` }, content(number), { timeout });
      const load = await throughout(it, put, [2, 2]);
      const names = (await far.list()).map((info) => info.name);
      for (let number = 0; number < load.count; number++) {
        const found = await far.getBlob(`${number}`);
        assert.equal(content(number).equals(found), true, `object ${number} is the same`);
        assert.ok(names.includes(`${number}`));
      }
      await far.delete('0');
      assert.equal(await near.getBlob('0'), null);
      return `${load}, ${OBJECT_BYTES >> 20} MiB each`;
    },
  );

function content(number) {
  const blocks = [];
  for (let block = 0; block < OBJECT_BYTES / 32; block++)
    blocks.push(createHash('sha256').update(`${number}/${block}`).digest());
  return Buffer.concat(blocks);
}

const services = (kill) =>
  scene('services', kill, plain, async (it) => {
    const service = await new Svcm(it.near).add({ name: 'upper', version: '1.2.3' });
    service.addEndpoint('upper', {
      subject: `${it.stream}.upper`,
      handler: (error, request) => request.respond(request.string().toUpperCase()),
    });
    const { id } = service.info();
    const ping = () => it.far.request(`$SRV.PING.upper.${id}`, '', { timeout });
    await until(() => ping().then(() => true, () => false), 'a ping');
    const load = await throughout(it, async (number) => {
      const answer = await it.far.request(`${it.stream}.upper`, `ask ${number}`, { timeout });
      assert.equal(answer.string(), `ASK ${number}`);
    });
    let about;
    for (const verb of ['PING', 'INFO', 'STATS'])
      for (const subject of [`$SRV.${verb}`, `$SRV.${verb}.upper`, `$SRV.${verb}.upper.${id}`]) {
        about = (await it.far.request(subject, '', { timeout })).json();
        assert.deepEqual([about.name, about.version, about.id], ['upper', '1.2.3', id]);
      }
    assert.ok(about.endpoints[0].num_requests >= load.count);
    await service.stop();
    return `${load}`;
  });

// From one node to another, with acknowledgements. Node.js 20 has no WebSocket of its own.
async function websocket() {
  globalThis.WebSocket ??= require('ws').WebSocket;
  if (given.websockets.length < 2) return 'no URLs are known';
  const [near, far] = await Promise.all(
    given.websockets.slice(0, 2).map((url) => wsconnect({ servers: url, user: 'guest', pass: 'guest' })),
  );
  const called = name('websocket').replaceAll('.', '-');
  const manager = await jetstreamManager(near);
  await manager.streams.add({ name: called, subjects: [`${called}.>`] });
  const count = 1_000;
  const body = 'x'.repeat(1_000);
  const numbers = Array.from({ length: count }, (_, number) => number);
  await Promise.all(numbers.map((number) => jetstream(near).publish(`${called}.${number}`, body)));
  await manager.consumers.add(called, { durable_name: 'all', ack_policy: AckPolicy.Explicit });
  const messages = await (await jetstream(far).consumers.get(called, 'all')).consume();
  let left = count;
  for await (const message of messages) {
    assert.equal(message.string(), body);
    assert.ok(await message.ackAck());
    left -= 1;
    if (left === 0) break;
  }
  await manager.streams.delete(called);
  await Promise.all([near.close(), far.close()]);
  return `${count} messages`;
}

const steps = {
  websocket,
  connect: () =>
    connected(given.urls.slice(0, 1), async (client) => {
      await until(() => client.info.connect_urls?.length === given.urls.length, 'all addresses');
      await client.flush();
      const wrong = connected(given.urls.slice(0, 1), () => {}, { pass: 'wrong', reconnect: false });
      const error = await wrong.then(() => assert.fail('a wrong password was taken'), (e) => e);
      assert.match(error.message, /authorization violation/i);
      return `a node says ${client.info.version}; a wrong password: ${error.message}`;
    }),
};
for (const [step, work] of Object.entries({ publish, pull, push, ordered, kv, objects, services })) {
  steps[step] = () => work(false);
  steps[`${step}+kill`] = () => work(true);
}

run(steps);
