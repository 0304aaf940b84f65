// Tables for people.

import { medianInterval } from '../shared/figures.js';
import { fixed, percent, table } from '../shared/table.js';

/** All tables of `results`, as text. */
export function tables({ settings }) {
  const parts = [callTable(settings)];
  if (settings.some(({ rounds }) => rounds.length > 1)) parts.push(roundsTable(settings));
  const routed = settings.filter(({ packets }) => packets !== null);
  if (routed.length > 0) parts.push(adoptionTable(routed), orderTable(routed));
  const named = (matches) => settings.filter(matches).map(({ setting }) => setting).join(', ');
  const limited = named(({ cpu_limited_ratio: ratio }) => ratio > 0.01);
  if (limited) parts.push(`The machine was too slow for the browser, which made its pictures smaller: ${limited}.`);
  const disturbed = named(({ cpu_others_percent: share }) => share > 10);
  if (disturbed) parts.push(`Others kept the processors busy meanwhile, which falsifies the figures: ${disturbed}.`);
  return parts.join('\n\n');
}

/** What the two browsers saw. */
function callTable(settings) {
  const row = (figures) => [
    figures.setting,
    ...['mean', 'p10', 'p50', 'p90'].map((name) => fixed(figures.bitrate_bps[name] / 1e6, 1)),
    fixed(figures.fps, 1),
    fixed(figures.height, 0),
    figures.freezes,
    percent(figures.freeze_ratio, 1),
    figures.nacks,
    figures.packets_lost,
    figures.packets_retransmitted,
    fixed(figures.jitter_buffer_ms, 0),
    fixed(figures.rtt_ms, 0),
    percent(figures.cpu_limited_ratio, 0),
    fixed(figures.cpu_percent, 0),
    fixed(figures.cpu_others_percent, 0),
  ];
  const head = ['setting', 'Mbit/s', 'p10', 'p50', 'p90', 'fps', 'height', 'freezes', 'frozen', 'nacks', 'lost',
    'sent again', 'jitter buf ms', 'RTT ms', 'CPU-limited', 'CPU %', 'others %'];
  return table(head, settings.map(row));
}

/** The rounds' medians, each with an interval: equal calls differ much. */
function roundsTable(settings) {
  const confidence = medianInterval(settings[0].rounds.map(() => 0)).confidence;
  const cell = (rounds, digits, value) => {
    const { median, low, high } = medianInterval(rounds.map(value));
    return `${fixed(median, digits)} (${fixed(low, digits)} to ${fixed(high, digits)})`;
  };
  const row = ({ setting, rounds }) => [
    setting,
    rounds.length,
    cell(rounds, 1, ({ bitrate_bps: { mean } }) => mean / 1e6),
    cell(rounds, 1, ({ freeze_ratio: ratio }) => 100 * ratio),
    cell(rounds, 0, ({ nacks }) => nacks),
    cell(rounds, 0, ({ packets_lost: lost }) => lost),
    cell(rounds, 0, ({ jitter_buffer_ms: ms }) => ms),
    cell(rounds, 0, ({ rtt_ms: ms }) => ms),
  ];
  const head = [`median (${percent(confidence, 0)})`, 'rounds', 'Mbit/s', 'frozen %', 'nacks', 'lost',
    'jitter buf ms', 'RTT ms'];
  return table(head, settings.map(row));
}

/** Which link brought what, above the paper's table III: a car in Tokyo, 15 minutes, two videos. */
function adoptionTable(settings) {
  const rowsOf = (name, packets) => [
    ...packets.links.map((link) => [
      name, link.name, packets.transmitted, link.lost, percent(link.lost / packets.transmitted, 3),
      link.adopted, percent(link.adopted / Math.max(1, packets.adopted), 2),
    ]),
    [
      name, 'all', packets.transmitted, packets.lost, percent(packets.lost / packets.transmitted, 3),
      packets.adopted, '',
    ],
  ];
  const ours = settings.flatMap(({ setting, packets }) => rowsOf(setting, packets));
  const theirs = rowsOf('paper@300', PAPER_III);
  return table(['packets', 'link', 'transmitted', 'lost', '', 'adopted', ''], [...ours, ...theirs]);
}

/** What was waited for in vain and what came too late, with the paper's table IV below. */
function orderTable(settings) {
  const row = ([name, { transmitted, lost, timeouts, discarded }]) => [
    name, transmitted, lost, timeouts, percent(timeouts / transmitted, 3), discarded,
    percent(discarded / transmitted, 3),
  ];
  const ours = settings.map(({ setting, packets }) => [setting, packets]);
  const theirs = PAPER_IV.map(({ bufferMs, ...packets }) => [`paper@${bufferMs}`, packets]);
  return table(['packets', 'transmitted', 'lost', 'timeouts', '', 'discarded', ''], [...ours, ...theirs].map(row));
}

/** Table III of the paper: the proposal with a buffer of 300 ms. */
const PAPER_III = {
  transmitted: 170_445,
  lost: 4,
  adopted: 170_441,
  links: [
    { name: 'MNO#1', lost: 3_542, adopted: 123_619 },
    { name: 'MNO#2', lost: 25_462, adopted: 46_822 },
  ],
};

/** Table IV of the paper. */
const PAPER_IV = [
  { bufferMs: 10, transmitted: 211_694, lost: 2, timeouts: 706, discarded: 1_027 },
  { bufferMs: 100, transmitted: 249_408, lost: 141, timeouts: 15, discarded: 23 },
  { bufferMs: 300, transmitted: 602_361, lost: 0, timeouts: 3, discarded: 14 },
];
