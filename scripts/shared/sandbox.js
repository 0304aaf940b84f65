// This program runs itself again inside fresh namespaces, and nothing of it survives.
//
//   node (outside) ---- waits, hands on signals
//      +-- setpriv, unshare ---- mount, net, pid and, when not root, user namespace
//            +-- node (inside): pid 1, all others are its children
//
// Whatever ends the outer program, the kernel ends unshare with it, that ends pid 1, and with pid 1
// the kernel ends every process of the namespace; with the last of them go the mounts, the network
// namespaces and their interfaces. `roadweave demo` does the same (crates/linux/src/netns).

import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { accessSync, mkdirSync, readlinkSync } from 'node:fs';
import os from 'node:os';

/** Where files may be left inside: in memory, gone with the sandbox. */
export const SCRATCH = '/run/scratch';

/**
 * Outside: runs `script` again with `args` inside and resolves to its exit code.
 * Inside: makes /run private and resolves to `undefined`.
 */
export async function enter(script, args) {
  const mark = process.env[MARK];
  if (mark !== undefined) return setUpInside(mark);
  const words = ['--mount', '--net', '--pid', '--fork', '--kill-child', '--mount-proc'];
  if (process.getuid() !== 0) words.push('--user', '--map-root-user');
  probe(words);
  const command = ['--pdeathsig', 'KILL', 'unshare', ...words, '--', process.execPath, script, ...args];
  // A group of its own: what the terminal sends comes once, through us.
  const child = spawn('setpriv', command, {
    detached: true,
    stdio: ['ignore', 'inherit', 'inherit'],
    // Browsers leave folders where TMPDIR says.
    env: { ...process.env, TMPDIR: SCRATCH, [MARK]: namespaceOfMounts() },
  });
  handOnSignals(child);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', (code, signal) => resolve(code ?? 128 + os.constants.signals[signal]));
  });
}

/** Throws with the cure when a sandbox cannot be had here. */
function probe(words) {
  const tried = spawnSync('unshare', [...words, '--', 'true'], { encoding: 'utf8' });
  if (tried.error || tried.status !== 0) {
    const why = (tried.stderr || tried.error?.message || '').trim();
    throw new Error(`namespaces cannot be had here (${why}): run as root, or allow unprivileged user namespaces`);
  }
  accessSync('/dev/net/tun');
}

/** The first signal goes to the group inside; a second, or three seconds, kill it. */
function handOnSignals(child) {
  let asked = false;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
    process.on(signal, () => {
      if (asked) return child.kill('SIGKILL');
      asked = true;
      process.kill(-child.pid, signal);
      return setTimeout(() => child.kill('SIGKILL'), 3_000).unref();
    });
  }
}

function setUpInside(mark) {
  // The mark alone might come from anywhere; mounting over the real /run would do harm.
  if (mark === namespaceOfMounts()) throw new Error(`${MARK} is set, but this is not a sandbox: unset it`);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
    process.on(signal, () => {
      console.error('\ninterrupted; nothing is left behind');
      process.exit(130);
    });
  }
  run('mount', '-t', 'tmpfs', '-o', 'nosuid,nodev,mode=0755', 'roadweave', '/run');
  for (const folder of ['/run/netns', '/run/roadweave', SCRATCH]) mkdirSync(folder, { recursive: true });
  run('ip', 'link', 'set', 'lo', 'up');
}

/** Runs a program to its end; a failure is told by what it said. */
export function run(program, ...words) {
  try {
    return execFileSync(program, words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  } catch (error) {
    const said = String(error.stderr ?? '').trim() || error.message;
    throw new Error(`${program} ${words.join(' ')}: ${said}`);
  }
}

const namespaceOfMounts = () => readlinkSync('/proc/self/ns/mnt');
const MARK = 'ROADWEAVE_SCRIPT_SANDBOX';
