// What is downloaded over: pairs of links with constant figures, and recorded drives.

import path from 'node:path';

import { driveLinks, linksOfDrive } from '../shared/drives.js';

/**
 * The sixteen pairs of `roadweave lab profiles` (crates/lab/src/profiles.rs):
 * `[one-way delay ms, its deviation ms, lost per mille, Mbit/s]`.
 */
export const PROFILES = Object.fromEntries(Object.entries({
  baseline: [[20, 0, 0, 50], [20, 0, 0, 50]],
  rtt_40: [[20, 0, 0, 50], [40, 0, 0, 50]],
  rtt_70: [[20, 0, 0, 50], [70, 0, 0, 50]],
  rtt_120: [[20, 0, 0, 50], [120, 0, 0, 50]],
  rtt_320: [[20, 0, 0, 50], [320, 0, 0, 50]],
  jit_5: [[20, 5, 0, 50], [20, 5, 0, 50]],
  jit_20: [[20, 20, 0, 50], [20, 20, 0, 50]],
  loss_05: [[20, 0, 5, 50], [20, 0, 5, 50]],
  loss_2: [[20, 0, 20, 50], [20, 0, 20, 50]],
  bw_4to1: [[20, 0, 0, 50], [20, 0, 0, 12]],
  bw_10to1: [[20, 0, 0, 100], [20, 0, 0, 10]],
  dual_lte: [[30, 5, 5, 40], [45, 8, 5, 25]],
  fiber_lte: [[8, 0, 0, 300], [40, 8, 5, 30]],
  lte_starlink: [[35, 8, 0, 40], [50, 25, 10, 100]],
  lte_geo: [[35, 0, 0, 40], [320, 20, 5, 20]],
  congested: [[50, 20, 20, 20], [60, 25, 20, 15]],
}).map(([name, links]) => [name, links.map(([delayMs, jitterMs, lossPerMille, mbps]) => (
  { delayMs, jitterMs, lossPerMille, mbps }
))]));

/** A case of a profile: in every round the same links. */
export function profileCase(name) {
  const links = PROFILES[name];
  if (links === undefined) throw new Error(`${name}: no such profile; there are ${Object.keys(PROFILES).join(', ')}`);
  const fields = ({ delayMs, jitterMs, lossPerMille, mbps }) => [
    `rate_kbps = ${1_000 * mbps}`,
    `delay_ms = ${delayMs}`,
    ...(jitterMs > 0 ? [`jitter_ms = ${jitterMs}`, 'reorder = true'] : []),
    ...(lossPerMille > 0 ? [`loss = ${lossPerMille / 1_000}`] : []),
    // That of `tc netem`: 1,000 packets.
    'queue_bytes = 1500000',
  ].join('\n');
  return {
    kind: 'profile',
    name,
    names: ['a', 'b'],
    links: () => links.map((link, index) => ({ name: 'ab'[index], fields: fields(link) })),
  };
}

/**
 * A case of the recorded drive in `folder`: each of `rounds` rounds begins at another moment of it.
 */
export function driveCase(folder, rounds) {
  return {
    kind: 'drive',
    name: path.basename(folder),
    names: linksOfDrive(folder),
    links: (round) => driveLinks(folder, round / rounds),
  };
}
