import assert from 'node:assert/strict';
import test from 'node:test';

import { findProgram } from '../../shared/options.js';
import { HELP, parseOptions } from '../options.js';

test('settings are single links, strategies, and orders after an @', () => {
  const { settings } = parseOptions(['--settings', 'single:b,xnc,raven:50,redundant@300,xnc@even']);
  assert.deepEqual(settings, [
    { name: 'single:b', link: 2 },
    { name: 'xnc', strategy: 'xnc', order: 'pass' },
    { name: 'raven:50', strategy: 'raven:50', order: 'pass' },
    { name: 'redundant@300', strategy: 'redundant', order: 'reorder', bufferMs: 300 },
    { name: 'xnc@even', strategy: 'xnc', order: 'even' },
  ]);
});

test('what is given counts more than what --smoke stands for', () => {
  const smoke = parseOptions(['--smoke', '--seconds', '7']);
  assert.equal(smoke.links.seconds, 7);
  assert.equal(smoke.video.height, 720);
  assert.equal(parseOptions([]).video.height, 1080);
});

test('mistakes are told with the cure', () => {
  for (const [words, cure] of [
    [['--settings', 'single:c'], /the links are a and b/],
    [['--settings', 'xnc@'], /not a setting/],
    [['--settings', 'geneve@even'], /as in xnc@even/],
    [['--seconds', '0'], /--seconds: 0; a whole number from 5/],
    [['--height', '480'], /720 or 1080/],
    [['--colour'], /--colour/],
  ]) {
    assert.throws(() => parseOptions(words), cure);
  }
});

test('every option is explained', () => {
  for (const option of ['settings', 'together', 'bitrate-max', 'smoke']) assert.match(HELP, new RegExp(`--${option} `));
});

test('programs are found by path and by name', () => {
  assert.equal(findProgram('/bin/sh', ''), '/bin/sh');
  assert.match(findProgram('sh', ''), /\/sh$/);
  assert.throws(() => findProgram('no-such-program', 'build it'), /no-such-program: no such program; build it/);
});
