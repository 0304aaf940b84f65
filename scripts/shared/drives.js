// Recorded drives, as docs/traces.md describes them.

import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { SCRATCH } from './sandbox.js';

/** The names of the links in the drive `folder`; throws when it is none. */
export function linksOfDrive(folder) {
  if (!existsSync(folder)) throw new Error(`${folder}: no such folder`);
  const names = readdirSync(folder)
    .filter((file) => /^[A-Za-z0-9_-]{1,11}\.csv$/.test(file) && file !== 'INDEX.csv')
    .map((file) => path.basename(file, '.csv'));
  if (names.length === 0) throw new Error(`${folder}: no drive; it has no NAME.csv`);
  return names.sort();
}

/**
 * The links of the drive `folder` for a `Road`, from the moment on at which `share` of each has
 * passed; a downlink that was not recorded is like the uplink.
 */
export function driveLinks(folder, share) {
  const place = (name) => {
    const text = readFileSync(path.join(folder, name), 'utf8');
    const file = path.join(SCRATCH, name);
    writeFileSync(file, laterBegin(text, share));
    return file;
  };
  return linksOfDrive(folder).map((name) => {
    const down = existsSync(path.join(folder, `${name}.down.csv`)) ? `${name}.down.csv` : `${name}.csv`;
    return { name, fields: `trace = "${place(`${name}.csv`)}"\ntrace_down = "${place(down)}"` };
  });
}

/** The recording `csv`, which repeats, from the moment on at which `share` of it has passed. */
export function laterBegin(csv, share) {
  const [head, ...lines] = csv.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  const columns = head.split(',');
  const time = columns.indexOf('t_ms');
  if (columns.includes('bytes')) throw new Error('recordings of delivery opportunities cannot begin later');
  const rows = lines.map((line) => line.split(','));
  // A blank cell says "as before", which may lie behind the new begin.
  rows.forEach((row, index) => columns.forEach((_, column) => {
    if ((row[column] ?? '') === '') row[column] = rows[index - 1]?.[column] ?? '';
  }));
  const at = (row) => Number(row[time]);
  const last = rows.at(-1);
  const length = at(last) + (rows.length > 1 ? at(last) - at(rows.at(-2)) : 1);
  const first = rows.findIndex((row) => at(row) >= share * length);
  const begin = at(rows[Math.max(0, first)]);
  const passed = (row) => (at(row) - begin + length) % length;
  const moved = rows.map((row) => row.map((cell, column) => (column === time ? passed(row) : cell)));
  moved.sort((one, other) => at(one) - at(other));
  return [head, ...moved.map((row) => row.join(',')), ''].join('\n');
}
