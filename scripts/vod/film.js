// The video, and the web server that has it.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { run, SCRATCH } from '../shared/sandbox.js';

/** Where the video is below the web server's address. */
export const PLAYLIST = 'film/index.m3u8';

/**
 * Films moving shapes behind noise, `seconds` long, in chunks of `chunkS`, at one bitrate: a clip
 * is encoded once and repeated.
 */
export function makeFilm({ seconds, chunkS, bitrateMbps, height }) {
  const folder = path.join(SCRATCH, 'web/film');
  mkdirSync(folder, { recursive: true });
  const clip = path.join(SCRATCH, 'clip.mp4');
  const ffmpeg = (...words) => run('ffmpeg', '-hide_banner', '-loglevel', 'error', '-y', ...words);
  const clipS = chunkS * Math.max(1, Math.round(CLIP_SECONDS / chunkS));
  const source = `testsrc2=size=${(height * 16) / 9}x${height}:rate=${FPS}:duration=${clipS}`;
  const rate = `${bitrateMbps}M`;
  ffmpeg('-f', 'lavfi', '-i', source, '-vf', 'noise=alls=24:allf=t,format=yuv420p',
    '-c:v', 'libx264', '-preset', 'ultrafast', '-b:v', rate, '-minrate', rate, '-maxrate', rate, '-bufsize', rate,
    '-g', String(FPS * chunkS), '-keyint_min', String(FPS * chunkS), '-sc_threshold', '0', clip);
  ffmpeg('-stream_loop', '-1', '-i', clip, '-c', 'copy', '-t', String(seconds),
    '-f', 'hls', '-hls_time', String(chunkS), '-hls_playlist_type', 'vod', '-hls_segment_type', 'mpegts',
    path.join(folder, 'index.m3u8'));
}

/** Writes the configuration of nginx; returns its file. */
export function writeWebServer() {
  const file = path.join(SCRATCH, 'nginx.conf');
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name) => `  ${name}_temp_path ${SCRATCH}/nginx-${name};`);
  writeFileSync(file, `daemon off;
user root;
worker_processes 1;
pid ${SCRATCH}/nginx.pid;
error_log stderr;
events {}
http {
${temporary.join('\n')}
  log_format asked '$uri $args';
  access_log ${ASKED} asked;
  sendfile on;
  types {
    application/vnd.apple.mpegurl m3u8;
    video/mp2t ts;
  }
  server {
    listen 80;
    root ${SCRATCH}/web;
    # The page is not from here: a player is an application.
    add_header Access-Control-Allow-Origin *;
  }
}
`);
  return file;
}

/** How many requests told about the player since this was last asked; the server has ended. */
export function askedWithCmcd() {
  const lines = readFileSync(ASKED, 'utf8').split('\n');
  rmSync(ASKED);
  return lines.filter((line) => line.includes('CMCD=')).length;
}

const ASKED = path.join(SCRATCH, 'asked.log');
const FPS = 30;
const CLIP_SECONDS = 8;
