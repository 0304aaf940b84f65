// Network namespaces, what joins them, and the processes in them; only inside a sandbox.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, readFileSync } from 'node:fs';
import path from 'node:path';

import { run, SCRATCH } from './sandbox.js';

/** Adds the namespace `name`, with its loopback up. */
export function addNamespace(name) {
  run('ip', 'netns', 'add', name);
  ip(name, 'link set lo up');
}

/** Joins two namespaces by a pair of interfaces: `[namespace, interface, address]` twice. */
export function connect([left, leftInterface, leftAddress], [right, rightInterface, rightAddress]) {
  run('ip', 'link', 'add', leftInterface, 'netns', left, 'type', 'veth',
    'peer', 'name', rightInterface, 'netns', right);
  ip(left, `address add ${leftAddress} dev ${leftInterface}`);
  ip(right, `address add ${rightAddress} dev ${rightInterface}`);
  ip(left, `link set ${leftInterface} up`);
  ip(right, `link set ${rightInterface} up`);
}

/** The words that run `command` in the namespace `name`. */
export const inside = (name, command) => ['nsenter', `--net=/run/netns/${name}`, '--', ...command];

/** Sets `value` at `place` of /proc/sys, as in `net/ipv4/ip_forward`, in the namespace `name`. */
export function setKernel(name, place, value) {
  run(...inside(name, ['sh', '-c', `echo ${value} > /proc/sys/${place}`]));
}

/** Runs `ip` in the namespace `name` with the words of `command`. */
export function ip(name, command) {
  run('ip', '-n', name, ...command.split(' '));
}

/** A process that runs until it is stopped; what it writes goes to a log. */
export class Daemon {
  /**
   * @param {string} name what messages call it, and its log
   * @param {string[]} command program and arguments
   * @param {string} [namespace] where it runs; absent: where this does
   */
  constructor(name, command, namespace) {
    const [program, ...words] = namespace === undefined ? command : inside(namespace, command);
    this.name = name;
    this.log = path.join(SCRATCH, `${name}.log`);
    this.child = spawn(program, words, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.output = '';
    this.child.stdout.setEncoding('utf8').on('data', (text) => {
      this.output += text;
    });
    this.child.stderr.pipe(createWriteStream(this.log));
    this.ended = once(this.child, 'close');
  }

  /** Throws when it has ended, with what it said last. */
  checkRunning() {
    if (this.child.exitCode === null && this.child.signalCode === null) return;
    const words = readFileSync(this.log, 'utf8').trim().split('\n').slice(-5).join('\n');
    throw new Error(`${this.name} has ended (${this.child.exitCode ?? this.child.signalCode}):\n${words}`);
  }

  signal(signal) {
    this.child.kill(signal);
  }

  /** Ends it and resolves to what it wrote to standard output. */
  async stop() {
    this.checkRunning();
    this.child.kill('SIGTERM');
    const killer = setTimeout(() => this.child.kill('SIGKILL'), 3_000);
    await this.ended;
    clearTimeout(killer);
    return this.output;
  }
}
