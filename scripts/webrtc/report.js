// Tables for people.

/** All tables of `results`, as text. */
export function tables({ settings }) {
  const parts = [callTable(settings)];
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

/** As table III of the paper: which link brought what. */
function adoptionTable(settings) {
  const rows = settings.flatMap(({ setting, packets }) => [
    ...packets.links.map((link) => [
      setting, `link ${link.name}`, packets.transmitted, link.lost, percent(link.lost / packets.transmitted, 3),
      link.adopted, percent(link.adopted / Math.max(1, packets.adopted), 2),
    ]),
    [setting, 'both', packets.transmitted, packets.lost, percent(packets.lost / packets.transmitted, 3),
      packets.adopted, ''],
  ]);
  return table(['setting', '', 'transmitted', 'lost', '', 'adopted', ''], rows);
}

/** As table IV of the paper: what the buffer gave up. */
function orderTable(settings) {
  const row = ({ setting, packets }) =>
    [setting, packets.transmitted, packets.lost, packets.timeouts, packets.discarded];
  return table(['setting', 'transmitted', 'lost', 'timeouts', 'discarded'], settings.map(row));
}

/** Columns as wide as they need to be; the first is aligned to the left. */
function table(head, rows) {
  const cells = [head, ...rows].map((row) => row.map(String));
  const widths = head.map((_, column) => Math.max(...cells.map((row) => row[column].length)));
  const pad = (text, column) => (column === 0 ? text.padEnd(widths[0]) : text.padStart(widths[column]));
  return cells.map((row) => row.map(pad).join('  ').trimEnd()).join('\n');
}

const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '-');
const percent = (share, digits) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : '-');
