import assert from 'node:assert/strict';
import test from 'node:test';

import { laterBegin } from '../drives.js';

test('a recording begins later and goes on with its beginning', () => {
  const csv = 't_ms,capacity_kbps,rtt_ms\n0,10,60\n100,20,\n200,30,70\n300,40,\n';
  assert.equal(laterBegin(csv, 0.5), 't_ms,capacity_kbps,rtt_ms\n0,30,70\n100,40,70\n200,10,60\n300,20,60\n');
  assert.equal(laterBegin(csv, 0), 't_ms,capacity_kbps,rtt_ms\n0,10,60\n100,20,60\n200,30,70\n300,40,70\n');
});
