// A WebRTC call between two real browsers over two emulated links, setting after setting.
//
//   clip --> per round: recordings --> per setting: links, tunnel --> browsers join --> warm-up
//      --> recordings of the links from their beginning --> getStats() every second --> figures
//   --> tables, webrtc.json, a CSV file per setting and round
//
// docs/video.md says what the settings are and what the figures mean.

import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { findProgram } from '../shared/options.js';
import { processorTimes } from '../shared/processors.js';
import { enter } from '../shared/sandbox.js';
import { Call, makeClip } from './browsers.js';
import { between, packetsBetween, summarize, toCsv, totalPackets } from './figures.js';
import { HELP, parseOptions } from './options.js';
import { tables } from './report.js';
import { Passage, writeLinks } from './settings.js';
import { buildWorld } from './world.js';

async function main() {
  const words = process.argv.slice(2);
  const options = parseOptions(words);
  if (options.help) {
    console.log(HELP);
    return 0;
  }
  options.roadweave = findProgram(options.roadweave, 'cargo build --release makes it');
  options.chromium = findProgram(options.chromium, 'apt-get install chromium brings it');
  const code = await enter(fileURLToPath(import.meta.url), words);
  if (code !== undefined) return code;

  makeClip(options.video);
  buildWorld();
  mkdirSync(options.out, { recursive: true });
  const runs = [];
  for (let round = 0; round < options.rounds; round += 1) {
    const links = { ...options.links, seed: options.links.seed + round };
    writeLinks(links);
    for (const setting of options.settings) {
      runs.push(await measure(setting, links, options));
      // At once: a run of all settings takes its time, and may be interrupted.
      writeFileSync(path.join(options.out, 'webrtc.json'), `${JSON.stringify(results(options, runs), null, 1)}\n`);
    }
  }
  const all = results(options, runs);
  console.log(options.json ? JSON.stringify(all) : tables(all));
  const blind = runs.filter(({ rows }) => summarize(rows).frames === 0);
  for (const { setting, seed } of blind) console.error(`${setting}, seed ${seed}: no picture arrived`);
  return blind.length === 0 ? 0 : 1;
}

/** What `webrtc.json` holds: for each setting its rounds together, and one by one. */
function results({ links, video, settings }, runs) {
  const ofSetting = ({ name }) => {
    const own = runs.filter(({ setting }) => setting === name);
    return {
      setting: name,
      ...summarize(own.flatMap(({ rows }) => rows)),
      packets: totalPackets(own.map(({ packets }) => packets)),
      rounds: own.map(({ setting, rows, ...run }) => ({ ...run, ...summarize(rows) })),
    };
  };
  const begun = settings.filter(({ name }) => runs.some(({ setting }) => setting === name));
  return { ...links, video, settings: begun.map(ofSetting) };
}

/** One call over `setting`, with the recordings that `links` stands for. */
async function measure(setting, links, options) {
  const passage = await Passage.open(options.roadweave, setting);
  const call = await Call.start(options.chromium, options.video);
  const tell = (text) => console.error(`${setting.name}, seed ${links.seed}: ${text}`);
  tell(`the call runs; ${options.warmUp} s until it counts`);
  await sleep(1_000 * options.warmUp);

  passage.restartLinks();
  const packetsBefore = passage.status();
  const rows = await watch(call, passage, links.seconds);
  const tunnel = passage.status();
  await call.end();
  const carried = await passage.close();

  writeFileSync(path.join(options.out, `${setting.name.replace(':', '-')}-${links.seed}.csv`), toCsv(rows));
  const figures = summarize(rows);
  tell(`${(figures.bitrate_bps.mean / 1e6).toFixed(1)} Mbit/s, ${figures.fps.toFixed(1)} pictures a second`);
  const packets = packetsBetween(packetsBefore, tunnel);
  return { setting: setting.name, seed: links.seed, rows, packets, tunnel, links: carried };
}

/** What happened in each of `seconds` seconds. */
async function watch(call, passage, seconds) {
  const look = async () => ({ ...(await call.sample()), processor: processorTimes() });
  const rows = [];
  let before = await look();
  const begin = performance.now();
  for (let second = 1; second <= seconds; second += 1) {
    await sleep(begin + 1_000 * second - performance.now());
    passage.checkRunning();
    const after = await look();
    rows.push(between(before, after));
    before = after;
  }
  return rows;
}

try {
  process.exit(await main());
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
