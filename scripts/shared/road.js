// A box and a host that hold TCP connections over several links: each link alone, kernel MPTCP,
// and the tunnel.
//
//   phone ── box ═══════════ links ═══════════ server ────────── host
//            10.201.N.2      emulated      10.201.N.1            .2  by the kernel's own routes
//                                          203.0.113.1           .3  into the tunnel,
//                                                                .4  and over one link alone
//
// The ways exist beside each other, so that they can take turns within seconds: what decides is
// the address of the host, and what the box routes.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { addNamespace, connect, Daemon, ip, setKernel } from './network.js';
import { run, SCRATCH } from './sandbox.js';
import { clientFile, FAR_TUN, serverFile } from './tunnel-files.js';

/** The host's addresses. */
export const HOST = { direct: '203.0.113.2', tunnel: '203.0.113.3', alone: '203.0.113.4' };
/** Where the box takes streams. */
export const STREAMS = { tunnel: '127.0.0.1:1080', alone: '127.0.0.1:1081' };
const SERVER = '198.51.100.1';
/** The TUN device of the box. */
const BOX_TUN = 'rw0';

/** Builds the namespaces; only inside a sandbox. */
export function buildRoad() {
  for (const name of ['phone', 'box', 'server', 'host']) addNamespace(name);
  connect(['box', 'lan0', '192.168.7.1/24'], ['phone', 'eth0', '192.168.7.2/24']);
  ip('phone', 'route add default via 192.168.7.1');
  setKernel('box', 'net/ipv4/ip_forward', 1);
  connect(['server', 'lan0', '203.0.113.1/24'], ['host', 'eth0', `${HOST.direct}/24`]);
  for (const address of [HOST.tunnel, HOST.alone]) ip('host', `address add ${address}/24 dev eth0`);
  ip('host', 'route add default via 203.0.113.1');
  ip('server', `address add ${SERVER}/32 dev lo`);
  setKernel('server', 'net/ipv4/ip_forward', 1);
  for (const name of ['box', 'host']) {
    setKernel(name, 'net/mptcp/enabled', 1);
    ip(name, 'mptcp limits set subflow 8 add_addr_accepted 8');
  }
}

/** The congestion control of every kernel on the road: `cubic`, `bbr`. */
export function setCongestion(name) {
  const allowed = readFileSync('/proc/sys/net/ipv4/tcp_allowed_congestion_control', 'utf8').trim();
  if (!allowed.split(' ').includes(name)) {
    throw new Error(`namespaces may use ${allowed} here; sysctl -w net.ipv4.tcp_allowed_congestion_control="${allowed} ${name}" as root adds ${name}`);
  }
  for (const namespace of ['phone', 'box', 'server', 'host']) setKernel(namespace, 'net/ipv4/tcp_congestion_control', name);
}

/** Further subflows that the box has joined so far: MPTCP that fell back to one path has none. */
export function joinedSubflows() {
  const text = run('nsenter', '--net=/run/netns/box', 'cat', '/proc/net/netstat');
  const lines = text.split('\n').filter((line) => line.startsWith('MPTcpExt:'));
  const [names, values] = lines.map((line) => line.split(' '));
  return Number(values[names.indexOf('MPJoinSynAckRx')]);
}

/** The emulated links, and what runs over them. */
export class Road {
  #daemons = [];

  /**
   * Opens the links; all earlier ones must be closed.
   *
   * @param {string} roadweave the program
   * @param {{ seed: number, links: { name: string, fields: string }[] }} links `fields` are further
   *   lines of `[[link]]`, see docs/lab.md
   */
  static async open(roadweave, { seed, links }) {
    const road = new Road();
    road.roadweave = roadweave;
    road.names = links.map(({ name }) => name);
    const parts = links.map(({ name, fields }) => `[[link]]\nname = "${name}"\n${fields}\n`);
    const file = path.join(SCRATCH, 'links.toml');
    writeFileSync(file, `seed = ${seed}\n[place]\nnear = "box"\nfar = "server"\n${parts.join('')}`);
    try {
      road.emulator = road.start('emulator', [roadweave, '--log', 'warn', 'emulate', '--json', '--config', file]);
      await road.until('the links are ready', () => road.emulator.output.includes('"ready":true'));
    } catch (error) {
      await road.close();
      throw error;
    }
    road.names.forEach((name, index) => {
      // What has a link's address leaves by that link: subflows of MPTCP.
      run('ip', '-n', 'box', 'route', 'replace', 'default', 'via', `10.201.${index + 1}.1`, 'dev', name,
        'table', String(FIRST_TABLE + index));
      if (index > 0) ip('box', `mptcp endpoint add 10.201.${index + 1}.2 dev ${name} subflow`);
    });
    return road;
  }

  /** Starts a process that ends with the road. */
  start(name, command, namespace) {
    const daemon = new Daemon(name, command, namespace);
    this.#daemons.push(daemon);
    return daemon;
  }

  async until(what, holds) {
    for (let waited = 0; !holds(); waited += 100) {
      this.checkRunning();
      if (waited > 20_000) throw new Error(`20 s have passed before ${what}`);
      await sleep(100);
    }
  }

  /** Throws when one of its processes has ended. */
  checkRunning() {
    for (const daemon of this.#daemons) daemon.checkRunning();
  }

  /** Leads what goes to the host's own address over the link `name`, also the first subflow. */
  routeOver(name) {
    const number = this.names.indexOf(name) + 1;
    run('ip', '-n', 'box', 'route', 'replace', HOST.direct, 'via', `10.201.${number}.1`, 'dev', name);
  }

  /** Starts the recordings of the links from their beginning. */
  restartLinks() {
    this.emulator.signal('SIGHUP');
  }

  /**
   * Starts server and client; resolves when all links are used.
   *
   * @param {object} settings
   * @param {string} [settings.strategy] of the streams
   * @param {boolean} [settings.split] the box takes connections of those behind it
   * @param {string} [settings.alone] a link that a second client has for itself
   */
  async openTunnel({ strategy, split = false, alone } = {}) {
    const boxes = [{ tun: BOX_TUN, name: 'box', uplinks: this.names, to: HOST.tunnel, listen: STREAMS.tunnel, split }];
    if (alone !== undefined) {
      boxes.push({ tun: 'rw2', name: 'alone', uplinks: [alone], to: HOST.alone, listen: STREAMS.alone });
    }
    const keys = () => JSON.parse(run(this.roadweave, 'keygen', '--json'));
    const server = keys();
    for (const [index, box] of boxes.entries()) Object.assign(box, { keys: keys(), inner: `10.77.0.${index + 2}` });
    this.#tunnel('server', 'server', serverFile({ server, boxes, strategy }));
    for (const box of boxes) {
      this.#tunnel(box.name, 'client', clientFile({ box, server, address: `${SERVER}:4433`, strategy }));
    }
    const wanted = boxes.reduce((total, { uplinks }) => total + uplinks.length, 0);
    await this.until('the tunnel uses all links', () => this.#usablePaths() === wanted);
  }

  #tunnel(name, role, text) {
    const file = path.join(SCRATCH, `${name}.toml`);
    // It holds a private key, which the program refuses where others may read it.
    writeFileSync(file, text, { mode: 0o600 });
    const namespace = role === 'server' ? 'server' : 'box';
    this.start(name, [this.roadweave, '--log', 'warn', role, '--config', file], namespace);
  }

  #usablePaths() {
    const paths = (this.status()?.sessions ?? []).flatMap((session) => session.paths);
    return paths.filter(({ status }) => status === 'usable').length;
  }

  /** How many connections the box has taken that had not asked for it. */
  taken() {
    return this.status(BOX_TUN)?.streams?.split?.taken ?? 0;
  }

  /** How many requests at the box told what a player has in store. */
  told() {
    return this.status(BOX_TUN)?.streams?.http?.players ?? 0;
  }

  /** The status of the server or the box, as `roadweave show --json` says; null without one. */
  status(tun = FAR_TUN) {
    const socket = `/run/roadweave/${tun}.sock`;
    if (!existsSync(socket)) return null;
    try {
      return JSON.parse(run(this.roadweave, 'show', '--json', '--socket', socket));
    } catch {
      return null;
    }
  }

  /** Ends it all; resolves to what passed along each link, as `roadweave emulate --json` says. */
  async close() {
    ip('box', 'mptcp endpoint flush');
    let said = '';
    for (const daemon of this.#daemons.splice(0).reverse()) said = await daemon.stop();
    return JSON.parse(said.trim().split('\n').at(-1)).links;
  }
}

/** The rules by which the tables of the links count, once for all roads. */
export function addLinkRules(count) {
  for (let number = 1; number <= count; number += 1) {
    ip('box', `rule add from 10.201.${number}.2 table ${FIRST_TABLE + number - 1}`);
  }
}

const FIRST_TABLE = 101;
