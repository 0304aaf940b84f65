// The page's content. Strings from the program are inserted as text, never as markup.

import type { ClientEvent, Lane, Link, State } from './client';
import { DASHES, colour } from './charts';
import { ago, bytes, megabits, milliseconds, percent, seconds, technology } from './format';
import type { LinkSample, Samples } from './samples';

/** What the user can change. */
export interface Actions {
  pause(link: Link): void;
  follow(lane: Lane, strategy: string): void;
}

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

/** Sets a text only if it changed: a screen reader reads each change aloud. */
export function write(element: Element | null, text: string): void {
  if (element && element.textContent !== text) element.textContent = text;
}

function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** The age from which figures count as outdated. */
const SILENT_MS = 2_500;

interface Mood {
  word: string;
  mark: string;
  mood: 'good' | 'bad' | 'idle';
}

function mood(link: Link, isAway: boolean): Mood {
  if (isAway) return { word: 'Unknown', mark: '?', mood: 'idle' };
  if (link.paused) return { word: 'Paused', mark: '❚❚', mood: 'idle' };
  if (link.portal) return { word: 'Login needed', mark: '▲', mood: 'bad' };
  switch (link.status) {
    case 'usable':
      return { word: 'Carries data', mark: '●', mood: 'good' };
    case 'suspect':
      return { word: 'Silent', mark: '▲', mood: 'bad' };
    case 'standby':
      return { word: 'Standby', mark: '○', mood: 'idle' };
    case 'validating':
      return { word: 'Testing', mark: '○', mood: 'idle' };
    default:
      return { word: 'No path', mark: '✕', mood: 'bad' };
  }
}

export class Board {
  private links = new Map<string, HTMLElement>();
  private lanes = new Map<string, HTMLElement>();
  private legend = '';
  private newestEvent = '';

  constructor(
    private readonly samples: Samples,
    private readonly actions: Actions,
  ) {}

  show(state: State): void {
    const name = state.name ?? 'Roadweave';
    write(byId('name'), name);
    document.title = `${name} – Roadweave`;
    this.session(state);
    this.figures(state);
    this.showLinks(state);
    this.showLanes(state);
    this.showEvents(state);
    this.showLegend();
  }

  private session(state: State): void {
    const pill = byId('session');
    const silence = away(state);
    const [mood, text] =
      silence !== null
        ? ['bad', 'The client does not answer']
        : state.role !== 'client'
          ? ['idle', `A ${state.role ?? 'stranger'}, not a client`]
          : state.session !== null
            ? ['good', `Connected to ${state.session}`]
            : ['bad', 'No session'];
    pill.dataset.mood = mood;
    write(pill, text ?? '');
    if (silence !== null) {
      const since = `The figures below are ${ago(state.age_ms ?? 0)} old.`;
      banner(`The client does not answer: ${silence}.`, since);
    } else if (state.role === 'client' && state.session === null) {
      banner(`No session: ${state.no_session ?? 'unknown reason'}`);
    } else {
      banner(null);
    }
    document.body.classList.toggle('stale', silence !== null);
  }

  private figures(state: State): void {
    const goodput = away(state) === null ? this.samples.goodput() : null;
    write(byId('up'), megabits(goodput?.[0]));
    write(byId('down'), megabits(goodput?.[1]));
    const target = state.target_bps;
    write(
      byId('target'),
      target === null ? 'No encoder target' : `Encoder’s target ${megabits(target)} Mbit/s`,
    );
    write(byId('p99'), milliseconds(state.p99_ms));
    write(byId('stalls'), `${state.stalls}`);
    write(byId('stalled'), state.stalls > 0 ? seconds(state.stalled_ms) : '');
    byId('stalls-figure').dataset.mood = state.stalls > 0 ? 'bad' : 'good';
  }

  private showLinks(state: State): void {
    const list = byId('links');
    const isAway = away(state) !== null;
    each(this.links, state.links, list, () => this.link(), (item, link) => {
      const { word, mark, mood: kind } = mood(link, isAway);
      item.dataset.mood = kind;
      const place = this.samples.places.get(link.name);
      item.style.setProperty('--own', place === undefined ? 'var(--soft)' : `var(--link-${place % 6})`);
      write(part(item, 'link-name'), link.shown);
      const kinds = [
        link.operator,
        technology(link.technology),
        link.signal_dbm === null ? null : `${link.signal_dbm} dBm`,
        link.backup ? 'backup' : null,
      ];
      write(part(item, 'kind'), kinds.filter(Boolean).join(', '));
      write(part(item, 'mark'), mark);
      write(part(item, 'word'), word);
      const has = link.status !== null && !isAway;
      write(part(item, 'sent'), has ? megabits(link.sent_bps) : '–');
      write(part(item, 'received'), has ? megabits(link.received_bps) : '–');
      write(part(item, 'delay'), has ? milliseconds(link.round_trip_ms) : '–');
      write(part(item, 'loss'), has ? percent(link.loss) : '–');
      const caps = part(item, 'cap');
      caps.hidden = link.left_bytes === null;
      if (link.left_bytes !== null) {
        const of = link.cap_bytes ?? link.left_bytes;
        write(part(item, 'left'), `${bytes(link.left_bytes)} left of ${bytes(of)}`);
        const share = of > 0 ? link.left_bytes / of : 0;
        part(item, 'bar-in').style.width = `${(share * 100).toFixed(1)}%`;
        caps.classList.toggle('low', share < 0.1);
      }
      const button = item.querySelector('button') as HTMLButtonElement;
      button.hidden = state.read_only;
      button.disabled = isAway;
      write(button, `${link.paused ? 'Resume' : 'Pause'} ${link.shown}`);
      button.onclick = () => this.actions.pause(link);
    });
    if (state.links.length === 0 && list.childElementCount === 0) {
      list.append(make('li', 'card none', 'There is no uplink.'));
    } else if (state.links.length > 0) {
      list.querySelector('.none')?.remove();
    }
  }

  private link(): HTMLElement {
    const figure = (name: string, title: string, unit: string) =>
      make('div', '', make('dt', '', title), make('dd', '', make('span', name, '–'), ` ${unit}`));
    const bar = make('span', 'bar', make('span', 'bar-in'));
    bar.setAttribute('aria-hidden', 'true');
    const mark = make('span', 'mark');
    mark.setAttribute('aria-hidden', 'true');
    const button = make('button', '');
    button.type = 'button';
    return make(
      'li',
      'card link',
      make(
        'div',
        'link-head',
        make('h3', '', make('span', 'link-name'), ' ', make('span', 'kind')),
        make('p', 'link-state', mark, ' ', make('span', 'word')),
      ),
      make(
        'dl',
        'small',
        figure('sent', 'Sent', 'Mbit/s'),
        figure('received', 'Received', 'Mbit/s'),
        figure('delay', 'Delay', 'ms'),
        figure('loss', 'Loss', '%'),
      ),
      make('p', 'cap', bar, make('span', 'left')),
      button,
    );
  }

  private showLanes(state: State): void {
    byId('lanes-section').hidden = state.lanes.length === 0;
    each(this.lanes, state.lanes, byId('lanes'), () => this.lane(state), (item, lane) => {
      write(part(item, 'lane-name'), lane.shown);
      write(part(item, 'strategy'), lane.strategy);
      const form = item.querySelector('form') as HTMLFormElement;
      form.hidden = state.read_only;
      const select = form.querySelector('select') as HTMLSelectElement;
      select.setAttribute('aria-label', `Another strategy for ${lane.shown}`);
      const button = form.querySelector('button') as HTMLButtonElement;
      button.disabled = away(state) !== null;
      button.setAttribute('aria-label', `Change the strategy of ${lane.shown}`);
      form.onsubmit = (event) => {
        event.preventDefault();
        if (select.value) this.actions.follow(lane, select.value);
        select.value = '';
      };
    });
  }

  private lane(state: State): HTMLElement {
    const select = make('select', '');
    const none = make('option', '', 'Another …');
    none.value = '';
    select.append(none, ...state.strategies.map((name) => make('option', '', name)));
    const button = make('button', '', 'Change');
    button.type = 'submit';
    return make(
      'li',
      'lane',
      make('p', '', make('span', 'lane-name'), ' ', make('code', 'strategy')),
      make('form', '', select, button),
    );
  }

  private showEvents({ run, events }: State): void {
    const list = byId('events');
    // A restarted program numbers its events from 1 again.
    const newest = `${run} ${events[0]?.number ?? 0}`;
    if (newest !== this.newestEvent) {
      this.newestEvent = newest;
      const item = ({ text }: ClientEvent) =>
        make('li', '', make('span', 'ago'), make('span', 'text', text));
      list.replaceChildren(...events.map(item));
      if (events.length === 0) list.append(make('li', '', 'Nothing has happened yet.'));
    }
    events.forEach(({ ago_ms }, place) => {
      write(list.children[place]?.querySelector('.ago') ?? null, `${ago(ago_ms)} ago`);
    });
  }

  private showLegend(): void {
    if (this.legendKey() !== this.legend) this.renewLegend();
  }

  private legendKey(): string {
    return `${this.hasTarget()}\n${[...this.samples.places].join('\n')}`;
  }

  private hasTarget(): boolean {
    return this.samples.all.some((sample) => sample.target !== null);
  }

  /** Links or colours are others. */
  renewLegend(): void {
    this.legend = this.legendKey();
    const item = (name: string, stroke: string, dashes: number[]) => {
      const namespace = 'http://www.w3.org/2000/svg';
      const picture = document.createElementNS(namespace, 'svg');
      picture.setAttribute('viewBox', '0 0 34 12');
      picture.setAttribute('aria-hidden', 'true');
      const line = document.createElementNS(namespace, 'line');
      for (const [key, value] of Object.entries({ x1: 0, x2: 34, y1: 6, y2: 6, 'stroke-width': 4 })) {
        line.setAttribute(key, `${value}`);
      }
      line.setAttribute('stroke', stroke);
      line.setAttribute('stroke-dasharray', dashes.join(' '));
      picture.append(line);
      return make('li', '', picture as unknown as HTMLElement, name);
    };
    const links = [...this.samples.places].map(([name, place]) =>
      item(name, colour(place), DASHES[place % DASHES.length] ?? []),
    );
    const target = this.hasTarget() ? [item('encoder’s target', 'currentColor', [6, 5])] : [];
    byId('legend').replaceChildren(...links, ...target);
  }

  /** The charts' figures for those who do not see them. */
  showTable(): void {
    if (!byId<HTMLDetailsElement>('table-details').open) return;
    const row = (name: string) => {
      const all = this.samples.all
        .map((sample) => sample.links.get(name))
        .filter((link): link is LinkSample => link !== undefined);
      const mean = (of: (link: LinkSample) => number) =>
        all.reduce((sum, link) => sum + of(link), 0) / Math.max(1, all.length);
      const delays = all.map((link) => link.delay).filter((it): it is number => it !== null);
      delays.sort((a, b) => a - b);
      const cells = [
        `${megabits(mean((link) => link.sent) * 1e3)} Mbit/s`,
        `${megabits(mean((link) => link.received) * 1e3)} Mbit/s`,
        `${milliseconds(delays[Math.floor(delays.length / 2)])} ms`,
        `${milliseconds(delays.at(-1))} ms`,
        `${percent(mean((link) => link.loss) / 1e3)} %`,
        `${percent(mean((link) => Number(link.usable)))} %`,
      ];
      const head = make('th', '', name);
      head.scope = 'row';
      return make('tr', '', head, ...cells.map((cell) => make('td', '', cell)));
    };
    byId('table').replaceChildren(...this.samples.names.map(row));
  }
}

/** Why the client says nothing now, if it does not. */
function away(state: State): string | null {
  if (state.away !== null) return state.away;
  return (state.age_ms ?? 0) > SILENT_MS ? 'no answer' : null;
}

/** Says what is wrong, or nothing; and since when, which a screen reader does not tell again and again. */
export function banner(text: string | null, since = ''): void {
  byId('trouble').hidden = text === null;
  write(byId('banner'), text ?? '');
  write(byId('since'), since);
}

/** Keeps an element for each of `items`, in their order: what has the focus keeps it. */
function each<T extends { name: string }>(
  known: Map<string, HTMLElement>,
  items: T[],
  list: HTMLElement,
  make: () => HTMLElement,
  update: (element: HTMLElement, item: T) => void,
): void {
  const names = new Set(items.map((item) => item.name));
  for (const [name, element] of known) {
    if (names.has(name)) continue;
    element.remove();
    known.delete(name);
  }
  items.forEach((item, place) => {
    let element = known.get(item.name);
    if (!element) {
      element = make();
      known.set(item.name, element);
    }
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
    update(element, item);
  });
}

function part(item: HTMLElement, name: string): HTMLElement {
  return item.querySelector(`.${name}`) as HTMLElement;
}
