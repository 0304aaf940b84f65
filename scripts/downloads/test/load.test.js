// Both ends of a download and the proxy of `make vod`, as processes on the loopback.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

const LOAD = fileURLToPath(new URL('../load.js', import.meta.url));
const SOCKS = fileURLToPath(new URL('../../vod/socks.js', import.meta.url));
const BYTES = 300_000;

/** A port that is free now. */
async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  return port;
}

/** Starts a program of ours, until the test is over; its port. */
async function start(context, port, ...words) {
  const child = spawn(process.execPath, words, { stdio: ['ignore', 'pipe', 'inherit'] });
  context.after(() => child.kill());
  await once(child.stdout, 'data');
  return port;
}

async function startLoad(context) {
  const port = await freePort();
  return start(context, port, LOAD, 'serve', '127.0.0.1', String(port));
}

async function startProxy(context) {
  const port = await freePort();
  return start(context, port, SOCKS, String(port));
}

const get = (port, bytes, count, seconds, ...proxy) => execFileSync(
  process.execPath, [LOAD, 'get', '127.0.0.1', port, bytes, count, seconds, ...proxy].map(String), { encoding: 'utf8' },
).trim().split('\n').map((line) => JSON.parse(line));

test('a download brings what was asked for, also by a proxy', async (context) => {
  const port = await startLoad(context);
  const proxy = await startProxy(context);
  for (const by of [[], [`127.0.0.1:${proxy}`]]) {
    const got = get(port, BYTES, 2, 10, ...by);
    assert.deepEqual(got.map(({ bytes }) => bytes), [BYTES, BYTES]);
    assert.ok(got.every(({ seconds }) => seconds > 0 && seconds < 10));
  }
});

test('a download that takes too long is cut off', async (context) => {
  const [{ bytes, seconds }] = get(await startLoad(context), 1e12, 1, 1);
  assert.ok(bytes > 0 && bytes < 1e12);
  assert.ok(seconds >= 1 && seconds < 3, `${seconds}`);
});

test('the proxy takes a request byte by byte, and one by name', async (context) => {
  const server = net.createServer((socket) => socket.pipe(socket)).listen(0, 'localhost');
  await once(server, 'listening');
  context.after(() => server.close());
  const { port } = server.address();
  const client = net.connect({ host: '127.0.0.1', port: await startProxy(context), noDelay: true });
  context.after(() => client.destroy());
  const name = Buffer.from('localhost');
  const request = [5, 1, 0, 5, 1, 0, 3, name.length, ...name, port >> 8, port & 255, ...Buffer.from('hi')];
  let said = Buffer.alloc(0);
  client.on('data', (part) => { said = Buffer.concat([said, part]); });
  for (const byte of request) {
    client.write(Buffer.from([byte]));
    await new Promise((resolve) => { setTimeout(resolve, 2); });
  }
  while (said.length < 14) await once(client, 'data');
  assert.deepEqual([...said.subarray(0, 4)], [5, 0, 5, 0]);
  assert.equal(said.subarray(12).toString(), 'hi');
});
