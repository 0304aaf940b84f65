// A WebRTC call between two real browsers over two emulated links, setting after setting.
//
//   clip, links (once) --> per setting: links, tunnel --> browsers join --> warm-up
//      --> recordings of the links from their beginning --> getStats() every second --> figures
//   --> tables, webrtc.json, a CSV file per setting
//
// docs/webrtc.md says what the settings are and what the figures mean.

import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { Call, makeClip } from './browsers.js';
import { between, packetsBetween, summarize, toCsv } from './figures.js';
import { findProgram, HELP, parseOptions } from './options.js';
import { processorTimes } from './processors.js';
import { tables } from './report.js';
import { enter } from './sandbox.js';
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
  writeLinks(options.links);
  buildWorld();
  mkdirSync(options.out, { recursive: true });
  const results = { ...options.links, video: options.video, settings: [] };
  for (const setting of options.settings) {
    results.settings.push(await measure(setting, options));
    // At once: a run of all settings takes its time, and may be interrupted.
    writeFileSync(path.join(options.out, 'webrtc.json'), `${JSON.stringify(results, null, 1)}\n`);
  }
  console.log(options.json ? JSON.stringify(results) : tables(results));
  const blind = results.settings.filter(({ frames }) => frames === 0);
  for (const { setting } of blind) console.error(`${setting}: no picture arrived`);
  return blind.length === 0 ? 0 : 1;
}

/** One call over `setting`; resolves to its figures. */
async function measure(setting, options) {
  const passage = await Passage.open(options.roadweave, setting);
  const call = await Call.start(options.chromium, options.video);
  const tell = (text) => console.error(`${setting.name}: ${text}`);
  tell(`the call runs; ${options.warmUp} s until it counts`);
  await sleep(1_000 * options.warmUp);

  passage.restartLinks();
  const packetsBefore = passage.status();
  const rows = await watch(call, passage, options.links.seconds);
  const tunnel = passage.status();
  const packets = packetsBetween(packetsBefore, tunnel);
  await call.end();
  const links = await passage.close();

  writeFileSync(path.join(options.out, `${setting.name.replace(':', '-')}.csv`), toCsv(rows));
  const figures = summarize(rows);
  tell(`${(figures.bitrate_bps.mean / 1e6).toFixed(1)} Mbit/s, ${figures.fps.toFixed(1)} pictures a second`);
  return { setting: setting.name, ...figures, packets, tunnel, links };
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
