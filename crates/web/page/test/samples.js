// The page's five minutes of samples, when its clock is set and links come and go.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test, { mock } from 'node:test';

import ts from 'typescript';

const source = readFileSync(new URL('../src/samples.ts', import.meta.url), 'utf8');
const { outputText } = ts.transpileModule(source, {
  compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 },
});
const { Samples } = await import(`data:text/javascript,${encodeURIComponent(outputText)}`);

/** What the program answers `number` readings after its start, five a second, if it has `links`. */
function state(number, links = ['wwan0']) {
  const now_ms = number * 200;
  const row = [number, now_ms, null, null, links.map((_, place) => [place, 1, 1, 30, 0, true])];
  return { run: 'a', now_ms, samples: { names: links, rows: [row] } };
}

test('a clock that is set leaves the samples in order, and no more of them', () => {
  let now = 1.8e12;
  mock.method(Date, 'now', () => now);
  const samples = new Samples();
  for (let number = 1; number <= 6_000; number += 1) {
    now += 200;
    if (number % 1_000 === 0) now -= 3_600_000;
    // An answer that was long on its way.
    const late = number % 700 === 0 ? 4_000 : 0;
    now += late;
    samples.take(state(number));
    now -= late;
    const times = samples.all.map((sample) => sample.at);
    assert(times.every((at, place) => place === 0 || at > times[place - 1]), `${number}`);
    assert(times.length <= 1_600 && times.at(-1) * 1e3 <= now + late, `${number}: ${times.length}`);
  }
  assert(samples.all.length >= 1_480, `${samples.all.length}`);
  // Another run has the same time for all.
  const rows = Array.from({ length: 5_000 }, (_, place) => [place + 1, 1, null, null, []]);
  samples.take({ run: 'b', now_ms: 1, samples: { names: [], rows } });
  assert.equal(samples.all.length, 1_600);
  mock.restoreAll();
});

test('a link keeps its colour when another one is gone', () => {
  const samples = new Samples();
  let number = 0;
  const take = (links) => samples.take(state((number += 1), links));
  take(['wwan0', 'wwan1', 'usb-sat']);
  mock.method(Date, 'now', () => 1.8e12 + number * 200);
  for (let more = 0; more < 1_700; more += 1) take(['wwan1', 'usb-sat']);
  assert.deepEqual([...samples.places], [['wwan1', 1], ['usb-sat', 2]]);
  take(['wwan1', 'usb-sat', 'wlan0']);
  assert.equal(samples.places.get('wlan0'), 0);
  mock.restoreAll();
});
