// Figures of several runs.

/** The mean of what is known, null if nothing is. */
export function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length === 0 ? null : known.reduce((total, value) => total + value, 0) / known.length;
}

/** The value below which the share `share` of `values` lies: nearest rank. */
export function quantile(values, share) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** The geometric mean of `values`, null if there are none. */
export function geometricMean(values) {
  return values.length === 0 ? null : Math.exp(mean(values.map(Math.log)));
}
