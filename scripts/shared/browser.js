// Chromium in a namespace.

import { chmodSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { inside } from './network.js';
import { SCRATCH } from './sandbox.js';

/** Starts the browser `program`, without a window, in the namespace `namespace`. */
export function launch(program, namespace, flags) {
  const start = path.join(SCRATCH, `chromium-${namespace}`);
  // Chromium leaves files at home, too.
  const command = `HOME='${SCRATCH}' exec ${inside(namespace, [`'${program}'`]).join(' ')} "$@"`;
  writeFileSync(start, `#!/bin/sh\n${command}\n`);
  chmodSync(start, 0o755);
  return chromium.launch({ executablePath: start, args: [...FLAGS, ...flags] });
}

const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--no-first-run',
  '--autoplay-policy=no-user-gesture-required',
];
