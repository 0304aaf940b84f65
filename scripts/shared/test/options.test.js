import assert from 'node:assert/strict';
import test from 'node:test';

import { megabits } from '../options.js';

test('a rate has a unit or is of megabits', () => {
  const read = (bitrate) => megabits({ bitrate }, 'bitrate', { from: 1, to: 100 });
  for (const text of ['8', '8M', '8m', '8000k', '0.008G', '8000000']) assert.equal(read(text), 8, text);
  for (const text of ['', 'M', '-8', '0', '2.5', '101', '1e1', '8 M', 'fast']) {
    assert.throws(() => read(text), /--bitrate: .*; a whole number of Mbit\/s from 1 to 100, as 8M or 8/, text);
  }
});
