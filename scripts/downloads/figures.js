// From single downloads to figures of a case, and from cases to means.

import { geometricMean, quantile } from '../shared/figures.js';

/** What is asked for with `--requests`, bytes. */
export const REQUEST_BYTES = [32_000, 200_000, 2_000_000];

/**
 * The figures of one case with one congestion control.
 *
 * @param {object[]} runs of downloads: `{ way, bytes, seconds }`; ways are `link:NAME`, `mptcp`,
 *   `tunnel`, `stream`, `split`, and `alone:NAME`, a stream over that link alone
 * @param {object[]} requests `{ way, size, bytes, seconds }`
 */
export function summarize(runs, requests) {
  const mbps = {};
  for (const way of new Set(runs.map((run) => run.way))) {
    const own = runs.filter((run) => run.way === way);
    mbps[way] = quantile(own.map(({ bytes, seconds }) => (8 * bytes) / seconds / 1e6), 0.5);
  }
  const best = Object.keys(mbps)
    .filter((way) => way.startsWith('link:'))
    .reduce((one, other) => (mbps[other] > mbps[one] ? other : one));
  return { mbps, best, ratios: ratios(runs, mbps, best), requests: requestFigures(requests) };
}

/** What a stream gets by what another way gets. */
function ratios(runs, mbps, best) {
  // A link that was best in one round only has one figure: in each round by itself.
  const alone = runs.filter(({ way }) => way.startsWith('alone:')).map((run) => {
    const link = runs.find(({ way, round }) => way === run.way.replace('alone:', 'link:') && round === run.round);
    return (run.bytes / run.seconds) / (link.bytes / link.seconds);
  });
  return {
    'stream/best link': mbps.stream / mbps[best],
    'stream/mptcp': mbps.stream / mbps.mptcp,
    'stream/tunnel': mbps.stream / mbps.tunnel,
    'split/tunnel': mbps.split / mbps.tunnel,
    'alone/link': quantile(alone, 0.5),
  };
}

/** Quantiles of seconds for each size and way; a request that was cut off counts as so long. */
function requestFigures(requests) {
  const figures = {};
  for (const { way, size } of requests) {
    const own = requests.filter((request) => request.way === way && request.size === size);
    const seconds = own.map((request) => request.seconds);
    (figures[size] ??= {})[way] ??= { p50: quantile(seconds, 0.5), p99: quantile(seconds, 0.99), count: own.length };
  }
  return figures;
}

/** Over all `cases` of a congestion control: each ratio's geometric mean, least, and count. */
export function overall(cases) {
  const names = Object.keys(cases[0].ratios);
  return Object.fromEntries(names.map((name) => {
    const values = cases.map(({ ratios: own }) => own[name]);
    const below = values.filter((value) => value < 1).length;
    return [name, { geometric_mean: geometricMean(values), least: Math.min(...values), below_1: below, cases: values.length }];
  }));
}
