// The page: asks the program up to five times a second while it is visible, and shows the answer.

import './style.css';

import { Board, banner, byId, write } from './board';
import { Charts } from './charts';
import { type Lane, type Link, Unauthorized, change, forget, keep, read, token } from './client';
import { ago } from './format';
import { Samples } from './samples';
import { choose } from './theme';

const INTERVAL_MS = 200;
/** While the program does not answer. */
const REST_MS = 2_000;
/** While the page is in the background. */
const HIDDEN_MS = 5_000;
const TABLE_MS = 2_000;

const samples = new Samples();
const charts = new Charts(samples);
const board = new Board(samples, { pause, follow });

let secret = token();
let answeredAt: number | null = null;
let tableAt = 0;
let timer = 0;
let isAsking = false;

async function turn(): Promise<void> {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  const begun = performance.now();
  let rest = INTERVAL_MS;
  try {
    if (secret === null) {
      enter('');
      return;
    }
    const state = await read(secret, samples.newest);
    answeredAt = Date.now();
    byId('entry').hidden = true;
    byId('board').hidden = false;
    byId('forget').hidden = false;
    if (samples.take(state)) {
      board.show(state);
      charts.draw();
      if (begun - tableAt > TABLE_MS) {
        tableAt = begun;
        board.showTable();
      }
    }
  } catch (error) {
    rest = REST_MS;
    if (error instanceof Unauthorized) {
      secret = null;
      enter('That is not the token of this box.');
      return;
    }
    const since = answeredAt === null ? '' : `Its last answer was ${ago(Date.now() - answeredAt)} ago.`;
    banner('The box does not answer; this page tries again.', since);
    byId('session').dataset.mood = 'bad';
    write(byId('session'), 'Not connected to the box');
    document.body.classList.add('stale');
  } finally {
    isAsking = false;
  }
  if (document.hidden) rest = HIDDEN_MS;
  timer = window.setTimeout(() => void turn(), Math.max(20, rest - (performance.now() - begun)));
}

/** Asks for the token. */
function enter(why: string): void {
  banner(null);
  byId('board').hidden = true;
  byId('forget').hidden = true;
  byId('entry').hidden = false;
  write(byId('entry-why'), why);
  write(byId('session'), 'Not signed in');
  byId('token').focus();
}

byId('entry').addEventListener('submit', (event) => {
  event.preventDefault();
  const field = byId<HTMLInputElement>('token');
  // The whole address may be pasted, too.
  const found = /[0-9a-fA-F]{64}/.exec(field.value)?.[0];
  if (!found) {
    write(byId('entry-why'), 'A token has 64 digits from 0 to 9 and a to f.');
    return;
  }
  field.value = '';
  keep(found);
  secret = found;
  void turn();
});

window.addEventListener('hashchange', () => {
  const found = token();
  if (found) {
    secret = found;
    void turn();
  }
});
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) void turn();
});

function pause(link: Link): void {
  if (link.paused) {
    void wish('uplinks', { uplink: link.name, paused: false }, `${link.shown} is resumed`);
    return;
  }
  const ask = byId<HTMLDialogElement>('ask');
  write(byId('ask-title'), `Pause ${link.shown}?`);
  write(
    byId('ask-text'),
    `No traffic uses ${link.shown} until it is resumed, on this page or with ` +
      '“roadweave uplink resume” on the box.',
  );
  write(byId('ask-yes'), `Pause ${link.shown}`);
  ask.returnValue = 'no';
  ask.onclose = () => {
    if (ask.returnValue !== 'yes') return;
    void wish('uplinks', { uplink: link.name, paused: true }, `${link.shown} is paused`);
  };
  ask.showModal();
}

function follow(lane: Lane, strategy: string): void {
  void wish('lanes', { lane: lane.name, strategy }, `${lane.shown} now uses ${strategy}`);
}

/** Has something changed, and says what came of it. */
async function wish(what: string, content: object, done: string): Promise<void> {
  if (secret === null) return;
  const notice = byId('notice');
  try {
    const more = await change(secret, what, content);
    notice.dataset.mood = 'good';
    write(notice, more === null ? `${done}.` : `${done}: ${more}`);
  } catch (error) {
    notice.dataset.mood = 'bad';
    write(notice, `Nothing was changed: ${error instanceof Error ? error.message : 'no answer'}`);
  }
}

for (const direction of ['sent', 'received'] as const) {
  byId(direction).addEventListener('click', () => {
    charts.direction = direction;
    byId('sent').setAttribute('aria-pressed', `${direction === 'sent'}`);
    byId('received').setAttribute('aria-pressed', `${direction === 'received'}`);
    charts.draw();
  });
}
byId('forget').addEventListener('click', () => {
  forget();
  // Nothing of the box is left on the page, either.
  location.reload();
});
byId('table-details').addEventListener('toggle', () => board.showTable());
choose(byId<HTMLButtonElement>('theme'), () => {
  if (samples.all.length === 0) return;
  charts.renew();
  board.renewLegend();
});
void turn();
