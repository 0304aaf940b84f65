// The page with the picture: what the player had in store, setting below setting, with its stalls.

import { pauses } from './figures.js';
import { COLUMNS } from './report.js';

/** `results` as an HTML page that needs nothing else. */
export function page(results) {
  const { settings, film, seconds, congestion, buffer_s: bufferS } = results;
  const rows = settings.map((figures) => COLUMNS.map(([, cell]) => `<td>${escape(cell(figures))}</td>`).join(''));
  const all = settings.flatMap(({ viewings }) => viewings);
  // A chunk that is loaded whole goes beyond what the player wants.
  const levels = all.flatMap(({ samples }) => samples.map((sample) => sample.bufferedS));
  const top = levels.reduce((most, level) => Math.max(most, level), bufferS);
  const title = 'Video on demand over several links';
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${title}</title>
<style>${STYLE}</style>
<h1>${title}</h1>
<p>${film.bitrateMbps} Mbit/s in chunks of ${film.chunkS} s, at most ${bufferS} s in store, watched for ${seconds} s; kernels
with ${escape(congestion)}. Every setting meets the same links from their beginning.</p>
<div class="wide"><table>
<thead><tr>${COLUMNS.map(([head]) => `<th>${escape(head)}</th>`).join('')}</tr></thead>
<tbody>${rows.map((row) => `<tr>${row}</tr>`).join('\n')}</tbody>
</table></div>
<h2>What the player had in store</h2>
<p class="key"><i class="store"></i>seconds of video in the buffer <i class="start"></i>until the first picture
<i class="stall"></i>stall</p>
${all.map((viewing) => figure(viewing, { seconds, top })).join('\n')}
</html>
`;
}

/** One viewing: its buffer over time. */
function figure(viewing, { seconds, top }) {
  const { setting, seed, samples, firstFrameMs, ms } = viewing;
  const x = (at) => ((WIDTH * at) / 1_000 / seconds).toFixed(1);
  const y = (level) => (HEIGHT * (1 - level / top)).toFixed(1);
  const band = (kind, from, to) => `<rect class="${kind}" x="${x(from)}" y="0" width="${x(to - from)}" height="${HEIGHT}"/>`;
  const points = samples.map(({ ms: at, bufferedS }) => `${x(at)},${y(bufferedS)}`).join(' ');
  const ticks = Array.from({ length: Math.floor(seconds / 10) + 1 }, (_, index) => 10 * index);
  const end = samples.at(-1)?.ms ?? 0;
  return `<figure><figcaption>${escape(setting)}, seed ${seed}</figcaption>
<svg viewBox="-34 -8 ${WIDTH + 46} ${HEIGHT + 30}" role="img" aria-label="Buffer of ${escape(setting)}">
${band('start', 0, firstFrameMs ?? ms)}${pauses(viewing).map(({ from, to }) => band('stall', from, to)).join('')}
<polygon class="store" points="0,${HEIGHT} ${points} ${x(end)},${HEIGHT}"/>
<path class="axis" d="M0 0V${HEIGHT}H${WIDTH}"/>
<text x="-6" y="8" text-anchor="end">${top.toFixed(0)} s</text><text x="-6" y="${HEIGHT}" text-anchor="end">0</text>
${ticks.map((at) => `<text x="${x(1_000 * at)}" y="${HEIGHT + 16}" text-anchor="middle">${at} s</text>`).join('')}
</svg></figure>`;
}

const escape = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

const [WIDTH, HEIGHT] = [900, 80];
const STYLE = `
:root { color-scheme: light dark; --store: #4a7fb5; --stall: #d1493f; --start: #b9bec6; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .4rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap }
th { font-weight: 600; white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
figure { margin: .8rem 0 } figcaption { font-weight: 600 }
svg { width: 100%; height: auto; display: block } svg text { font-size: 11px; fill: currentColor }
.axis { fill: none; stroke: currentColor; opacity: .5 }
polygon.store { fill: var(--store); fill-opacity: .55; stroke: var(--store) }
rect.stall { fill: var(--stall); fill-opacity: .55 } rect.start { fill: var(--start); fill-opacity: .55 }
.key i { display: inline-block; width: 1em; height: .7em; margin: 0 .4em 0 1em }
i.store { background: var(--store) } i.stall { background: var(--stall) } i.start { background: var(--start) }
`;
