// Five minutes of samples, as columns for the charts.

import type { State } from './client';

/** Seconds that are kept. */
export const SPAN_S = 300;
/** As many as the program keeps. */
const COUNT_MAX = 1_600;

/** One link in one sample; null without a path or an answer. */
export interface LinkSample {
  sent: number;
  received: number;
  delay: number | null;
  loss: number;
  usable: boolean;
}

export interface Sample {
  number: number;
  /** Seconds since 1970. */
  at: number;
  goodput: [number, number] | null;
  target: number | null;
  links: Map<string, LinkSample>;
}

export class Samples {
  all: Sample[] = [];
  /** Links in the order in which they came, each with its place among the colours, which it keeps. */
  places = new Map<string, number>();
  private run = '';
  /** What to add to the program's ms for those since 1970. */
  private offset = 0;

  get names(): string[] {
    return [...this.places.keys()];
  }

  get newest(): number {
    return this.all.at(-1)?.number ?? 0;
  }

  /** Adds an answer. Returns false if the program restarted, so that all samples are needed. */
  take(state: State): boolean {
    const offset = Date.now() - state.now_ms;
    if (state.run !== this.run) {
      const isFirst = this.run === '' || state.samples.rows[0]?.[0] === 1;
      this.all = [];
      this.run = state.run;
      this.offset = offset;
      if (!isFirst) return false;
    }
    const moved = offset - this.offset;
    if (Math.abs(moved) > 2_000) {
      // This device's clock is another one: what is there stays in order with what comes.
      this.offset = offset;
      for (const sample of this.all) sample.at += moved / 1000;
    }
    for (const [number, at, goodput, target, links] of state.samples.rows) {
      if (number <= this.newest) continue;
      const byName = new Map<string, LinkSample>();
      for (const [place, sent, received, delay, loss, usable] of links) {
        const name = state.samples.names[place];
        if (name === undefined) continue;
        if (!this.places.has(name) && this.places.size < 64) this.places.set(name, this.free());
        byName.set(name, { sent, received, delay, loss, usable });
      }
      this.all.push({ number, at: (at + this.offset) / 1000, goodput, target, links: byName });
    }
    const oldest = (state.now_ms + this.offset) / 1000 - SPAN_S;
    this.all = this.all.filter((sample) => sample.at >= oldest).slice(-COUNT_MAX);
    for (const name of this.names) {
      if (!this.all.some((sample) => sample.links.has(name))) this.places.delete(name);
    }
    return true;
  }

  /** The first place that no link has. */
  private free(): number {
    const taken = new Set(this.places.values());
    let place = 0;
    while (taken.has(place)) place += 1;
    return place;
  }

  /** The mean goodput of the last second, bit/s: up and down. */
  goodput(): [number, number] | null {
    const newest = this.all.at(-1);
    if (!newest?.goodput) return null;
    const late = this.all.filter((sample) => sample.at > newest.at - 0.99 && sample.goodput);
    const mean = (way: 0 | 1) =>
      (late.reduce((sum, sample) => sum + (sample.goodput?.[way] ?? 0), 0) / late.length) * 1e3;
    return [mean(0), mean(1)];
  }
}
