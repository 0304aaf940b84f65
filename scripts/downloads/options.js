// The command line.

import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { number, parseWords } from '../shared/options.js';
import { driveCase, profileCase, PROFILES } from './cases.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

const OPTIONS = {
  profiles: { type: 'string', default: Object.keys(PROFILES).join(',') },
  drives: { type: 'string', multiple: true, default: [] },
  congestion: { type: 'string', default: 'cubic,bbr' },
  rounds: { type: 'string', default: '3' },
  bytes: { type: 'string', default: '10000000' },
  seconds: { type: 'string', default: '10' },
  requests: { type: 'string', default: '0' },
  seed: { type: 'string', default: '1' },
  out: { type: 'string', default: path.join(ROOT, 'target/downloads') },
  roadweave: { type: 'string', default: path.join(ROOT, 'target/release/roadweave') },
  json: { type: 'boolean', default: false },
  help: { type: 'boolean', default: false },
};

export const HELP = `Downloads over each link alone, by kernel MPTCP, through the tunnel and as a stream

Usage: node scripts/downloads/downloads.js [OPTIONS]

      --profiles LIST    Pairs of links, of those of \`roadweave lab profiles\`, or none
                         [default: all sixteen]
      --drives DIR       Recorded drives too: one, or a folder of drives; may be repeated
      --congestion LIST  Congestion controls of all kernels, in turns [default: ${OPTIONS.congestion.default}]
      --rounds N         How often all ways take their turns [default: ${OPTIONS.rounds.default}]
      --bytes N          What is downloaded [default: ${OPTIONS.bytes.default}]
      --seconds S        When a download is cut off; its rate is of what has arrived by then
                         [default: ${OPTIONS.seconds.default}]
      --requests N       So many of 32 kB, 200 kB and 2 MB each in a round, too [default: ${OPTIONS.requests.default}]
      --seed N           Decides what the links lose [default: ${OPTIONS.seed.default}]
      --out DIR          Where downloads.json goes [default: target/downloads]
      --roadweave FILE   The program [default: target/release/roadweave]
      --json             Print what downloads.json holds instead of tables
      --help             Print this

A line is printed for each case when it is done. It ends with 1 when a download failed.`;

/** What the command line `words` asks for; throws with the cure. */
export function parseOptions(words) {
  const values = parseWords(words, OPTIONS);
  const rounds = number(values, 'rounds', { from: 1, to: 1_000 });
  const profiles = values.profiles === 'none' ? [] : values.profiles.split(',');
  const congestion = values.congestion.split(',');
  const strange = congestion.find((name) => !/^[a-z0-9_]+$/.test(name));
  if (strange !== undefined) throw new Error(`--congestion: ${strange}; as in cubic,bbr`);
  const drives = values.drives.flatMap(drivesIn).map((folder) => driveCase(folder, rounds));
  const cases = [...profiles.map(profileCase), ...drives];
  if (cases.length === 0) throw new Error('--profiles none needs --drives');
  return {
    cases,
    congestion,
    rounds,
    bytes: number(values, 'bytes', { from: 1, to: 1e12 }),
    seconds: number(values, 'seconds', { from: 1, to: 600 }),
    requests: number(values, 'requests', { from: 0, to: 10_000 }),
    seed: number(values, 'seed', { from: 0, to: 1e9 }),
    out: path.resolve(values.out),
    roadweave: values.roadweave,
    json: values.json,
    help: values.help,
  };
}

/** `folder` if it is a drive, else the drives in it. */
function drivesIn(folder) {
  if (!existsSync(folder)) throw new Error(`--drives: ${folder}: no such folder`);
  const isDrive = (place) => readdirSync(place).some((file) => file.endsWith('.csv') && file !== 'INDEX.csv');
  if (isDrive(folder)) return [folder];
  const inside = readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => path.join(folder, name))
    .filter(isDrive)
    .sort();
  if (inside.length === 0) throw new Error(`--drives: ${folder}: no drive in it`);
  return inside;
}
