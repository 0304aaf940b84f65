// A client that is not there: its local socket, with three links on a drive and a hostile peer.

import { createServer } from 'node:net';
import { rmSync } from 'node:fs';

/** What a peer may call itself. */
export const HOSTILE = '<img src=x onerror="window.pwned=1">';

export class Instance {
  /** Counts from when it began, as a real one does. */
  constructor(socket, { hostile = false } = {}) {
    this.socket = socket;
    this.hostile = hostile;
    this.paused = new Set();
    this.strategies = { 'real-time': 'xnc', interactive: 'raven', tcp: 'xnc', other: 'xnc' };
    this.changes = [];
    this.begin();
  }

  begin() {
    this.begun = performance.now();
    this.last = 0;
    this.bytes = [0, 0];
    this.links = { wwan0: [0, 0], wwan1: [0, 0], 'usb-sat': [0, 0] };
  }

  listen() {
    rmSync(this.socket, { force: true });
    this.open = new Set();
    this.server = createServer((connection) => {
      this.open.add(connection);
      connection.on('close', () => this.open.delete(connection));
      connection.on('error', () => {});
      let text = '';
      connection.on('data', (bytes) => {
        text += bytes;
        if (!text.includes('\n') || this.hangs) return;
        const { id, method, params } = JSON.parse(text);
        text = '';
        connection.end(`${JSON.stringify({ jsonrpc: '2.0', id, ...this.answer(method, params) })}\n`);
      });
    });
    return new Promise((resolve) => this.server.listen(this.socket, resolve));
  }

  async end() {
    for (const connection of this.open) connection.destroy();
    await new Promise((resolve) => this.server.close(resolve));
    rmSync(this.socket, { force: true });
  }

  answer(method, params) {
    if (method === 'status') return { result: this.status() };
    this.changes.push({ method, ...params });
    if (method === 'set_uplink') {
      const others = Object.keys(this.links).filter((name) => !this.paused.has(name) && name !== params.uplink);
      if (params.paused && others.length === 0) {
        return { error: { code: -32001, message: 'it is the last uplink that is left' } };
      }
      if (params.paused) this.paused.add(params.uplink);
      else this.paused.delete(params.uplink);
      return { result: { notice: null } };
    }
    if (method === 'set_strategy') {
      this.strategies[params.lane] = params.strategy;
      return { result: { notice: null } };
    }
    return { error: { code: -32601, message: `there is no method ${method}` } };
  }

  /** What passed until now: rates move slowly, and a tunnel takes one link away now and then. */
  advance(seconds) {
    const wave = (period, shift) => 0.5 + 0.5 * Math.sin((2 * Math.PI * seconds) / period + shift);
    this.tunnel = seconds % 97 > 60 && seconds % 97 < 66;
    const rates = {
      wwan0: this.tunnel ? 0 : 6.5e6 + 3e6 * wave(41, 0) + 4e5 * wave(2.3, 1),
      wwan1: 3e6 + 2.2e6 * wave(29, 2) + (this.tunnel ? 3e6 : 0),
      'usb-sat': 0.5e6 + 0.4e6 * wave(67, 4),
    };
    const step = seconds - this.last;
    this.last = seconds;
    for (const [name, rate] of Object.entries(rates)) {
      if (this.paused.has(name)) continue;
      this.links[name][0] += (rate * step) / 8;
      this.links[name][1] += (rate * step) / 8 / 9;
      this.bytes[0] += (rate * step) / 8.6;
      this.bytes[1] += (rate * step) / 8 / 11;
    }
    this.delays = { wwan0: 38 + 25 * wave(19, 1), wwan1: 55 + 30 * wave(13, 3), 'usb-sat': 118 + 12 * wave(7, 0) };
    this.losses = { wwan0: 0.004 + 0.02 * wave(31, 2) ** 6, wwan1: 0.008 + 0.05 * wave(43, 0) ** 8, 'usb-sat': 0.001 };
    this.target = Math.round(8.4e6 + 2e6 * wave(41, 0));
  }

  status() {
    const seconds = (performance.now() - this.begun) / 1000 + 3_000;
    if (this.last === 0) this.last = seconds;
    this.advance(seconds);
    const odd = (name) => (this.hostile ? HOSTILE : name);
    const names = Object.keys(this.links);
    const paths = names
      .filter((name) => !this.paused.has(name))
      .map((name) => path(names.indexOf(name), name, this));
    return {
      role: 'client',
      name: odd('ambulance-7'),
      version: '0.1.0',
      uptime_seconds: seconds,
      tun: 'rw0',
      drops: {},
      log: { lines_lost: 0 },
      device: {
        packets_read: 1,
        bytes_read: Math.round(this.bytes[0]),
        packets_written: 1,
        bytes_written: Math.round(this.bytes[1]),
      },
      no_session: null,
      suppressed_notices: 0,
      uplinks: names.map((name) => ({ name, heard: true })),
      paused: [...this.paused],
      sessions: [
        {
          peer: odd('192.0.2.1:4433'),
          public_key: 'key',
          addresses: ['10.77.0.2/32'],
          paths,
          lanes: Object.entries(this.strategies).map(([name, strategy]) =>
            lane(name, strategy, name === 'real-time' ? this.target : null),
          ).concat(this.hostile ? [lane(HOSTILE, 'xnc', null)] : []),
        },
      ],
    };
  }
}

function path(id, uplink, instance) {
  const [sent, received] = instance.links[uplink].map(Math.round);
  const away = uplink === 'wwan0' && instance.tunnel;
  const used = 4_350_000_000 + sent;
  return {
    id, uplink, status: away ? 'suspect' : 'usable',
    smoothed_rtt_ms: instance.delays[uplink] * (away ? 4 : 1), loss: away ? 0.6 : instance.losses[uplink],
    priority: uplink === 'usb-sat' ? 'backup' : 'primary',
    month_bytes: uplink === 'wwan1' ? used : null, monthly_cap_bytes: uplink === 'wwan1' ? 10e9 : null,
    counters: { bytes_sent: sent, bytes_received: received },
  };
}

function lane(name, strategy, target) {
  const encoder = target === null ? {} : { encoder: { frame_bytes: 40_000, bitrate_bps: target } };
  return { name, strategy, ...encoder };
}
