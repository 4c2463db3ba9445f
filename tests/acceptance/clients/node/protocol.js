// How a program talks to the harness: tests/acceptance/clients/programs/program.py.
'use strict';
const { once } = require('node:events');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

const WAIT_MS_MAX = 60_000;
const RECONNECT_MS_MAX = 120_000;
const BEFORE_KILL = 50;
const AFTER_KILL = 50;

const given = JSON.parse(process.argv[2]);
const answers = readline.createInterface({ input: process.stdin });
const name = (what) => `${given.prefix}.${what}`;
const say = (values) => process.stdout.write(`${JSON.stringify(values)}\n`);

async function ask(what, queue) {
  say({ ask: what, queue });
  const [line] = await once(answers, 'line');
  return JSON.parse(line);
}

async function until(check, what) {
  const deadline = Date.now() + WAIT_MS_MAX;
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${WAIT_MS_MAX} ms`);
    await sleep(20);
  }
}

async function run(steps) {
  for (const step of given.steps) {
    if (!steps[step]) {
      say({ step, ok: null, detail: 'no part of its program' });
      continue;
    }
    try {
      const detail = await steps[step]();
      say({ step, ok: true, detail: typeof detail === 'string' ? detail : '' });
    } catch (error) {
      console.error(error);
      say({ step, ok: false, detail: String(error.message).split('\n').slice(0, 9).join(' ') });
    }
  }
  process.exit(0);
}

module.exports = {
  WAIT_MS_MAX,
  RECONNECT_MS_MAX,
  BEFORE_KILL,
  AFTER_KILL,
  given,
  name,
  ask,
  until,
  run,
};
