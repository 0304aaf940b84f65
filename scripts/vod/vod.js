// Video on demand in a browser over emulated links, setting after setting.
//
//   film --> per round: recordings --> per setting: links, web server, tunnel --> browser with the
//      player in its page --> recordings from their beginning, play --> what the viewer saw
//   --> table, vod.json, vod.html
//
// docs/vod.md says what the settings are and what the figures mean.

import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { driveLinks } from '../shared/drives.js';
import { findProgram } from '../shared/options.js';
import { processorTimes } from '../shared/processors.js';
import { addLinkRules, buildRoad, setCongestion } from '../shared/road.js';
import { enter } from '../shared/sandbox.js';
import { overhead, redundancy, summarize } from './figures.js';
import { askedWithCmcd, makeFilm, PLAYLIST, writeWebServer } from './film.js';
import { syntheticLinks } from './links.js';
import { HELP, parseOptions } from './options.js';
import { page } from './page.js';
import { Viewer } from './player.js';
import { tables } from './report.js';
import { Passage } from './settings.js';

async function main() {
  const words = process.argv.slice(2);
  const options = parseOptions(words);
  if (options.help) {
    console.log(HELP);
    return 0;
  }
  options.roadweave = findProgram(options.roadweave, 'cargo build --release makes it');
  options.chromium = findProgram(options.chromium, 'apt-get install chromium brings it');
  for (const name of ['nginx', 'mptcpize']) findProgram(name, `apt-get install ${name} brings it`);
  const code = await enter(fileURLToPath(import.meta.url), words);
  if (code !== undefined) return code;

  // More than can be watched.
  makeFilm({ ...options.film, seconds: options.seconds + 2 * options.bufferS });
  const webServer = writeWebServer();
  buildRoad();
  addLinkRules(options.names.length);
  setCongestion(options.congestion);
  mkdirSync(options.out, { recursive: true });
  const viewings = [];
  for (let round = 0; round < options.rounds; round += 1) {
    const seed = options.seed + round;
    const links = options.drive === undefined
      ? syntheticLinks({ seconds: options.seconds + 10, seed })
      : driveLinks(options.drive, round / options.rounds);
    for (const setting of options.settings) {
      viewings.push(await watch(setting, { links, seed, webServer }, options));
      // At once: a run of all settings takes its time, and may be interrupted.
      write(options, viewings);
    }
  }
  const all = results(options, viewings);
  console.log(options.json ? JSON.stringify(all) : tables(all));
  const blind = viewings.filter(({ firstFrameMs }) => firstFrameMs === null);
  for (const { setting, seed } of blind) console.error(`${setting}, seed ${seed}: no picture arrived`);
  return blind.length === 0 ? 0 : 1;
}

/** What `vod.json` holds: for each setting its viewings together, and one by one. */
function results({ settings, film, seconds, bufferS, congestion, drive }, viewings) {
  const ofSetting = ({ name }) => {
    const own = viewings.filter(({ setting }) => setting === name);
    return { setting: name, ...summarize(own), viewings: own.map((viewing) => ({ ...viewing, figures: summarize([viewing]) })) };
  };
  const begun = settings.filter(({ name }) => viewings.some(({ setting }) => setting === name));
  return { film, seconds, buffer_s: bufferS, congestion, drive, settings: begun.map(ofSetting) };
}

function write(options, viewings) {
  const all = results(options, viewings);
  writeFileSync(path.join(options.out, 'vod.json'), `${JSON.stringify(all, null, 1)}\n`);
  writeFileSync(path.join(options.out, 'vod.html'), page(all));
}

/** One viewing over `setting`. */
async function watch(setting, road, options) {
  const passage = await Passage.open(options.roadweave, setting, road);
  const viewer = await Viewer.start(options.chromium, passage.proxy);
  const before = processorTimes();
  passage.road.restartLinks();
  await viewer.play({ url: `http://${passage.host}/${PLAYLIST}`, bufferS: options.bufferS, cmcd: options.cmcd });
  for (let second = 0; second < options.seconds; second += 1) {
    await sleep(1_000);
    passage.road.checkRunning();
  }
  const seen = await viewer.seen();
  const tunnel = passage.road.status();
  const told = passage.road.told();
  const { subflows } = passage;
  const processors = share(before, processorTimes());
  writeFileSync(path.join(options.out, `${setting.name.replace(':', '-')}-${road.seed}.png`), await viewer.screenshot());
  await viewer.end();
  const links = await passage.close();

  const viewing = { setting: setting.name, seed: road.seed, ...seen, ...processors, subflows, tunnel, links };
  Object.assign(viewing, { overhead: overhead(viewing), redundancy: redundancy(tunnel) });
  if (options.cmcd) Object.assign(viewing, { cmcd_requests: askedWithCmcd(), cmcd_told: told });
  const { first_frame_ms: first, stalls, stalled_ms: stalled } = summarize([viewing]);
  const words = `first picture after ${(first / 1_000).toFixed(2)} s, ${stalls} stalls of ${(stalled / 1_000).toFixed(1)} s`;
  console.error(`${setting.name}, seed ${road.seed}: ${words}`);
  if (setting.way === 'mptcp' && subflows === 0) console.error('MPTCP never used a second link');
  return viewing;
}

/** What the processors did between two moments, percent: for this, and for others. */
function share(before, after) {
  const ticks = (name) => Math.max(0, after[name] - before[name]);
  const percent = (time) => (100 * Math.max(0, time)) / Math.max(1, ticks('all'));
  return { cpu_percent: percent(ticks('ours')), cpu_others_percent: percent(ticks('busy') - ticks('ours')) };
}

try {
  process.exit(await main());
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
