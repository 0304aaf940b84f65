// Downloads over emulated links: each link alone, kernel MPTCP, the tunnel, streams, split ones.
//
//   case --> per round: links, tunnel --> per congestion control: one way after the other
//      --> medians, ratios --> a line, downloads.json --> tables, geometric means
//
// docs/vod.md says what the ways are and what the figures mean.

import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { Daemon, inside } from '../shared/network.js';
import { findProgram } from '../shared/options.js';
import { addLinkRules, buildRoad, HOST, joinedSubflows, Road, setCongestion, STREAMS } from '../shared/road.js';
import { enter } from '../shared/sandbox.js';
import { overall, REQUEST_BYTES, summarize } from './figures.js';
import { HELP, parseOptions } from './options.js';
import { caseLine, tables } from './report.js';

const LOAD = fileURLToPath(new URL('load.js', import.meta.url));
const PORT = { plain: 8000, mptcp: 8001 };

async function main() {
  const words = process.argv.slice(2);
  const options = parseOptions(words);
  if (options.help) {
    console.log(HELP);
    return 0;
  }
  options.roadweave = findProgram(options.roadweave, 'cargo build --release makes it');
  findProgram('mptcpize', 'apt-get install mptcpize brings it');
  const code = await enter(fileURLToPath(import.meta.url), words);
  if (code !== undefined) return code;

  buildRoad();
  addLinkRules(Math.max(...options.cases.map(({ names }) => names.length)));
  mkdirSync(options.out, { recursive: true });
  const done = [];
  for (const one of options.cases) {
    done.push(...(await measure(one, options)));
    for (const figures of done.slice(-options.congestion.length)) console.error(caseLine(figures));
    // At once: a run of all cases takes its time, and may be interrupted.
    writeFileSync(path.join(options.out, 'downloads.json'), `${JSON.stringify(results(options, done), null, 1)}\n`);
  }
  console.log(options.json ? JSON.stringify(results(options, done)) : tables(results(options, done)));
  return 0;
}

/** What `downloads.json` holds. */
function results({ rounds, bytes, seconds, requests, seed }, cases) {
  const groups = new Map();
  for (const one of cases) {
    const key = `${one.kind}s, ${one.congestion}`;
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const means = [...groups].map(([group, own]) => ({ group, ratios: overall(own) }));
  return { rounds, bytes, seconds, requests, seed, cases, means };
}

/** All ways over the links of `one`: an entry for each congestion control. */
async function measure(one, options) {
  const runs = options.congestion.map(() => ({ runs: [], requests: [], subflows: 0 }));
  for (let round = 0; round < options.rounds; round += 1) {
    for (const [index, congestion] of options.congestion.entries()) {
      setCongestion(congestion);
      await measureRound(one, round, runs[index], options);
    }
  }
  return options.congestion.map((congestion, index) => {
    const { runs: downloads, requests, subflows } = runs[index];
    if (subflows === 0) console.error(`${one.name}, ${congestion}: MPTCP never used a second link`);
    return { kind: one.kind, name: one.name, congestion, ...summarize(downloads, requests), subflows, runs: downloads };
  });
}

/** Every way once, with links and a session of their own. */
async function measureRound(one, round, into, options) {
  const road = await Road.open(options.roadweave, { seed: options.seed + round, links: one.links(round) });
  try {
    await serveLoad(road);
    const fetch = (way, bytes, count) => download(road, way, { bytes, count, seconds: options.seconds });
    const take = async (way) => {
      const [got] = await fetch(way, options.bytes, 1);
      into.runs.push({ way: way.name, round, ...got });
      return got.bytes / got.seconds;
    };
    let best = { rate: 0 };
    for (const link of one.names) {
      const rate = await take(linkWay(link));
      if (rate > best.rate) best = { link, rate };
    }
    const joined = joinedSubflows();
    await take(MPTCP);
    into.subflows += joinedSubflows() - joined;

    await road.openTunnel({ split: true, alone: best.link });
    // The first connection to a host goes as packets, and tells whether it answers.
    await fetch(SPLIT, 1, 1);
    // What comes first finds a session that knows nothing of the links yet.
    const turns = [TUNNEL, STREAM, SPLIT];
    const ways = turns.map((_, index) => turns[(index + round) % turns.length]);
    for (const way of [...ways, aloneWay(best.link)]) await take(way);
    if (options.requests > 0) {
      for (const way of [linkWay(best.link), MPTCP, ...ways]) {
        const name = way.name.startsWith('link:') ? 'best link' : way.name;
        for (const size of REQUEST_BYTES) {
          const got = await fetch(way, size, options.requests);
          into.requests.push(...got.map((request) => ({ way: name, size, ...request })));
        }
      }
    }
    const taken = road.taken();
    const expected = 1 + REQUEST_BYTES.length * options.requests;
    if (taken < expected) throw new Error(`the box took ${taken} of ${expected} connections as streams`);
    road.checkRunning();
  } finally {
    await road.close();
  }
}

const linkWay = (link) => ({ name: `link:${link}`, address: HOST.direct, link });
const aloneWay = (link) => ({ name: `alone:${link}`, address: HOST.alone, proxy: STREAMS.alone });
const MPTCP = { name: 'mptcp', address: HOST.direct, mptcp: true };
const TUNNEL = { name: 'tunnel', address: HOST.tunnel };
const SPLIT = { name: 'split', address: HOST.tunnel, from: 'phone' };
const STREAM = { name: 'stream', address: HOST.tunnel, proxy: STREAMS.tunnel };

/** The programs at the host that send. */
async function serveLoad(road) {
  const words = (port) => [process.execPath, LOAD, 'serve', '0.0.0.0', String(port)];
  const servers = [
    road.start('load', words(PORT.plain), 'host'),
    road.start('load-mptcp', [...MPTCPIZE, ...words(PORT.mptcp)], 'host'),
  ];
  await road.until('the host answers', () => servers.every(({ output }) => output.includes('ready')));
}

/** `count` downloads one after the other, with the recordings from their beginning. */
async function download(road, way, { bytes, count, seconds }) {
  road.routeOver(way.link ?? road.names[0]);
  const port = way.mptcp ? PORT.mptcp : PORT.plain;
  const words = [process.execPath, LOAD, 'get', way.address, port, bytes, count, seconds, way.proxy ?? []].flat().map(String);
  road.restartLinks();
  const [program, ...rest] = inside(way.from ?? 'box', [...(way.mptcp ? MPTCPIZE : []), ...words]);
  const { code, said, complaint } = await finish(spawn(program, rest, { stdio: ['ignore', 'pipe', 'pipe'] }));
  if (code !== 0) throw new Error(`${way.name}: ${complaint.trim().split('\n').slice(-8).join('\n')}`);
  return said.trim().split('\n').map((line) => JSON.parse(line));
}

async function finish(child) {
  let [said, complaint] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text) => { said += text; });
  child.stderr.setEncoding('utf8').on('data', (text) => { complaint += text; });
  const code = await new Promise((resolve) => { child.on('close', resolve); });
  return { code, said, complaint };
}

const MPTCPIZE = ['mptcpize', 'run'];

try {
  process.exit(await main());
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
