import assert from 'node:assert/strict';
import test from 'node:test';

import { geometricMean } from '../figures.js';
import { HELP as DOWNLOADS } from '../../downloads/options.js';
import { HELP as VOD } from '../../vod/options.js';
import { megabits } from '../options.js';

test('every option is explained', () => {
  for (const option of ['profiles', 'drives', 'requests']) assert.match(DOWNLOADS, new RegExp(`--${option} `));
  for (const option of ['drive', 'cmcd', 'buffer']) assert.match(VOD, new RegExp(`--${option} `));
});

test('a rate has a unit or is of megabits', () => {
  const read = (bitrate) => megabits({ bitrate }, 'bitrate', { from: 1, to: 100 });
  for (const text of ['8', '8M', '8m', '8000k', '0.008G', '8000000']) assert.equal(read(text), 8, text);
  for (const text of ['', 'M', '-8', '0', '2.5', '101', '1e1', '8 M', 'fast']) {
    assert.throws(() => read(text), /--bitrate: .*; a whole number of Mbit\/s from 1 to 100, as 8M or 8/, text);
  }
});

test('the geometric mean of ratios', () => {
  assert.ok(Math.abs(geometricMean([0.5, 2, 8]) - 2) < 1e-9);
  assert.equal(geometricMean([]), null);
});
