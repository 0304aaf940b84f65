import assert from 'node:assert/strict';
import test from 'node:test';

import { quantile } from '../../shared/figures.js';
import { LINKS, recording } from '../links.js';
import { parseOptions } from '../options.js';
import { parseSetting } from '../settings.js';

/** The rates of an hour of `link`, Mbit/s. */
function rates(link, seed = 3) {
  const [, ...lines] = recording(link, { seconds: 3_600, seed }).trim().split('\n');
  return lines.map((line) => Number(line.split(',')[1]) / 1_000);
}

test('a link has its median, its spread, and its gaps', () => {
  for (const link of LINKS) {
    const all = rates(link);
    const open = all.filter((rate) => rate !== link.gap.mbps);
    assert.ok(Math.abs(quantile(open, 0.5) / link.mbps - 1) < 0.15, `${link.name}: ${quantile(open, 0.5)}`);
    const spread = Math.log(quantile(open, 0.84) / quantile(open, 0.16)) / 2;
    assert.ok(Math.abs(spread / link.spread - 1) < 0.2, `${link.name}: ${spread}`);
    const gone = 1 - open.length / all.length;
    const expected = link.gap.lengthS / (link.gap.everyS + link.gap.lengthS);
    assert.ok(Math.abs(gone - expected) < 0.05, `${link.name}: ${gone}, not ${expected}`);
  }
});

test('the seed decides', () => {
  assert.deepEqual(rates(LINKS[0]), rates(LINKS[0]));
  assert.notDeepEqual(rates(LINKS[0]), rates(LINKS[0], 4));
});

test('settings are single links, MPTCP, the tunnel, and streams with a strategy', () => {
  const links = ['wifi', 'cellular'];
  assert.deepEqual(parseSetting('single:cellular', links), { name: 'single:cellular', way: 'single', link: 'cellular' });
  assert.deepEqual(parseSetting('streams@xlink', links), { name: 'streams@xlink', way: 'streams', strategy: 'xlink' });
  assert.equal(parseOptions([]).settings.length, 7);
});

test('mistakes are told with the cure', () => {
  for (const [words, cure] of [
    [['--settings', 'single:lte'], /the links are wifi, cellular/],
    [['--settings', 'tunnel@xlink'], /not a setting/],
    [['--drive', '/none/such'], /no such folder/],
    [['--seconds', '1'], /a whole number from 5/],
    [['--height', '480'], /1080 or 720 or 360/],
  ]) assert.throws(() => parseOptions(words), cure);
});

test('what is given counts more than what --smoke stands for', () => {
  const smoke = parseOptions(['--smoke', '--seconds', '7']);
  assert.equal(smoke.seconds, 7);
  assert.deepEqual(smoke.settings.map(({ name }) => name), ['mptcp', 'streams']);
});
