// The page in a real browser, with the real program and a client that is not there.
//
//   node test/browser.js --program target/debug/roadweave-web [--chromium PROGRAM]
//                        [--pictures FOLDER [--after SECONDS]]
//
// With --pictures it writes what a phone and a desk show, light and dark, and tries nothing.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { chromium } from 'playwright-core';

import { HOSTILE, Instance } from './instance.js';

const { values: options } = parseArgs({
  options: {
    program: { type: 'string' },
    chromium: { type: 'string', default: '/usr/bin/chromium' },
    pictures: { type: 'string' },
    after: { type: 'string', default: '300' },
  },
});
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const SIZES = { phone: { width: 390, height: 844 }, desk: { width: 1280, height: 800 } };
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--no-first-run',
];
const folder = mkdtempSync(path.join(os.tmpdir(), 'roadweave-web-'));
const socket = path.join(folder, 'rw0.sock');
const tokenFile = path.join(folder, 'token');
const ended = [];

/** The program, as it runs for a crew. */
class Program {
  constructor(port) {
    this.address = `127.0.0.1:${port}`;
  }

  async start(...more) {
    const words = ['--listen', this.address, '--token-file', tokenFile, '--socket', socket, ...more];
    this.child = spawn(options.program, words, { stdio: ['ignore', 'ignore', 'inherit'] });
    ended.push(() => this.end());
    for (let tries = 0; ; tries += 1) {
      const answer = await fetch(`http://${this.address}/`).catch(() => null);
      if (answer) break;
      assert(tries < 100, 'the program does not listen');
      await sleep(100);
    }
    this.token = readFileSync(tokenFile, 'utf8').trim();
  }

  get page() {
    return `http://${this.address}/#token=${this.token}`;
  }

  async end() {
    if (!this.child) return;
    const gone = new Promise((resolve) => this.child.on('exit', resolve));
    if (this.child.exitCode === null) {
      this.child.kill('SIGTERM');
      await gone;
    }
    this.child = null;
  }
}

/** A port that nobody has now. */
function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** A page of its own, which notes requests to others and whatever the browser complains of. */
async function open(browser, size, colours, address) {
  const context = await browser.newContext({ viewport: SIZES[size], colorScheme: colours });
  const page = await context.newPage();
  const faults = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(address.split('#')[0])) faults.push(`asks ${request.url()}`);
  });
  page.on('pageerror', (error) => faults.push(`${error}`));
  page.on('console', (message) => {
    // While the box is away the browser says so by itself.
    const text = message.text();
    if (message.type() === 'error' && !/net::ERR|401|409/.test(text)) faults.push(text);
  });
  await page.goto(address);
  return { page, faults };
}

async function findings(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
  }));
  const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`);
  assert.deepEqual(told, [], `axe on ${what}`);
}

const text = (page, selector) => page.locator(selector).first().textContent();

async function until(what, holds) {
  const deadline = Date.now() + 20_000;
  while (!(await holds().catch(() => false))) {
    assert(Date.now() < deadline, `it never came: ${what}`);
    await sleep(100);
  }
}

const shows = (page, selector, wanted) =>
  until(`${selector}: ${wanted}`, async () => wanted.test(await text(page, selector)));

async function tests(browser) {
  const instance = new Instance(socket);
  await instance.listen();
  ended.push(() => instance.end().catch(() => {}));
  const program = new Program(await freePort());
  await program.start();
  const tried = async (name, test) => {
    await test();
    console.log(`${name}: in order`);
  };

  await tried('a phone and a desk, light and dark, have figures and no findings', async () => {
    for (const size of Object.keys(SIZES)) {
      for (const colours of ['light', 'dark']) {
        const { page, faults } = await open(browser, size, colours, program.page);
        await shows(page, '#session', /Connected to 192\.0\.2\.1:4433/);
        await shows(page, '#up', /^\d+\.\d+$/);
        await shows(page, '#target', /Encoder’s target \d/);
        await until('charts', async () => (await page.locator('canvas').count()) === 3);
        assert.equal(new URL(page.url()).hash, '', 'the token stays in the address');
        assert.equal(await page.locator('.link').count(), 3);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert(wide <= 0, `${size}: ${wide} pixels do not fit`);
        await page.locator('summary').click();
        await until('the table', async () => (await page.locator('#table tr').count()) === 3);
        await findings(page, `${size}, ${colours}`);
        await page.locator('.link button').first().click();
        await findings(page, `${size}, ${colours}, a question`);
        assert.deepEqual(faults, []);
        await page.context().close();
      }
    }
  });

  await tried('an uplink is paused and resumed by keys alone', async () => {
    const { page, faults } = await open(browser, 'phone', 'light', program.page);
    await shows(page, '#session', /Connected/);
    const button = page.getByRole('button', { name: 'Pause wwan0' });
    await button.focus();
    await page.keyboard.press('Enter');
    // The harmless answer comes first.
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Cancel');
    await page.keyboard.press('Escape');
    assert.equal(instance.changes.length, 0, 'Escape changes nothing');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Pause wwan0');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await shows(page, '#notice', /wwan0 is paused/);
    await page.getByRole('button', { name: 'Resume wwan0' }).waitFor();
    await shows(page, '.link .word', /Paused|Carries/);
    assert.deepEqual(instance.changes.at(-1), {
      method: 'set_uplink', uplink: 'wwan0', paused: true, force: false,
    });
    await page.getByRole('button', { name: 'Resume wwan0' }).focus();
    await page.keyboard.press('Space');
    await page.getByRole('button', { name: 'Pause wwan0' }).waitFor();
    assert.equal(instance.changes.at(-1).paused, false);
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  await tried('a lane follows another strategy', async () => {
    const { page, faults } = await open(browser, 'phone', 'dark', program.page);
    await page.getByLabel('Another strategy for tcp').selectOption('redundant');
    await page.getByRole('button', { name: 'Change the strategy of tcp' }).click();
    await shows(page, '#notice', /tcp now uses redundant/);
    assert.deepEqual(instance.changes.at(-1), { method: 'set_strategy', lane: 'tcp', strategy: 'redundant' });
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  await tried('the last uplink stays, and the page says why', async () => {
    instance.paused = new Set(['wwan1', 'usb-sat']);
    const { page } = await open(browser, 'phone', 'light', program.page);
    await page.getByRole('button', { name: 'Pause wwan0' }).click();
    await page.locator('#ask-yes').click();
    await shows(page, '#notice', /Nothing was changed: .*last uplink/);
    instance.paused = new Set();
    await page.context().close();
  });

  await tried('a client that ends and comes back is told, and the page goes on', async () => {
    const { page, faults } = await open(browser, 'desk', 'light', program.page);
    await shows(page, '#session', /Connected/);
    await instance.end();
    await shows(page, '#session', /does not answer/);
    await shows(page, '#since', /The figures below are/);
    assert(await page.locator('.link button').first().isDisabled());
    assert.equal(await text(page, '.word'), 'Unknown');
    await findings(page, 'a client that is away');
    instance.begin();
    await instance.listen();
    await shows(page, '#session', /Connected/);
    assert(await page.locator('#banner').isHidden());
    await shows(page, '#events', /it answers again/);
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  await tried('a client that hangs is told', async () => {
    const { page, faults } = await open(browser, 'phone', 'dark', program.page);
    await shows(page, '#session', /Connected/);
    instance.hangs = true;
    await shows(page, '#banner', /does not answer: no answer/);
    // A screen reader tells it once, however long it takes.
    const told = page.evaluate(() => new Promise((resolve) => {
      let changes = 0;
      const watch = new MutationObserver(() => { changes += 1; });
      const alerts = document.querySelectorAll('[role=alert], [role=status], [aria-live]');
      alerts.forEach((alert) => watch.observe(alert, { subtree: true, childList: true, characterData: true }));
      setTimeout(() => resolve(changes), 2_500);
    }));
    await shows(page, '#since', /are 4 s old/);
    await shows(page, '#since', /are 5 s old/);
    assert.equal(await told, 0, 'what is told changes');
    instance.hangs = false;
    await shows(page, '#session', /Connected/);
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  await tried('a program that ends and comes back is told, and the page goes on', async () => {
    await program.end();
    await program.start();
    const { page, faults } = await open(browser, 'desk', 'dark', program.page);
    await shows(page, '#up', /^\d+\.\d+$/);
    await program.end();
    await shows(page, '#banner', /The box does not answer/);
    // It counts events anew, and has as many.
    await page.locator('#events li').first().evaluate((item) => item.classList.add('of-before'));
    await program.start();
    await shows(page, '#session', /Connected/);
    await until('new events', async () => (await page.locator('#events .of-before').count()) === 0);
    await until('figures', async () => /^\d+\.\d+$/.test(await text(page, '#up')));
    assert(await page.locator('#banner').isHidden());
    assert.deepEqual(faults, []);
    await page.context().close();
  });

  await tried('without the token there is a field for it', async () => {
    const { page, faults } = await open(browser, 'phone', 'light', `http://${program.address}/`);
    await page.locator('#entry').waitFor();
    await findings(page, 'the field for the token');
    await page.locator('#token').fill('a'.repeat(64));
    await page.keyboard.press('Enter');
    await shows(page, '#entry-why', /not the token of this box/);
    await page.locator('#token').fill(program.page);
    await page.keyboard.press('Enter');
    await shows(page, '#session', /Connected/);
    // It is kept: the next visit needs no token.
    await page.goto(`http://${program.address}/`);
    await shows(page, '#session', /Connected/);
    assert.deepEqual(faults, []);
    await page.getByRole('button', { name: 'Forget this box' }).click();
    await page.locator('#entry').waitFor();
    assert.equal(await page.evaluate(() => localStorage.getItem('roadweave token')), null);
    await page.context().close();
  });

  await tried('what a peer calls itself is text', async () => {
    instance.hostile = true;
    const { page, faults } = await open(browser, 'phone', 'light', program.page);
    await shows(page, '#name', /<img src=x/);
    await shows(page, '#session', /<img src=x/);
    await until('the lane', async () => (await page.locator('.lane-name').allTextContents()).includes(HOSTILE));
    await page.getByRole('button', { name: `Change the strategy of ${HOSTILE}` }).waitFor();
    assert.equal(await page.locator('img').count(), 0);
    assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
    // Were there a way for markup, the browser would refuse it.
    const refused = await page.evaluate(() => {
      try {
        document.body.innerHTML = '<b>x</b>';
        return false;
      } catch {
        return true;
      }
    });
    assert(refused, 'markup is taken from strings');
    assert.deepEqual(faults.filter((fault) => !/TrustedHTML/.test(fault)), []);
    await page.context().close();
    instance.hostile = false;
  });

  await tried('who may only look has no buttons', async () => {
    await program.end();
    await program.start('--read-only');
    const { page } = await open(browser, 'phone', 'light', program.page);
    await shows(page, '#session', /Connected/);
    assert.equal(await page.locator('.link button:visible, .lane button:visible').count(), 0);
    await page.context().close();
  });
}

async function pictures(browser) {
  const instance = new Instance(socket);
  await instance.listen();
  ended.push(() => instance.end().catch(() => {}));
  const program = new Program(await freePort());
  await program.start();
  // Somebody looks meanwhile, so that there are five samples a second.
  const first = await open(browser, 'phone', 'light', program.page);
  await sleep(Number(options.after) * 1000);
  await first.page.context().close();
  for (const size of Object.keys(SIZES)) {
    for (const colours of ['light', 'dark']) {
      const { page } = await open(browser, size, colours, program.page);
      await shows(page, '#up', /^\d+\.\d+$/);
      await sleep(1_500);
      const name = path.join(options.pictures, `web-${size}-${colours}`);
      await page.screenshot({ path: `${name}.png` });
      await page.screenshot({ path: `${name}-whole.png`, fullPage: true });
      if (size === 'phone') {
        await page.locator('.link button').first().click();
        await page.screenshot({ path: `${name}-question.png` });
      }
      await page.context().close();
    }
  }
  const { page } = await open(browser, 'phone', 'light', `http://${program.address}/`);
  await page.screenshot({ path: path.join(options.pictures, 'web-phone-entry.png') });
  await page.goto(program.page);
  await shows(page, '#up', /^\d+\.\d+$/);
  await instance.end();
  await shows(page, '#session', /does not answer/);
  await page.screenshot({ path: path.join(options.pictures, 'web-phone-away.png') });
}

let code = 0;
const browser = await chromium.launch({ executablePath: options.chromium, args: FLAGS });
try {
  await (options.pictures ? pictures : tests)(browser);
} catch (error) {
  console.error(error);
  code = 1;
} finally {
  await browser.close();
  for (const end of ended) await end();
  rmSync(folder, { recursive: true, force: true });
}
process.exit(code);
