// Chance that repeats.

import { createHash } from 'node:crypto';

/** A generator of numbers in [0, 1), decided by `seed` and `name`. */
export function generator(seed, name) {
  let drawn = 0;
  return () => {
    const digest = createHash('sha256').update(`${seed} ${name} ${drawn}`).digest();
    drawn += 1;
    return digest.readUIntBE(0, 6) / 2 ** 48;
  };
}
