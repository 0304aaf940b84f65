// Tables for people.

import { fixed, table } from '../shared/table.js';
import { REQUEST_BYTES } from './figures.js';

/** The line of one case, as soon as it is done. */
export function caseLine({ name, congestion, mbps, ratios }) {
  const rates = Object.entries(mbps).map(([way, rate]) => `${way} ${fixed(rate, 1)}`);
  return `${name}, ${congestion}: ${rates.join(', ')}; stream/mptcp ${fixed(ratios['stream/mptcp'], 2)}`;
}

/** All tables of `results`, as text. */
export function tables({ cases, means }) {
  const parts = [caseTable(cases), meanTable(means)];
  const asked = cases.filter(({ requests }) => Object.keys(requests).length > 0);
  if (asked.length > 0) parts.push(requestTable(asked));
  return parts.join('\n\n');
}

/** Medians in Mbit/s, and what they are by each other. */
function caseTable(cases) {
  const row = ({ name, congestion, mbps, best, ratios }) => [
    name, congestion, best.slice('link:'.length),
    ...[best, 'mptcp', 'tunnel', 'stream', 'split'].map((way) => fixed(mbps[way], 1)),
    ...Object.values(ratios).map((ratio) => fixed(ratio, 2)),
  ];
  return table(['links', 'kernel', 'best', 'best link', 'mptcp', 'tunnel', 'stream', 'split', ...Object.keys(cases[0].ratios)],
    cases.map(row));
}

function meanTable(means) {
  const rows = means.flatMap(({ group, ratios }) => Object.entries(ratios).map(([name, figures]) => [
    group, name, fixed(figures.geometric_mean, 2), fixed(figures.least, 2), `${figures.below_1} of ${figures.cases}`,
  ]));
  return table(['over all', 'ratio', 'geometric mean', 'least', 'below 1'], rows);
}

/** Seconds of requests: the median, and the slowest of a hundred. */
function requestTable(cases) {
  const ways = ['best link', 'mptcp', 'tunnel', 'stream', 'split'];
  const rows = cases.flatMap(({ name, congestion, requests }) => REQUEST_BYTES.map((size) => [
    name, congestion, size / 1_000,
    ...ways.flatMap((way) => [fixed(requests[size][way].p50, 3), fixed(requests[size][way].p99, 3)]),
  ]));
  return table(['requests, s', 'kernel', 'kB', ...ways.flatMap((way) => [way, 'p99'])], rows);
}
