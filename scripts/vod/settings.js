// How the box reaches the video.
//
//   single:NAME         one link, no tunnel
//   mptcp               kernel MPTCP over all links, no tunnel
//   tunnel              TCP as packets through the tunnel
//   streams             streams, as by default
//   streams@STRATEGY    streams by that strategy, such as xlink

import { fileURLToPath } from 'node:url';

import { HOST, joinedSubflows, Road, STREAMS } from '../shared/road.js';

/** The setting that `text` names, over links of these names: `{ name, way, link?, strategy? }`. */
export function parseSetting(text, links) {
  if (text.startsWith('single:')) {
    const link = text.slice('single:'.length);
    if (!links.includes(link)) throw new Error(`${text}: the links are ${links.join(', ')}`);
    return { name: text, way: 'single', link };
  }
  const [, way, strategy] = /^(mptcp|tunnel|streams)(?:@([a-z0-9-]+(?::[0-9]+)?))?$/.exec(text) ?? [];
  if (way === undefined || (strategy !== undefined && way !== 'streams')) {
    throw new Error(`${text}: not a setting; as in single:${links[0]}, mptcp, tunnel, streams, streams@xlink`);
  }
  return { name: text, way, strategy };
}

/** All that are measured by default. */
export const defaultSettings = (links) => [
  ...links.map((link) => `single:${link}`), 'mptcp', 'tunnel', 'streams', 'streams@xlink', 'streams@redundant',
];

/** A setting under way. */
export class Passage {
  /**
   * Opens links, web server, and what `setting` needs between them.
   *
   * @param {string} roadweave the program
   * @param {object} setting
   * @param {object} options
   * @param {object[]} options.links as `Road.open` takes them
   * @param {number} options.seed
   * @param {string} options.webServer the configuration file of nginx
   */
  static async open(roadweave, setting, { links, seed, webServer }) {
    const passage = new Passage();
    passage.setting = setting;
    passage.road = await Road.open(roadweave, { seed, links });
    try {
      await passage.#open(webServer);
      return passage;
    } catch (error) {
      await passage.close().catch(() => {});
      throw error;
    }
  }

  async #open(webServer) {
    const { road, setting } = this;
    const mptcpize = setting.way === 'mptcp' ? ['mptcpize', 'run'] : [];
    road.start('nginx', [...mptcpize, 'nginx', '-e', 'stderr', '-c', webServer], 'host');
    road.routeOver(setting.link ?? road.names[0]);
    if (setting.way === 'mptcp') {
      const proxy = road.start('socks', [...mptcpize, process.execPath, SOCKS, MPTCP_PROXY.split(':')[1]], 'box');
      await road.until('the proxy answers', () => proxy.output.includes('ready'));
    }
    if (setting.way === 'tunnel' || setting.way === 'streams') await road.openTunnel({ strategy: setting.strategy });
    this.joinedBefore = joinedSubflows();
  }

  /** Where the browser finds the web server. */
  get host() {
    return this.setting.way === 'tunnel' || this.setting.way === 'streams' ? HOST.tunnel : HOST.direct;
  }

  /** The SOCKS5 proxy that the browser shall use. */
  get proxy() {
    return { mptcp: MPTCP_PROXY, streams: STREAMS.tunnel }[this.setting.way];
  }

  /** Subflows of MPTCP beyond the first of each connection, so far. */
  get subflows() {
    return joinedSubflows() - this.joinedBefore;
  }

  /** Ends it all; resolves to what passed along each link. */
  close() {
    return this.road.close();
  }
}

const SOCKS = fileURLToPath(new URL('socks.js', import.meta.url));
const MPTCP_PROXY = '127.0.0.1:1082';
