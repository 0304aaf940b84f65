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

/**
 * The median of `values` and an interval that holds the median of what they are a sample of:
 * `{ median, low, high, confidence }`. It is the narrowest of two values at equal distance from the
 * ends that does so with 95 %, or all of them if they are too few (the binomial distribution of how
 * many are below the median, whatever theirs is).
 */
export function medianInterval(values) {
  const sorted = values.filter(Number.isFinite).sort((one, other) => one - other);
  const count = sorted.length;
  if (count === 0) return { median: null, low: null, high: null, confidence: 0 };
  const middle = Math.floor(count / 2);
  const median = count % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const confidenceWithout = (outer) => {
    let [term, tail] = [0.5 ** count, 0];
    for (let below = 0; below <= outer; below += 1) {
      tail += term;
      term *= (count - below) / (below + 1);
    }
    return Math.max(0, 1 - 2 * tail);
  };
  let outer = 0;
  while (2 * (outer + 1) < count && confidenceWithout(outer + 1) >= 0.95) outer += 1;
  return { median, low: sorted[outer], high: sorted[count - 1 - outer], confidence: confidenceWithout(outer) };
}
