// What lies between the browsers: the links and, over them, nothing or a tunnel.
//
//   single:a, single:b   one link, no tunnel
//   geneve               redundant routers: each packet on both links, the first copy goes on
//   geneve@MS            the same, in order: what follows a missing packet waits for it, MS at most
//   STRATEGY             client and server, with that strategy on both links, such as xnc
//   STRATEGY@MS          the same, in order
//   STRATEGY@even        the same, each packet as long after it was sent as all others

import { existsSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { Daemon } from '../shared/network.js';
import { run, SCRATCH } from '../shared/sandbox.js';
import { FAR_TUN, routerFiles, tunnelFiles } from './configurations.js';
import { LINKS, recordings } from './links.js';
import { routeOverLink } from './world.js';

/** The setting that `text` names: `{ name, link }` or `{ name, strategy, order, bufferMs }`. */
export function parseSetting(text) {
  if (text.startsWith('single:')) {
    const link = LINKS.findIndex(({ name }) => name === text.slice('single:'.length)) + 1;
    if (link === 0) throw new Error(`${text}: the links are ${LINKS.map(({ name }) => name).join(' and ')}`);
    return { name: text, link };
  }
  const [, strategy, buffer] = /^([a-z0-9-]+(?::[0-9]+)?)(?:@([0-9]+|even))?$/.exec(text) ?? [];
  if (strategy === undefined) throw new Error(`${text}: not a setting; as in single:a, geneve@300, xnc, xnc@even`);
  if (buffer === 'even') {
    if (strategy === 'geneve') throw new Error(`${text}: routers tell no times; as in xnc@even`);
    return { name: text, strategy, order: 'even' };
  }
  if (buffer === undefined) return { name: text, strategy, order: 'pass' };
  return { name: text, strategy, order: 'reorder', bufferMs: Number(buffer) };
}

/** The links of all settings, as `roadweave emulate` reads them. */
export function writeLinks(options) {
  for (const { name, csv } of recordings(options)) writeFileSync(inScratch(`${name}.csv`), csv);
  const link = ({ name }) => `[[link]]\nname = "${name}"\ntrace = "${name}.csv"\ntrace_down = "${name}.csv"\n`;
  const place = '[place]\nnear = "box"\nfar = "links"\n';
  writeFileSync(inScratch('links.toml'), `seed = ${options.seed}\n${place}${LINKS.map(link).join('')}`);
}

/** A setting under way: links, and the tunnel if it has one. */
export class Passage {
  #daemons = [];
  #undo = [];

  /** Starts what `setting` needs with the program `roadweave`; resolves when packets may pass. */
  static async open(roadweave, setting) {
    const passage = new Passage();
    try {
      await passage.#open(roadweave, setting);
      return passage;
    } catch (error) {
      await passage.close().catch(() => {});
      throw error;
    }
  }

  async #open(roadweave, setting) {
    this.roadweave = roadweave;
    this.emulator = this.#start('emulator', ['emulate', '--json', '--config', inScratch('links.toml')]);
    await this.#until('the links are ready', () => this.emulator.output.includes('"ready":true'));
    if (setting.link !== undefined) {
      this.#undo.push(routeOverLink(setting.link));
      return;
    }
    const [near, far] = setting.strategy === 'geneve' ? ['router', 'router'] : ['client', 'server'];
    const files = setting.strategy === 'geneve' ? routerFiles(setting) : tunnelFiles(roadweave, setting);
    // They hold private keys, which the program refuses where others may read them.
    writeFileSync(inScratch('near.toml'), files.near, { mode: 0o600 });
    writeFileSync(inScratch('far.toml'), files.far, { mode: 0o600 });
    this.#start(`far ${far}`, [far, '--config', inScratch('far.toml')], 'centre-router');
    this.#start(`near ${near}`, [near, '--config', inScratch('near.toml')], 'box');
    await this.#until('the tunnel uses both links', () => this.#usablePaths() === LINKS.length);
  }

  #start(name, words, namespace) {
    const daemon = new Daemon(name, [this.roadweave, '--log', 'warn', ...words], namespace);
    this.#daemons.push(daemon);
    return daemon;
  }

  async #until(what, holds) {
    for (let waited = 0; !holds(); waited += 100) {
      this.checkRunning();
      if (waited > 15_000) throw new Error(`15 s have passed before ${what}`);
      await sleep(100);
    }
  }

  #usablePaths() {
    const paths = this.status()?.sessions?.[0]?.paths ?? [];
    return paths.filter((path) => path.status === 'usable').length;
  }

  /** The status of the receiving end; null without a tunnel, or while it does not answer. */
  status() {
    const socket = `/run/roadweave/${FAR_TUN}.sock`;
    if (!existsSync(socket)) return null;
    try {
      return JSON.parse(run(this.roadweave, 'show', '--json', '--socket', socket));
    } catch {
      return null;
    }
  }

  /** Throws when one of its processes has ended. */
  checkRunning() {
    for (const daemon of this.#daemons) daemon.checkRunning();
  }

  /** Starts the recordings of the links from their beginning. */
  restartLinks() {
    this.emulator.signal('SIGHUP');
  }

  /** Ends it all; resolves to what passed along each link, as `roadweave emulate --json` says. */
  async close() {
    for (const undo of this.#undo.splice(0)) undo();
    let said = '';
    for (const daemon of this.#daemons.splice(0).reverse()) said = await daemon.stop();
    return JSON.parse(said.trim().split('\n').at(-1)).links;
  }
}

const inScratch = (name) => path.join(SCRATCH, name);
