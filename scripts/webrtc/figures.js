// From what getStats() said once a second to rows of figures, and from rows to a summary.
//
// Names of statistics are those of https://www.w3.org/TR/webrtc-stats/.

import { mean, quantile } from '../shared/figures.js';

/**
 * What happened between two samples `{ vehicle, centre, processor }`, as `{ name: value }`; what is
 * not known yet is null.
 */
export function between(before, after) {
  const [inbound, inboundBefore] = [after, before].map(({ centre }) => video(centre, 'inbound-rtp'));
  const [outbound, outboundBefore] = [after, before].map(({ vehicle }) => video(vehicle, 'outbound-rtp'));
  const pair = after.vehicle.find(({ type, nominated }) => type === 'candidate-pair' && nominated) ?? {};
  const seconds = Math.max(0.001, (outbound.timestamp - outboundBefore.timestamp) / 1_000);
  const sent = (name) => (outbound[name] ?? 0) - (outboundBefore[name] ?? 0);
  const received = (name) => (inbound[name] ?? 0) - (inboundBefore[name] ?? 0);
  const limited = outbound.qualityLimitationDurations?.cpu ?? 0;
  const ticks = (name) => Math.max(0, after.processor[name] - before.processor[name]);
  const percent = (time) => Math.min(100, Math.max(0, (100 * time) / Math.max(1, ticks('all'))));
  return {
    seconds,
    sent_bps: (8 * sent('bytesSent')) / seconds,
    received_bps: (8 * received('bytesReceived')) / seconds,
    available_bps: pair.availableOutgoingBitrate ?? null,
    frames: received('framesDecoded'),
    fps_encoded: sent('framesEncoded') / seconds,
    width: inbound.frameWidth ?? null,
    height: inbound.frameHeight ?? null,
    freezes: received('freezeCount'),
    frozen_s: received('totalFreezesDuration'),
    nacks: received('nackCount'),
    plis: received('pliCount'),
    packets_received: received('packetsReceived'),
    packets_lost: received('packetsLost'),
    packets_retransmitted: sent('retransmittedPacketsSent'),
    jitter_buffer_ms: ratio(1_000 * received('jitterBufferDelay'), received('jitterBufferEmittedCount')),
    rtt_ms: pair.currentRoundTripTime === undefined ? null : 1_000 * pair.currentRoundTripTime,
    encode_ms: ratio(1_000 * sent('totalEncodeTime'), sent('framesEncoded')),
    limited_by: outbound.qualityLimitationReason ?? null,
    cpu_limited_s: limited - (outboundBefore.qualityLimitationDurations?.cpu ?? 0),
    cpu_percent: percent(ticks('ours')),
    cpu_others_percent: percent(ticks('busy') - ticks('ours')),
  };
}

/** The statistics of the video stream of type `type`; none before the first packet. */
function video(report, type) {
  return report.find((entry) => entry.type === type && entry.kind === 'video') ?? {};
}

/** The whole of a setting's rows. */
export function summarize(rows) {
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  const seconds = sum('seconds');
  const rates = rows.map(({ received_bps: rate }) => rate);
  return {
    seconds,
    bitrate_bps: {
      mean: mean(rates),
      p10: quantile(rates, 0.1),
      p50: quantile(rates, 0.5),
      p90: quantile(rates, 0.9),
    },
    frames: sum('frames'),
    fps: sum('frames') / seconds,
    height: mean(rows.map(({ height }) => height)),
    freezes: sum('freezes'),
    freeze_ratio: sum('frozen_s') / seconds,
    nacks: sum('nacks'),
    plis: sum('plis'),
    packets_received: sum('packets_received'),
    packets_lost: sum('packets_lost'),
    packets_retransmitted: sum('packets_retransmitted'),
    jitter_buffer_ms: mean(rows.map((row) => row.jitter_buffer_ms)),
    rtt_ms: mean(rows.map((row) => row.rtt_ms)),
    encode_ms: mean(rows.map((row) => row.encode_ms)),
    cpu_limited_ratio: sum('cpu_limited_s') / seconds,
    cpu_percent: mean(rows.map((row) => row.cpu_percent)),
    cpu_others_percent: mean(rows.map((row) => row.cpu_others_percent)),
  };
}

/** The rows as CSV, the first column the seconds since the measurement began. */
export function toCsv(rows) {
  const names = Object.keys(rows[0]).filter((name) => name !== 'seconds');
  let at = 0;
  const lines = rows.map((row) => {
    at += row.seconds;
    return [at, ...names.map((name) => row[name])].map(cell).join(',');
  });
  return [['t_s', ...names].join(','), ...lines, ''].join('\n');
}

const cell = (value) => (typeof value === 'number' ? String(Math.round(value * 1_000) / 1_000) : (value ?? ''));

const ratio = (total, count) => (count > 0 ? total / count : null);

/**
 * What the receiving router counted between two statuses, packets of the call that the vehicle
 * sent: `{ transmitted, lost, adopted, timeouts, discarded, links: [{ name, lost, adopted }] }`;
 * null when no router was there.
 */
export function packetsBetween(before, after) {
  const [first, last] = [before, after].map((status) => status?.sessions?.[0]);
  if (last?.peer_packets === undefined || first === undefined) return null;
  const order = (session) => session.lanes[0].received.order;
  const links = last.paths.map((path, index) => {
    const from = first.paths[index];
    return {
      name: path.uplink,
      lost: path.lost - from.lost,
      adopted: path.counters.adopted - from.counters.adopted,
      discarded: path.counters.late - from.counters.late,
    };
  });
  const sum = (name) => links.reduce((total, link) => total + link[name], 0);
  return {
    transmitted: last.peer_packets - first.peer_packets,
    lost: last.peer_packets_lost - first.peer_packets_lost,
    adopted: sum('adopted'),
    timeouts: order(last).timeouts - order(first).timeouts,
    discarded: sum('discarded'),
    links,
  };
}

/** The sums of what `packetsBetween` returned for several runs; null when no router was there. */
export function totalPackets(runs) {
  if (runs.includes(null)) return null;
  const add = (one, other) => Object.fromEntries(Object.entries(one).map(([name, value]) => {
    if (typeof value === 'number') return [name, value + other[name]];
    if (name === 'links') return [name, value.map((link, index) => add(link, other.links[index]))];
    return [name, value];
  }));
  return runs.reduce(add);
}
