// The table for people.

import { mean } from '../shared/figures.js';
import { fixed, percent, table } from '../shared/table.js';

/** What is told of each setting: `[head, cell]`. */
export const COLUMNS = [
  ['setting', ({ setting }) => setting],
  ['first picture, s', (figures) => fixed(figures.first_frame_ms / 1_000, 2)],
  ['stalls', ({ stalls }) => String(stalls)],
  ['stalled, s', (figures) => fixed(figures.stalled_ms / 1_000, 1)],
  ['rebuffer ratio', (figures) => percent(figures.rebuffer_ratio, 1)],
  ['chunk p50, s', (figures) => fixed(figures.chunk_ms.p50 / 1_000, 2)],
  ['p95', (figures) => fixed(figures.chunk_ms.p95 / 1_000, 2)],
  ['p99', (figures) => fixed(figures.chunk_ms.p99 / 1_000, 2)],
  ['buffer, s', (figures) => fixed(figures.buffer_s, 1)],
  ['dropped', (figures) => percent(figures.frames_dropped / figures.frames, 1)],
  ['overhead', ({ viewings }) => percent(mean(viewings.map(({ overhead }) => overhead)) ?? NaN, 0)],
  ['copies', ({ viewings }) => percent(mean(viewings.map(({ redundancy }) => redundancy)) ?? NaN, 1)],
  ['others %', ({ viewings }) => fixed(mean(viewings.map((viewing) => viewing.cpu_others_percent)), 0)],
];

/** `results` as text. */
export function tables({ settings }) {
  const rows = settings.map((figures) => COLUMNS.map(([, cell]) => cell(figures)));
  const parts = [table(COLUMNS.map(([head]) => head), rows)];
  const disturbed = settings
    .filter(({ viewings }) => mean(viewings.map((viewing) => viewing.cpu_others_percent)) > 10)
    .map(({ setting }) => setting);
  if (disturbed.length > 0) {
    parts.push(`Others kept the processors busy meanwhile, which falsifies the figures: ${disturbed.join(', ')}.`);
  }
  return parts.join('\n\n');
}
