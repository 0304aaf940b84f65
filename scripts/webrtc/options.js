// The command line.

import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { megabits, number, parseWords } from '../shared/options.js';
import { parseSetting } from './settings.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const ALL = [
  'single:a', 'single:b',
  'geneve', 'geneve@10', 'geneve@100', 'geneve@300', 'geneve@500', 'geneve@1000',
  'xnc',
];
/** Short, and small enough for a machine with other work. */
const SMOKE = { settings: 'single:a,geneve@300', seconds: '10', 'warm-up': '5', height: '720' };

const OPTIONS = {
  settings: { type: 'string', default: ALL.join(',') },
  seconds: { type: 'string', default: '60' },
  'warm-up': { type: 'string', default: '30' },
  rounds: { type: 'string', default: '1' },
  seed: { type: 'string', default: '1' },
  together: { type: 'boolean', default: false },
  steady: { type: 'boolean', default: false },
  height: { type: 'string', default: '1080' },
  codec: { type: 'string', default: 'VP8' },
  'bitrate-max': { type: 'string', default: '16' },
  out: { type: 'string', default: path.join(ROOT, 'target/webrtc') },
  roadweave: { type: 'string', default: path.join(ROOT, 'target/release/roadweave') },
  chromium: { type: 'string', default: 'chromium' },
  json: { type: 'boolean', default: false },
  smoke: { type: 'boolean', default: false },
  help: { type: 'boolean', default: false },
};

export const HELP = `A WebRTC call between two browsers over two emulated links, setting after setting

Usage: node scripts/webrtc/call.js [OPTIONS]

      --settings LIST    Settings in the order of their runs; docs/video.md has them
                         [default: ${ALL.slice(0, 5).join(',')},
                         ${ALL.slice(5).join(',')}]
      --seconds S        How long each is measured [default: ${OPTIONS.seconds.default}]
      --warm-up S        How long the call has run by then [default: ${OPTIONS['warm-up'].default}]
      --rounds N         How often all settings take their turns, each time with the next seed
                         [default: ${OPTIONS.rounds.default}]
      --seed N           Decides when the links lose and when they are slower [default: ${OPTIONS.seed.default}]
      --together         Both links may lose at the same moment
      --steady           The delays of the links stay as they are
      --height PIXELS    1080 or 720 [default: ${OPTIONS.height.default}]
      --codec NAME       VP8, VP9, H264 or AV1 [default: ${OPTIONS.codec.default}]
      --bitrate-max RATE The most that the encoder makes, as 8M or 8 [default: ${OPTIONS['bitrate-max'].default}]
      --out DIR          Where the files go [default: target/webrtc]
      --roadweave FILE   The program [default: target/release/roadweave]
      --chromium FILE    The browser [default: ${OPTIONS.chromium.default}]
      --json             Print what webrtc.json holds instead of tables
      --smoke            Two short settings of 720p, to see whether it works
      --help             Print this

It ends with 1 when a setting showed no picture.`;

/** What the command line `words` asks for; throws with the cure. */
export function parseOptions(words) {
  const values = parseWords(words, OPTIONS, (given) => (given.smoke ? SMOKE : {}));
  const height = number(values, 'height', [720, 1080]);
  return {
    settings: values.settings.split(',').map(parseSetting),
    warmUp: number(values, 'warm-up', { from: 0, to: 600 }),
    rounds: number(values, 'rounds', { from: 1, to: 1_000 }),
    links: {
      seed: number(values, 'seed', { from: 0, to: Number.MAX_SAFE_INTEGER }),
      seconds: number(values, 'seconds', { from: 5, to: 3_600 }),
      together: values.together,
      steady: values.steady,
    },
    video: {
      codec: values.codec,
      width: (height * 16) / 9,
      height,
      fps: 30,
      bitrate_max_bps: 1e6 * megabits(values, 'bitrate-max', { from: 1, to: 100 }),
    },
    out: path.resolve(values.out),
    roadweave: values.roadweave,
    chromium: values.chromium,
    json: values.json,
    help: values.help,
  };
}
