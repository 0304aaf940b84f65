import assert from 'node:assert/strict';
import test from 'node:test';

import { medianInterval, quantile } from '../../shared/figures.js';
import { between, packetsBetween, summarize, toCsv, totalPackets } from '../figures.js';

/** What both pages say `seconds` after the begin of a call with `frames` pictures a second. */
function sample(seconds, { frames = 30, bytes = 125_000, limited = 0 } = {}) {
  const inbound = {
    type: 'inbound-rtp', kind: 'video', bytesReceived: bytes * seconds, framesDecoded: frames * seconds,
    frameHeight: 720, freezeCount: Math.floor(seconds / 2), totalFreezesDuration: 0.1 * seconds,
    nackCount: 2 * seconds, packetsLost: seconds, packetsReceived: 100 * seconds,
    jitterBufferDelay: 3 * seconds, jitterBufferEmittedCount: 30 * seconds,
  };
  const outbound = {
    type: 'outbound-rtp', kind: 'video', timestamp: 1_000 * seconds, bytesSent: bytes * seconds,
    framesEncoded: frames * seconds, totalEncodeTime: 0.3 * seconds, retransmittedPacketsSent: 2 * seconds,
    qualityLimitationReason: 'cpu', qualityLimitationDurations: { cpu: limited * seconds },
  };
  const pair = { type: 'candidate-pair', nominated: true, currentRoundTripTime: 0.06, availableOutgoingBitrate: 2e6 };
  const sound = { type: 'inbound-rtp', kind: 'audio', bytesReceived: 1e9 };
  const processor = { all: 200 * seconds, busy: 150 * seconds, ours: 100 * seconds };
  return { vehicle: [pair, { type: 'outbound-rtp', kind: 'audio' }, outbound], centre: [sound, inbound], processor };
}

const near = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-9, `${value} is not ${expected}`);

test('a row is what happened between two samples, of the video alone', () => {
  const row = between(sample(4), sample(6, { limited: 0.5 }));
  near(row.seconds, 2);
  near(row.received_bps, 1e6);
  near(row.frames, 60);
  near(row.freezes, 1);
  near(row.nacks, 4);
  near(row.jitter_buffer_ms, 100);
  near(row.encode_ms, 10);
  near(row.rtt_ms, 60);
  near(row.cpu_limited_s, 3);
  near(row.cpu_percent, 50);
  near(row.cpu_others_percent, 25);
});

test('before the first packet there are no figures, and nothing breaks', () => {
  const silent = { ...sample(1), vehicle: [], centre: [] };
  const row = between(silent, { ...silent });
  assert.equal(row.frames, 0);
  assert.equal(row.height, null);
  assert.equal(row.jitter_buffer_ms, null);
});

test('a summary weighs by time and has quantiles of the bitrate', () => {
  const rows = [1, 2, 3, 4].map((second) => between(sample(second), sample(second + 1)));
  rows[0].received_bps = 5e6;
  const summary = summarize(rows);
  near(summary.seconds, 4);
  near(summary.fps, 30);
  near(summary.bitrate_bps.mean, 2e6);
  near(summary.bitrate_bps.p50, 1e6);
  near(summary.bitrate_bps.p90, 5e6);
  near(summary.freeze_ratio, 0.1);
  assert.equal(summary.packets_retransmitted, 8);
});

test('CSV has a line of names and one for each second', () => {
  const rows = [1, 2].map((second) => between(sample(second), sample(second + 1)));
  const [head, first, second, end] = toCsv(rows).split('\n');
  const column = head.split(',').indexOf('received_bps');
  assert.deepEqual([first, second].map((line) => line.split(',')[column]), ['1000000', '1000000']);
  assert.deepEqual([first, second].map((line) => line.split(',')[0]), ['1', '2']);
  assert.equal(end, '');
});

test('quantiles are values that occurred', () => {
  assert.equal(quantile([3, 1, 2], 0.5), 2);
  assert.equal(quantile([3, 1, 2], 0), 1);
  assert.equal(quantile([3, 1, 2], 1), 3);
});

test('packets are those of the measured time, and only a router tells them', () => {
  const status = (packets) => ({
    sessions: [{
      peer_packets: 100 * packets,
      peer_packets_lost: packets,
      lanes: [{ received: { order: { timeouts: 2 * packets } } }],
      paths: [
        { uplink: 'a', lost: 2 * packets, counters: { adopted: 70 * packets, late: 0 } },
        { uplink: 'b', lost: 15 * packets, counters: { adopted: 29 * packets, late: packets } },
      ],
    }],
  });
  assert.deepEqual(packetsBetween(status(1), status(3)), {
    transmitted: 200, lost: 2, adopted: 198, timeouts: 4, discarded: 2,
    links: [
      { name: 'a', lost: 4, adopted: 140, discarded: 0 },
      { name: 'b', lost: 30, adopted: 58, discarded: 2 },
    ],
  });
  assert.equal(packetsBetween(null, null), null);
  assert.equal(packetsBetween({ sessions: [{ paths: [] }] }, { sessions: [{ paths: [] }] }), null);
});

test('packets of several rounds are summed, link by link', () => {
  const round = (lost) => ({ transmitted: 100, lost, links: [{ name: 'a', lost: 2 * lost }, { name: 'b', lost: 5 }] });
  assert.deepEqual(totalPackets([round(1), round(2), round(4)]), {
    transmitted: 300, lost: 7, links: [{ name: 'a', lost: 14 }, { name: 'b', lost: 15 }],
  });
  assert.equal(totalPackets([null, null]), null);
});

test('the median of few rounds lies between all of them, that of ten without the outermost', () => {
  assert.deepEqual(medianInterval([3, null, 1, 2, 9]), { median: 2.5, low: 1, high: 9, confidence: 0.875 });
  const ten = medianInterval([10, 1, 9, 2, 8, 3, 7, 4, 6, 5]);
  assert.deepEqual([ten.median, ten.low, ten.high], [5.5, 2, 9]);
  near(ten.confidence, 1 - 22 / 1_024);
  assert.equal(medianInterval([]).median, null);
});
