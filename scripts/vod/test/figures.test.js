import assert from 'node:assert/strict';
import test from 'node:test';

import { overhead, pauses, redundancy, summarize } from '../figures.js';
import { page } from '../page.js';
import { tables } from '../report.js';

const near = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-9, `${value} is not ${expected}`);

/** A viewing of 20 s: a pause of 1 s, and one of 3 s that is not over. */
const VIEWING = {
  setting: 'streams<1>',
  seed: 7,
  firstFrameMs: 400,
  ms: 20_000,
  positionS: 16,
  waits: [{ from: 5_000, to: 6_000 }, { from: 17_000, to: null }],
  samples: [{ ms: 1_000, bufferedS: 4, positionS: 1 }, { ms: 19_000, bufferedS: 0, positionS: 15 }],
  chunks: [300, 100, 200].map((ms) => ({ ms, bytes: 1_000 })),
  partBytes: 1_000,
  frames: { shown: 480, dropped: 12 },
  links: [{ down: { pushed_bytes: 3_000 } }, { down: { pushed_bytes: 2_000 } }],
  overhead: 0.25,
  redundancy: null,
  cpu_others_percent: 3,
};

test('a pause that is not over ends with the viewing', () => {
  assert.deepEqual(pauses(VIEWING), [{ from: 5_000, to: 6_000 }, { from: 17_000, to: 20_000 }]);
});

test('viewings are summed: pauses by what was played, chunks by their quantiles', () => {
  const figures = summarize([VIEWING, { ...VIEWING, waits: [], positionS: 24, firstFrameMs: null }]);
  assert.equal(figures.stalls, 2);
  near(figures.rebuffer_ratio, 4 / 40);
  near(figures.first_frame_ms, 400);
  assert.equal(figures.without_picture, 1);
  assert.deepEqual(figures.chunk_ms, { p50: 200, p95: 300, p99: 300 });
  near(figures.buffer_s, 2);
});

test('a viewer who saw nothing has waited all the time', () => {
  const nothing = { ...VIEWING, firstFrameMs: null, waits: [], positionS: 0 };
  near(summarize([nothing]).first_frame_ms, 20_000);
  assert.equal(summarize([nothing]).rebuffer_ratio, null);
});

test('overhead is what was sent beyond what arrived, the chunk under way included', () => {
  near(overhead(VIEWING), 0.25);
  assert.equal(overhead({ ...VIEWING, chunks: [], partBytes: 0 }), null);
});

test('redundancy is of all paths, and none without a tunnel', () => {
  const counters = (source, redundant) => ({ counters: { source_bytes: source, redundant_bytes: redundant } });
  near(redundancy({ sessions: [{ paths: [counters(300, 30), counters(100, 10)] }] }), 0.1);
  assert.equal(redundancy(null), null);
});

test('table and page tell of every setting, and the page quotes its name', () => {
  const film = { bitrateMbps: 8, chunkS: 4 };
  const settings = [{ setting: VIEWING.setting, ...summarize([VIEWING]), viewings: [VIEWING] }];
  const all = { film, seconds: 20, buffer_s: 8, congestion: 'cubic', settings };
  assert.match(tables(all), /streams<1> +0\.40 +2 +4\.0 +25\.0 %/);
  const html = page(all);
  assert.ok(!html.includes('streams<1>'));
  assert.equal(html.match(/<rect class="stall"/g).length, 2);
});
