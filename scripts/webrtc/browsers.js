// A call between two Chromium browsers: the vehicle's sends picture and sound, that of the data
// centre receives. This program carries the offer and the answer from one to the other.
//
//   vehicle: picture from a file ─> encoder ─> RTP ══ links ══> jitter buffer ─> decoder ─> page
//                                getStats() of both, once a second

import path from 'node:path';

import { launch } from '../shared/browser.js';
import { run, SCRATCH } from '../shared/sandbox.js';

/** Pages at localhost are secure contexts, which cameras need; nobody has to serve them. */
const PAGE = 'http://localhost/';
const CLIP = path.join(SCRATCH, 'camera.y4m');
const CLIP_SECONDS = 4;

const FLAGS = [
  '--use-fake-ui-for-media-stream',
  '--use-fake-device-for-media-stream',
  '--disable-features=WebRtcHideLocalIpsWithMdns',
];

/** Films moving shapes behind noise: some 12 Mbit/s of 1080p with a middling quantizer of VP8. */
export function makeClip({ width, height, fps }) {
  const source = `testsrc2=size=${width}x${height}:rate=${fps}:duration=${CLIP_SECONDS}`;
  run('ffmpeg', '-hide_banner', '-loglevel', 'error', '-y', '-f', 'lavfi', '-i', source,
    '-vf', 'noise=alls=8:allf=t,format=yuv420p', CLIP);
}

/** A call under way. */
export class Call {
  /**
   * Starts both browsers and joins them.
   *
   * @param {string} program Chromium
   * @param {{ width, height, fps, codec, bitrateMax }} video what the vehicle sends
   */
  static async start(program, video) {
    const call = new Call();
    try {
      await call.#start(program, video);
      return call;
    } catch (error) {
      await call.end();
      throw error;
    }
  }

  async #start(program, video) {
    this.vehicle = await this.#open(program, 'vehicle', [`--use-file-for-fake-video-capture=${CLIP}`]);
    this.centre = await this.#open(program, 'centre', []);
    const offer = await this.vehicle.evaluate(inPage.offer, video);
    const answer = await this.centre.evaluate(inPage.answer, offer);
    await this.vehicle.evaluate(inPage.accept, answer);
  }

  async #open(program, namespace, flags) {
    const browser = await launch(program, namespace, [...FLAGS, ...flags]);
    (this.browsers ??= []).push(browser);
    const page = await browser.newPage({ viewport: { width: 320, height: 180 } });
    await page.route('**/*', (route) => route.fulfill({ contentType: 'text/html', body: '<!doctype html>' }));
    await page.goto(PAGE);
    return page;
  }

  /** What getStats() of both pages says now: `{ vehicle: [..], centre: [..] }`. */
  async sample() {
    const [vehicle, centre] = await Promise.all(
      [this.vehicle, this.centre].map((page) => page.evaluate(inPage.sample)),
    );
    return { vehicle, centre };
  }

  /** Closes both browsers. */
  async end() {
    await Promise.allSettled((this.browsers ?? []).splice(0).map((browser) => browser.close()));
  }
}

/** Functions that run inside the pages; each has to be complete in itself. */
const inPage = {
  async offer({ width, height, fps, codec, bitrate_max_bps: bitrateMax }) {
    const peer = new RTCPeerConnection();
    window.peer = peer;
    const exact = { width: { exact: width }, height: { exact: height }, frameRate: { exact: fps } };
    const stream = await navigator.mediaDevices.getUserMedia({ video: exact, audio: true });
    for (const track of stream.getTracks()) peer.addTrack(track, stream);
    const video = peer.getTransceivers().find(({ sender }) => sender.track.kind === 'video');
    const wanted = [`video/${codec}`.toLowerCase(), 'video/rtx'];
    const codecs = RTCRtpSender.getCapabilities('video').codecs
      .filter(({ mimeType }) => wanted.includes(mimeType.toLowerCase()));
    if (codecs.length < 2) throw new Error(`this Chromium cannot encode ${codec}`);
    video.setCodecPreferences(codecs);
    for (const transceiver of peer.getTransceivers()) transceiver.direction = 'sendonly';
    await peer.setLocalDescription();
    const parameters = video.sender.getParameters();
    parameters.encodings[0].maxBitrate = bitrateMax;
    await video.sender.setParameters(parameters);
    return new Promise((resolve) => {
      const finish = () => peer.iceGatheringState === 'complete' && resolve(peer.localDescription.toJSON());
      peer.onicegatheringstatechange = finish;
      finish();
    });
  },

  async answer(offer) {
    const peer = new RTCPeerConnection();
    window.peer = peer;
    const video = document.body.appendChild(document.createElement('video'));
    Object.assign(video, { autoplay: true, muted: true, width: 320, height: 180 });
    peer.ontrack = ({ streams }) => {
      [video.srcObject] = streams;
    };
    await peer.setRemoteDescription(offer);
    await peer.setLocalDescription();
    return new Promise((resolve) => {
      const finish = () => peer.iceGatheringState === 'complete' && resolve(peer.localDescription.toJSON());
      peer.onicegatheringstatechange = finish;
      finish();
    });
  },

  accept: (answer) => window.peer.setRemoteDescription(answer),

  async sample() {
    const wanted = ['inbound-rtp', 'outbound-rtp', 'remote-inbound-rtp', 'candidate-pair', 'codec', 'media-source'];
    const report = await window.peer.getStats();
    return [...report.values()].filter(({ type }) => wanted.includes(type));
  },
};
