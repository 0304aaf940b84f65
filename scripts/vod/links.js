// Two links of a moving vehicle whose rates change all the time, from a seed.
//
//   wifi        12 Mbit/s at the median, nearly nothing for seconds where access points end
//   cellular    9 Mbit/s at the median, slower and faster for many seconds at a time
//
// The logarithm of a rate wanders: each step keeps a share of the distance to its median and adds
// chance, which makes both the spread and the memory of what phones and cars measure: 0.9 from one
// half second to the next.

import { writeFileSync } from 'node:fs';
import path from 'node:path';

import { generator } from '../shared/random.js';
import { SCRATCH } from '../shared/sandbox.js';

/** `spread` is the standard deviation of the logarithm; gaps come every `everyS` on average. */
export const LINKS = [
  { name: 'wifi', mbps: 12, spread: 0.5, delayMs: 10, loss: 0.001, gap: { everyS: 15, lengthS: 3, mbps: 0.3 } },
  { name: 'cellular', mbps: 9, spread: 0.7, delayMs: 35, loss: 0.001, gap: { everyS: 30, lengthS: 2, mbps: 0.3 } },
];

/** Both links for a `Road`, for `seconds`. */
export function syntheticLinks({ seconds, seed }) {
  return LINKS.map((link) => {
    const file = path.join(SCRATCH, `${link.name}.csv`);
    writeFileSync(file, recording(link, { seconds, seed }));
    return { name: link.name, fields: `trace = "${file}"\ntrace_down = "${file}"` };
  });
}

/** The recording of `link`, as docs/traces.md describes it. */
export function recording(link, { seconds, seed }) {
  const random = generator(seed, link.name);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const lines = ['t_ms,capacity_kbps,delay_ms,loss'];
  let wandering = normal();
  let gapLeft = 0;
  for (let ms = 0; ms < 1_000 * seconds; ms += STEP_MS) {
    wandering = MEMORY * wandering + Math.sqrt(1 - MEMORY ** 2) * normal();
    const begins = random() < STEP_MS / 1_000 / link.gap.everyS;
    if (begins && gapLeft <= 0) gapLeft = -Math.log(1 - random()) * link.gap.lengthS * 1_000;
    const mbps = gapLeft > 0 ? link.gap.mbps : link.mbps * Math.exp(link.spread * wandering);
    gapLeft -= STEP_MS;
    lines.push([ms, Math.round(1_000 * mbps), link.delayMs, link.loss].join(','));
  }
  return [...lines, ''].join('\n');
}

const STEP_MS = 500;
const MEMORY = 0.9;
