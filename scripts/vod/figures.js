// From what a viewer saw to figures.

import { mean, quantile } from '../shared/figures.js';

/** The pauses of a viewing, ms: `[{ from, to }]`; one that is not over ends with the viewing. */
export function pauses({ waits, ms }) {
  return waits.map(({ from, to }) => ({ from, to: to ?? ms }));
}

/** The figures of several viewings of one setting, taken together. */
export function summarize(viewings) {
  const stopped = viewings.flatMap(pauses);
  const stalledMs = stopped.reduce((total, { from, to }) => total + to - from, 0);
  const sum = (value) => viewings.reduce((total, viewing) => total + value(viewing), 0);
  const playedS = sum(({ positionS }) => positionS);
  const chunks = viewings.flatMap((viewing) => viewing.chunks.map(({ ms }) => ms));
  const firstFrames = viewings.map(({ firstFrameMs, ms }) => firstFrameMs ?? ms);
  const buffers = viewings.flatMap(({ samples }) => samples.map(({ bufferedS }) => bufferedS));
  return {
    // A viewer who saw nothing has waited all the time.
    first_frame_ms: quantile(firstFrames, 0.5),
    without_picture: viewings.filter(({ firstFrameMs }) => firstFrameMs === null).length,
    stalls: stopped.length,
    stalled_ms: stalledMs,
    rebuffer_ratio: playedS > 0 ? stalledMs / 1_000 / playedS : null,
    played_s: playedS,
    frames: sum(({ frames }) => frames.shown),
    frames_dropped: sum(({ frames }) => frames.dropped),
    chunks: chunks.length,
    chunk_ms: { p50: quantile(chunks, 0.5), p95: quantile(chunks, 0.95), p99: quantile(chunks, 0.99) },
    buffer_s: mean(buffers),
  };
}

/**
 * What was sent to the box over all links, by the bytes of video that arrived there: what headers,
 * repairs and copies cost beyond those; null when nothing arrived.
 */
export function overhead({ links, chunks, partBytes }) {
  const arrived = chunks.reduce((total, { bytes }) => total + bytes, partBytes);
  const sent = links.reduce((total, { down }) => total + down.pushed_bytes, 0);
  return arrived > 0 ? sent / arrived - 1 : null;
}

/** Copies and repairs to the box by what was sent for the first time; null without a tunnel. */
export function redundancy(status) {
  const paths = (status?.sessions ?? []).flatMap((session) => session.paths);
  const sum = (name) => paths.reduce((total, { counters }) => total + counters[name], 0);
  return sum('source_bytes') > 0 ? sum('redundant_bytes') / sum('source_bytes') : null;
}
