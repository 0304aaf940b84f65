// Command lines: options with defaults, and programs that are needed.

import { accessSync, constants } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';

/**
 * The values of `options`, as `parseArgs` describes them: what `words` say, else what `instead`
 * makes of them, else the defaults.
 */
export function parseWords(words, options, instead = () => ({})) {
  const { values: given } = parseArgs({ args: words, options: without(options, 'default') });
  const defaults = Object.fromEntries(Object.entries(options).map(([name, { default: value }]) => [name, value]));
  return { ...defaults, ...instead(given), ...given };
}

/** The file that `program` names, by a path or by `PATH`; throws with `cure` when there is none. */
export function findProgram(program, cure) {
  const folders = program.includes('/') ? [''] : process.env.PATH.split(':');
  for (const folder of folders) {
    const file = path.resolve(folder, program);
    try {
      accessSync(file, constants.X_OK);
      return file;
    } catch {
      // Perhaps in the next one.
    }
  }
  throw new Error(`${program}: no such program; ${cure}`);
}

function without(options, field) {
  const cut = ([name, option]) => [name, Object.fromEntries(Object.entries(option).filter(([key]) => key !== field))];
  return Object.fromEntries(Object.entries(options).map(cut));
}

/** The whole number that option `name` has, one of a list or within bounds. */
export function number(values, name, allowed) {
  const value = Number(values[name]);
  const fits = Array.isArray(allowed) ? allowed.includes(value) : value >= allowed.from && value <= allowed.to;
  if (Number.isInteger(value) && fits) return value;
  const cure = Array.isArray(allowed) ? allowed.join(' or ') : `a whole number from ${allowed.from} to ${allowed.to}`;
  throw new Error(`--${name}: ${values[name]}; ${cure}`);
}

/**
 * The rate that option `name` has, whole Mbit/s within bounds: 8M, 8000k, or 8; a number alone is
 * bit/s from 100000 on. `crates/terminal/src/rate.rs` reads rates the same way.
 */
export function megabits(values, name, { from, to }) {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)([kmg]?)$/i.exec(values[name]) ?? [];
  const alone = Number(digits) < 100e3 ? 1e6 : 1;
  const value = (Number(digits) * ({ k: 1e3, m: 1e6, g: 1e9 }[unit?.toLowerCase()] ?? alone)) / 1e6;
  if (Number.isInteger(value) && value >= from && value <= to) return value;
  throw new Error(`--${name}: ${values[name]}; a whole number of Mbit/s from ${from} to ${to}, as 8M or 8`);
}
