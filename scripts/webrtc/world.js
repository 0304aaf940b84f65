// The namespaces of a call, as those of `roadweave demo`, and the processes in them.
//
//   vehicle ------- box ======= links ------- centre-router ------ centre
//   browser         tunnel      emulator's    tunnel               browser
//                               far ends
//   192.168.70.2    .1          198.51.100.1  .2     203.0.113.1   .2
//                       10.201.N.2 = 10.201.N.1   (one per link; the emulator's devices)
//
// No address is translated.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, readFileSync } from 'node:fs';
import path from 'node:path';

import { run, SCRATCH } from './sandbox.js';

export const VEHICLE_NETWORK = '192.168.70.0/24';
export const CENTRE_NETWORK = '203.0.113.0/24';
/** Where the tunnel's end in the data centre listens, and the network that it is in. */
export const ROUTER_ADDRESS = '198.51.100.2';

/** Builds the namespaces; only inside a sandbox. */
export function buildWorld() {
  for (const name of ['vehicle', 'box', 'links', 'centre-router', 'centre']) {
    run('ip', 'netns', 'add', name);
    ip(name, 'link set lo up');
  }
  connect(['vehicle', 'eth0', '192.168.70.2/24'], ['box', 'lan0', '192.168.70.1/24']);
  connect(['links', 'eth0', '198.51.100.1/24'], ['centre-router', 'wan0', `${ROUTER_ADDRESS}/24`]);
  connect(['centre-router', 'lan0', '203.0.113.1/24'], ['centre', 'eth0', '203.0.113.2/24']);
  for (const name of ['box', 'links', 'centre-router']) {
    run('nsenter', `--net=/run/netns/${name}`, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward');
  }
  ip('vehicle', 'route add default via 192.168.70.1');
  ip('centre', 'route add default via 203.0.113.1');
  ip('centre-router', 'route add 10.201.0.0/16 via 198.51.100.1');
  ip('links', `route add ${CENTRE_NETWORK} via ${ROUTER_ADDRESS}`);
}

/** Leads the call over link number `number` (from 1) alone, without a tunnel. */
export function routeOverLink(number) {
  ip('box', `route add ${CENTRE_NETWORK} via 10.201.${number}.1`);
  ip('links', `route add ${VEHICLE_NETWORK} via 10.201.${number}.2`);
  ip('centre-router', `route add ${VEHICLE_NETWORK} via 198.51.100.1`);
  return () => {
    ip('box', `route del ${CENTRE_NETWORK}`);
    ip('links', `route del ${VEHICLE_NETWORK}`);
    ip('centre-router', `route del ${VEHICLE_NETWORK}`);
  };
}

function connect([left, leftInterface, leftAddress], [right, rightInterface, rightAddress]) {
  run('ip', 'link', 'add', leftInterface, 'netns', left, 'type', 'veth',
    'peer', 'name', rightInterface, 'netns', right);
  ip(left, `address add ${leftAddress} dev ${leftInterface}`);
  ip(right, `address add ${rightAddress} dev ${rightInterface}`);
  ip(left, `link set ${leftInterface} up`);
  ip(right, `link set ${rightInterface} up`);
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
    const [program, ...words] =
      namespace === undefined ? command : ['nsenter', `--net=/run/netns/${namespace}`, '--', ...command];
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
