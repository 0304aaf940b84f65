// Numbers as people read them.

const DASH = '–';

/** Mbit/s with about three digits. */
export function megabits(bps: number | null | undefined): string {
  if (bps === null || bps === undefined) return DASH;
  const value = bps / 1e6;
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

export function milliseconds(ms: number | null | undefined): string {
  return ms === null || ms === undefined ? DASH : ms.toFixed(0);
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? DASH : (share * 100).toFixed(1);
}

/** Bytes with a unit, by thousands as contracts count them. */
export function bytes(count: number): string {
  const [unit, size] = count >= 1e9 ? ['GB', 1e9] : count >= 1e6 ? ['MB', 1e6] : ['kB', 1e3];
  const value = count / Number(size);
  return `${value.toFixed(value < 9.95 ? 1 : 0)} ${unit}`;
}

/** How long ago, in the largest unit that fits. */
export function ago(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

export function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1)} s`;
}

const TECHNOLOGIES: Record<string, string> = {
  wired: 'cable',
  '5g-sa': '5G',
  '5g-nsa': '5G (NSA)',
  wifi: 'WiFi',
  lte: 'LTE or 5G',
  satellite: 'satellite',
};

export function technology(name: string | null): string | null {
  return name === null ? null : (TECHNOLOGIES[name] ?? name);
}
