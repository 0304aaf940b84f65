import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

import { profileCase, PROFILES } from '../cases.js';

test('the profiles are those of the lab', () => {
  const source = readFileSync(new URL('../../../crates/lab/src/profiles.rs', import.meta.url), 'utf8');
  const even = /EVEN: ProfileLink = (link\([0-9, ]+\))/.exec(source)[1];
  const rows = source.matchAll(/profile\("(\w+)", (.*), \[[0-9., ]+\]\),/g);
  const theirs = Object.fromEntries([...rows].map(([, name, links]) => (
    [name, [...links.replaceAll('EVEN', even).matchAll(/link\(([0-9, ]+)\)/g)].map(([, words]) => words.split(',').map(Number))]
  )));
  const ours = Object.fromEntries(Object.entries(PROFILES).map(([name, links]) => (
    [name, links.map(({ delayMs, jitterMs, lossPerMille, mbps }) => [delayMs, jitterMs, lossPerMille, mbps])]
  )));
  assert.equal(Object.keys(ours).length, 16);
  assert.deepEqual(ours, theirs);
});

test('a link says what the emulator reads', () => {
  const [, second] = profileCase('dual_lte').links();
  assert.equal(second.name, 'b');
  assert.deepEqual(second.fields.split('\n'), [
    'rate_kbps = 25000', 'delay_ms = 45', 'jitter_ms = 8', 'reorder = true', 'loss = 0.005', 'queue_bytes = 1500000',
  ]);
  assert.throws(() => profileCase('none-such'), /there are baseline, rtt_40/);
});
