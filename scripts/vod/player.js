// A viewer: hls.js in Chromium at the box.
//
// The player is in the page before it begins, as an application has it; what counts from then on is
// the connection, the playlist, the chunks.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

import { launch } from '../shared/browser.js';

const require = createRequire(import.meta.url);
const HLS = path.join(path.dirname(require.resolve('hls.js')), 'hls.min.js');

export class Viewer {
  /** Starts the browser `program`; `proxy` is the host:port of a SOCKS5 proxy, or undefined. */
  static async start(program, proxy) {
    const viewer = new Viewer();
    const flags = proxy === undefined ? ['--no-proxy-server'] : [`--proxy-server=socks5://${proxy}`];
    viewer.browser = await launch(program, 'box', flags);
    try {
      viewer.page = await viewer.browser.newPage({ viewport: { width: 640, height: 360 } });
      await viewer.page.addScriptTag({ content: readFileSync(HLS, 'utf8') });
      return viewer;
    } catch (error) {
      await viewer.end();
      throw error;
    }
  }

  /** Begins to play the video at `url` with at most so many seconds in the buffer. */
  play({ url, bufferS, cmcd }) {
    return this.page.evaluate(inPage.play, { url, bufferS, cmcd });
  }

  /** What has happened so far: `{ firstFrameMs, samples, waits, chunks, .. }`. */
  seen() {
    return this.page.evaluate(inPage.seen);
  }

  /** What the viewer looks at. */
  screenshot() {
    return this.page.screenshot();
  }

  async end() {
    await this.browser.close().catch(() => {});
  }
}

/** Functions that run inside the page; each has to be complete in itself. */
const inPage = {
  play({ url, bufferS, cmcd }) {
    const { Hls } = window;
    const video = document.body.appendChild(document.createElement('video'));
    Object.assign(video, { muted: true, width: 640, height: 360 });
    const begin = performance.now();
    const now = () => performance.now() - begin;
    const log = { firstFrameMs: null, samples: [], waits: [], chunks: [], errors: [] };
    window.viewer = { video, log, now };
    video.requestVideoFrameCallback(() => {
      log.firstFrameMs = now();
    });
    // A pause for want of data begins with `waiting` and ends with `playing`.
    video.addEventListener('waiting', () => {
      if (log.firstFrameMs !== null && log.waits.at(-1)?.to !== null) log.waits.push({ from: now(), to: null });
    });
    video.addEventListener('playing', () => {
      if (log.waits.at(-1)?.to === null) log.waits.at(-1).to = now();
    });
    const sample = () => {
      const { buffered, currentTime } = video;
      let bufferedS = 0;
      for (let index = 0; index < buffered.length; index += 1) {
        // Chunks may leave a gap of a picture between them.
        if (buffered.start(index) <= currentTime + 0.1) bufferedS = Math.max(0, buffered.end(index) - currentTime);
      }
      log.samples.push({ ms: now(), bufferedS, positionS: currentTime });
    };
    setInterval(sample, 250);
    const hls = new Hls({
      maxBufferLength: bufferS,
      maxMaxBufferLength: bufferS,
      backBufferLength: 0,
      enableWorker: false,
      ...(cmcd ? { cmcd: {} } : {}),
    });
    hls.on(Hls.Events.FRAG_LOADING, (_, { frag }) => {
      window.viewer.loading = frag;
    });
    hls.on(Hls.Events.FRAG_LOADED, (_, { frag }) => {
      window.viewer.loading = null;
      const { loading, total } = frag.stats;
      log.chunks.push({ number: frag.sn, bytes: total, ms: loading.end - loading.start, endMs: loading.end - begin });
    });
    hls.on(Hls.Events.ERROR, (_, { details, fatal }) => log.errors.push({ ms: now(), details, fatal }));
    hls.loadSource(url);
    hls.attachMedia(video);
    video.play().catch(({ message }) => log.errors.push({ ms: now(), details: message, fatal: true }));
  },

  seen() {
    const { video, log, now, loading } = window.viewer;
    const { totalVideoFrames: shown, droppedVideoFrames: dropped } = video.getVideoPlaybackQuality();
    const partBytes = loading?.stats.loaded ?? 0;
    return { ...log, partBytes, ms: now(), positionS: video.currentTime, frames: { shown, dropped } };
  },
};
