import assert from 'node:assert/strict';
import test from 'node:test';

import { overall, summarize } from '../figures.js';
import { parseOptions } from '../options.js';
import { tables } from '../report.js';

const run = (way, round, mbps) => ({ way, round, bytes: 125_000 * mbps, seconds: 1 });
const near = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-9, `${value} is not ${expected}`);

/** Three rounds, in the last of which the other link was best. */
const RUNS = [0, 1, 2].flatMap((round) => [
  run('link:a', round, 20 + round), run('link:b', round, round === 2 ? 40 : 10), run('mptcp', round, 25),
  run('tunnel', round, 24), run('stream', round, 30 + round), run('split', round, 36), run(round === 2 ? 'alone:b' : 'alone:a', round, 20),
]);

test('a case is medians, and what they are by each other', () => {
  const { mbps, best, ratios } = summarize(RUNS, []);
  near(mbps['link:a'], 21);
  near(mbps.stream, 31);
  assert.equal(best, 'link:a');
  near(ratios['stream/best link'], 31 / 21);
  near(ratios['stream/mptcp'], 31 / 25);
  near(ratios['split/tunnel'], 36 / 24);
  // 20/20, 20/21 and 20/40: each by the same link in the same round.
  near(ratios['alone/link'], 20 / 21);
});

test('requests are quantiles for each size and way', () => {
  const requests = [1, 2, 3, 4].map((seconds) => ({ way: 'stream', size: 32_000, seconds }));
  assert.deepEqual(summarize(RUNS, requests).requests, { 32000: { stream: { p50: 2, p99: 4, count: 4 } } });
});

test('over all cases ratios are multiplied, and those below one counted', () => {
  const ratio = (value) => ({ ratios: { 'stream/mptcp': value } });
  const { 'stream/mptcp': figures } = overall([ratio(0.5), ratio(2), ratio(8)]);
  near(figures.geometric_mean, 2);
  near(figures.least, 0.5);
  assert.equal(figures.below_1, 1);
});

test('the tables have a row for each case', () => {
  const one = { kind: 'profile', name: 'rtt_40', congestion: 'bbr', ...summarize(RUNS, []) };
  const text = tables({ cases: [one], means: [{ group: 'profiles, bbr', ratios: overall([one]) }] });
  assert.match(text, /rtt_40 +bbr +a +21\.0 +25\.0 +24\.0 +31\.0 +36\.0 +1\.48 +1\.24/);
});

test('mistakes are told with the cure', () => {
  for (const [words, cure] of [
    [['--profiles', 'fast'], /no such profile; there are baseline/],
    [['--profiles', 'none'], /needs --drives/],
    [['--drives', '/none/such'], /no such folder/],
    [['--congestion', 'cubic;reboot'], /as in cubic,bbr/],
    [['--rounds', '0'], /a whole number from 1/],
  ]) assert.throws(() => parseOptions(words), cure);
});
