// What the processors did: for this call, and for others.

import { readdirSync, readFileSync } from 'node:fs';

/**
 * Processor time so far, in the kernel's ticks: `all` of the machine, `busy` of it, and `ours`, of
 * the processes that run now. Inside the sandbox /proc shows no others.
 */
export function processorTimes() {
  const [, ...ticks] = readFileSync('/proc/stat', 'utf8').split('\n')[0].trim().split(/\s+/);
  // user, nice, system, idle, iowait, irq, softirq, steal; those of guests are in the first two.
  const times = ticks.slice(0, 8).map(Number);
  const all = times.reduce((total, value) => total + value, 0);
  const processes = readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name));
  const ours = processes.reduce((total, id) => total + processTime(id), 0);
  return { all, busy: all - times[3] - times[4], ours };
}

/** User and system time of process `id`; 0 when it has just ended. */
function processTime(id) {
  try {
    const text = readFileSync(`/proc/${id}/stat`, 'utf8');
    // The name of the program is in parentheses, and may hold anything.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return Number(fields[11]) + Number(fields[12]);
  } catch {
    return 0;
  }
}
