// The command line.

import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { linksOfDrive } from '../shared/drives.js';
import { megabits, number, parseWords } from '../shared/options.js';
import { LINKS } from './links.js';
import { defaultSettings, parseSetting } from './settings.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** Short, and small enough for a machine with other work. */
const SMOKE = { settings: 'mptcp,streams', seconds: '8', height: '360', bitrate: '2' };

const OPTIONS = {
  settings: { type: 'string' },
  seconds: { type: 'string', default: '60' },
  rounds: { type: 'string', default: '1' },
  seed: { type: 'string', default: '1' },
  drive: { type: 'string' },
  bitrate: { type: 'string', default: '10' },
  height: { type: 'string', default: '720' },
  chunk: { type: 'string', default: '4' },
  buffer: { type: 'string', default: '8' },
  congestion: { type: 'string', default: 'cubic' },
  cmcd: { type: 'boolean', default: false },
  out: { type: 'string', default: path.join(ROOT, 'target/vod') },
  roadweave: { type: 'string', default: path.join(ROOT, 'target/release/roadweave') },
  chromium: { type: 'string', default: 'chromium' },
  json: { type: 'boolean', default: false },
  smoke: { type: 'boolean', default: false },
  help: { type: 'boolean', default: false },
};

const NAMES = LINKS.map(({ name }) => name);

export const HELP = `Video on demand in a browser over emulated links, setting after setting

Usage: node scripts/vod/vod.js [OPTIONS]

      --settings LIST    Settings in the order of their runs; docs/vod.md has them
                         [default: single:LINK for each link, ${defaultSettings([]).slice(0, 3).join(',')},
                         ${defaultSettings([]).slice(3).join(',')}]
      --seconds S        How long each is watched [default: ${OPTIONS.seconds.default}]
      --rounds N         How often all settings take their turns, each time over other links
                         [default: ${OPTIONS.rounds.default}]
      --seed N           Decides what the links are like [default: ${OPTIONS.seed.default}]
      --drive DIR        A recorded drive instead; each round begins at another moment of it
      --bitrate RATE     Of the video, as 8M or 8 [default: ${OPTIONS.bitrate.default}]
      --height PIXELS    1080, 720 or 360 [default: ${OPTIONS.height.default}]
      --chunk S          How long a chunk is [default: ${OPTIONS.chunk.default}]
      --buffer S         The most that the player has in store [default: ${OPTIONS.buffer.default}]
      --congestion NAME  The congestion control of all kernels [default: ${OPTIONS.congestion.default}]
      --cmcd             The player tells about itself in what it asks for (CTA-5004)
      --out DIR          Where the files go [default: target/vod]
      --roadweave FILE   The program [default: target/release/roadweave]
      --chromium FILE    The browser [default: ${OPTIONS.chromium.default}]
      --json             Print what vod.json holds instead of tables
      --smoke            Two short settings of a small video, to see whether it works
      --help             Print this

It ends with 1 when a setting showed no picture.`;

/** What the command line `words` asks for; throws with the cure. */
export function parseOptions(words) {
  const values = parseWords(words, OPTIONS, (given) => (given.smoke ? SMOKE : {}));
  const names = values.drive === undefined ? NAMES : linksOfDrive(values.drive);
  const settings = values.settings?.split(',') ?? defaultSettings(names);
  if (!/^[a-z0-9_]+$/.test(values.congestion)) throw new Error(`--congestion: ${values.congestion}; as in cubic`);
  return {
    settings: settings.map((text) => parseSetting(text, names)),
    seconds: number(values, 'seconds', { from: 5, to: 3_600 }),
    rounds: number(values, 'rounds', { from: 1, to: 1_000 }),
    seed: number(values, 'seed', { from: 0, to: 1e9 }),
    drive: values.drive,
    names,
    film: {
      bitrateMbps: megabits(values, 'bitrate', { from: 1, to: 100 }),
      height: number(values, 'height', [1080, 720, 360]),
      chunkS: number(values, 'chunk', { from: 1, to: 60 }),
    },
    bufferS: number(values, 'buffer', { from: 1, to: 600 }),
    congestion: values.congestion,
    cmcd: values.cmcd,
    out: path.resolve(values.out),
    roadweave: values.roadweave,
    chromium: values.chromium,
    json: values.json,
    help: values.help,
  };
}
