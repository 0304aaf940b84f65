// The two links of the call: recordings in which losses come in bursts, and delays drift.
//
//             90 ms     _______                        160 ms    _
//   link a  30 ms ____/       \____     link b  60 ms _________/ \_____
//           nothing arrives for 2 % of       nothing arrives for 15 % of
//           the time, 25 ms at once          the time, 200 ms at once
//
// The shares of loss are those of the paper's table III. It tells neither how long a burst lasts
// nor the delays. Bursts of 25 ms make 0.8 gaps a second on the better link, as many as packets
// timed out with 10 ms of buffer (table IV); link a is the slower one for a quarter of the time,
// since a quarter of the paper's packets came first by its worse link; and link b is late by more
// than 100 ms now and then, since gaps outlasted 100 ms of buffer now and then. Delays drift rather
// than jump: a browser takes a delay that jumps for a queue and sends less, whatever is lost or
// late.
//
// A burst is a stretch of time, not a number of packets: every setting meets the same ones, however
// much it sends. The shares hold exactly within the length of the recording.

import { generator } from '../shared/random.js';

/**
 * What each link is like: times in ms, shares 0..1 of the time. `slower` lasts `lengthMs` with the
 * drifts at its begin and end.
 */
export const LINKS = [
  {
    name: 'a',
    rateKbps: 40_000,
    delayMs: 30,
    slower: { delayMs: 90, share: 0.4, lengthMs: 10_000, driftMs: 4_000 },
    loss: { share: 0.02, lengthMs: 25 },
  },
  {
    name: 'b',
    rateKbps: 40_000,
    delayMs: 60,
    slower: { delayMs: 160, share: 0.12, lengthMs: 7_000, driftMs: 3_000 },
    loss: { share: 0.15, lengthMs: 200 },
  },
];

/**
 * Recordings of all `LINKS`, `[{ name, csv }]`, that last `seconds`.
 *
 * @param {object} options
 * @param {number} options.seconds whole seconds, at least 5
 * @param {number} options.seed decides all that is random
 * @param {boolean} options.together whether both links may lose at the same moment, as chance has
 *   it; otherwise never, as almost never in the paper (4 of 170,445 packets)
 * @param {boolean} options.steady whether delays stay what they are
 */
export function recordings({ seconds, seed, together, steady }) {
  const lengthMs = seconds * 1_000;
  const taken = [];
  // The link that loses most first: what remains is roomy for the others.
  const byLoss = [...LINKS].sort((one, other) => other.loss.share - one.loss.share);
  const bursts = new Map();
  for (const link of byLoss) {
    const random = generator(seed, `${link.name} loss`);
    const avoid = together ? [] : taken;
    const draw = () => Math.max(0.05, -Math.log(1 - random()));
    bursts.set(link.name, stretches({ ...link.loss, within: lengthMs, avoid, random, draw }));
    taken.push(...bursts.get(link.name));
  }
  return LINKS.map((link) => {
    const random = generator(seed, `${link.name} delay`);
    const slow = steady ? [] : stretches({ ...link.slower, within: lengthMs, avoid: [], random, draw: () => 1 });
    return { name: link.name, csv: csv(link, bursts.get(link.name), slow, lengthMs) };
  });
}

/** The recording as `roadweave emulate` reads it, see docs/traces.md. */
function csv(link, bursts, slow, lengthMs) {
  const rows = new Map([[0, [link.rateKbps, link.delayMs, 0]]]);
  const at = (ms) => rows.get(ms) ?? rows.set(ms, ['', '', '']).get(ms);
  for (const [from, to] of slow) {
    for (let ms = from; ms < to; ms = round(ms + DRIFT_STEP_MS)) at(ms)[1] = driftingDelay(link, ms - from, to - ms);
    if (to < lengthMs) at(to)[1] = link.delayMs;
  }
  for (const [from, to] of bursts) {
    at(from)[2] = 1;
    if (to < lengthMs) at(to)[2] = 0;
  }
  const lines = [...rows].sort(([one], [other]) => one - other);
  // The last row lasts as long as the one before it: one more row sets the end.
  const last = lines.at(-1)[0];
  const middle = (last + lengthMs) / 2;
  return ['t_ms,capacity_kbps,delay_ms,loss', ...lines.map(([ms, cells]) => [ms, ...cells].join(',')),
    `${middle},,,`, ''].join('\n');
}

/** The delay `since` the begin of a slower stretch and `left` before its end. */
function driftingDelay({ delayMs, slower }, since, left) {
  const drift = Math.min(slower.driftMs, (since + left) / 2);
  return round(delayMs + (slower.delayMs - delayMs) * Math.min(1, since / drift, left / drift));
}

/**
 * Stretches of time `[[from, to], ..]`, ascending, that overlap neither each other nor those of
 * `avoid`: in lengths as `draw` relates them, `lengthMs` on average, the share `share` of `within`
 * altogether.
 */
function stretches({ share, lengthMs, within, avoid, random, draw }) {
  const count = Math.max(1, Math.round((share * within) / lengthMs));
  const drawn = Array.from({ length: count }, draw);
  const sum = drawn.reduce((total, length) => total + length, 0);
  const found = [];
  // The longest first, while there is room for them.
  for (const length of drawn.sort((one, other) => other - one)) {
    const span = round((length / sum) * share * within);
    for (let attempt = 0; ; attempt += 1) {
      if (attempt === ATTEMPTS_MAX) throw new Error('the losses of the links do not fit beside each other');
      const from = round(random() * (within - span));
      const free = ([begin, end]) => from >= end || from + span <= begin;
      if (found.every(free) && avoid.every(free)) {
        found.push([from, round(from + span)]);
        break;
      }
    }
  }
  return found.sort(([one], [other]) => one - other);
}

/** Times are written to the microsecond. */
const round = (ms) => Math.round(ms * 1_000) / 1_000;

const ATTEMPTS_MAX = 100_000;
const DRIFT_STEP_MS = 20;
