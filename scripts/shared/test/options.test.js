import assert from 'node:assert/strict';
import test from 'node:test';

import { geometricMean } from '../figures.js';
import { HELP as DOWNLOADS } from '../../downloads/options.js';
import { HELP as VOD } from '../../vod/options.js';

test('every option is explained', () => {
  for (const option of ['profiles', 'drives', 'requests']) assert.match(DOWNLOADS, new RegExp(`--${option} `));
  for (const option of ['drive', 'cmcd', 'buffer']) assert.match(VOD, new RegExp(`--${option} `));
});

test('the geometric mean of ratios', () => {
  assert.ok(Math.abs(geometricMean([0.5, 2, 8]) - 2) < 1e-9);
  assert.equal(geometricMean([]), null);
});
