import assert from 'node:assert/strict';
import test from 'node:test';

import { LINKS, recordings } from '../links.js';

const SECONDS = 60;

/** The recordings as `{ name: [{ ms, delayMs, loss }] }`, each row with what holds from then on. */
function parse(options) {
  const all = recordings({ seconds: SECONDS, seed: 7, together: false, steady: false, ...options });
  return Object.fromEntries(all.map(({ name, csv }) => {
    const [head, ...lines] = csv.trim().split('\n');
    assert.equal(head, 't_ms,capacity_kbps,delay_ms,loss');
    let held = { delayMs: null, loss: null };
    return [name, lines.map((line) => {
      const [ms, , delay, loss] = line.split(',');
      held = {
        delayMs: delay === '' ? held.delayMs : Number(delay),
        loss: loss === '' ? held.loss : Number(loss),
      };
      return { ms: Number(ms), ...held };
    })];
  }));
}

/** The share of the time for which `holds` does. */
function share(rows, holds) {
  const ends = [...rows.slice(1).map(({ ms }) => ms), SECONDS * 1_000];
  return rows.reduce((sum, row, index) => sum + (holds(row) ? ends[index] - row.ms : 0), 0) / (SECONDS * 1_000);
}

const near = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-4, `${value} is not ${expected}`);

test('links lose and are slower for the shares of the time that they should', () => {
  for (const together of [false, true]) {
    const links = parse({ together });
    for (const { name, delayMs, loss, slower } of LINKS) {
      near(share(links[name], (row) => row.loss === 1), loss.share);
      const slow = share(links[name], (row) => row.delayMs > delayMs);
      assert.ok(Math.abs(slow - slower.share) < 0.002, `${slow} is not ${slower.share}`);
    }
  }
});

test('times ascend, and the last row lasts as long as the one before it, to the end', () => {
  for (const rows of Object.values(parse({}))) {
    for (const [index, { ms }] of rows.slice(1).entries()) assert.ok(ms > rows[index].ms);
    const [before, last] = rows.slice(-2).map(({ ms }) => ms);
    near(2 * last - before, SECONDS * 1_000);
  }
});

test('links never lose at the same moment, unless they may', () => {
  const both = (links) => {
    const times = [...links.a, ...links.b].map(({ ms }) => ms);
    const at = (rows, ms) => rows.filter((row) => row.ms <= ms).at(-1).loss;
    return times.some((ms) => at(links.a, ms) === 1 && at(links.b, ms) === 1);
  };
  assert.equal(both(parse({ together: false })), false);
  assert.equal(both(parse({ together: true })), true);
});

test('delays drift without a jump, as far as they should', () => {
  const links = parse({});
  for (const { name, delayMs, slower } of LINKS) {
    const delays = links[name].map((row) => row.delayMs);
    for (const [index, delay] of delays.slice(1).entries()) assert.ok(Math.abs(delay - delays[index]) < 1);
    assert.equal(Math.min(...delays), delayMs);
    near(Math.max(...delays), slower.delayMs);
  }
});

test('steady links keep their delays', () => {
  const links = parse({ steady: true });
  for (const { name, delayMs } of LINKS) near(share(links[name], (row) => row.delayMs === delayMs), 1);
});

test('equal seeds make equal links, others do not', () => {
  assert.deepEqual(parse({ seed: 3 }), parse({ seed: 3 }));
  assert.notDeepEqual(parse({ seed: 3 }), parse({ seed: 4 }));
});
