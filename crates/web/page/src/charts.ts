// Rate, delay and loss of each uplink in five minutes. The three share their time and cursor.

import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';

import { SPAN_S, type LinkSample, type Sample, type Samples } from './samples';

/** Lines of links differ in dashes as well as in colour. */
export const DASHES: number[][] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [14, 4]];

/** The colours of links, from the style sheet, so that they fit light and dark. */
export function colour(place: number): string {
  return css(`--link-${place % 6}`);
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

type Figure = 'rate' | 'delay' | 'loss';
type Direction = 'sent' | 'received';

/** What a figure has at least at its upper end. */
const LEAST: Record<Figure, number> = { rate: 1, delay: 50, loss: 5 };
const HEIGHTS: Record<Figure, number> = { rate: 190, delay: 120, loss: 100 };

export class Charts {
  direction: Direction = 'sent';
  private plots = new Map<Figure, uPlot>();
  private made = '';

  constructor(private readonly samples: Samples) {
    const watch = new ResizeObserver(() => this.resize());
    watch.observe(holder('rate'));
  }

  /** Draws what is known. */
  draw(): void {
    const key = [...this.samples.places].join('\n');
    if (key !== this.made || this.plots.size === 0) this.make(key);
    const now = Date.now() / 1000;
    for (const [figure, plot] of this.plots) {
      plot.batch(() => {
        plot.setData(this.data(figure), false);
        plot.setScale('x', { min: now - SPAN_S, max: now });
      });
    }
  }

  /** Colours are others from now on. */
  renew(): void {
    this.made = '';
    for (const plot of this.plots.values()) plot.destroy();
    this.plots.clear();
    this.draw();
  }

  private make(key: string): void {
    for (const plot of this.plots.values()) plot.destroy();
    this.plots.clear();
    this.made = key;
    for (const figure of ['rate', 'delay', 'loss'] as const) {
      const element = holder(figure);
      this.plots.set(figure, new uPlot(this.options(figure, element), this.data(figure), element));
    }
  }

  private resize(): void {
    for (const [figure, plot] of this.plots) {
      plot.setSize({ width: holder(figure).clientWidth, height: HEIGHTS[figure] });
    }
  }

  private options(figure: Figure, element: HTMLElement): uPlot.Options {
    const axis = { stroke: css('--soft'), grid: { stroke: css('--grid'), width: 1 } };
    const font = '12px system-ui, sans-serif';
    const places = [...this.samples.places.values()];
    const lines: uPlot.Series[] = places.map((place) => ({
      stroke: colour(place),
      width: 2,
      dash: DASHES[place % DASHES.length] ?? [],
      points: { show: false },
    }));
    // The sum of all is painted first; each smaller sum covers its part of it.
    const areas = places.map((place) => ({
      stroke: colour(place),
      fill: colour(place),
      width: 1,
      points: { show: false },
    }));
    const target = { stroke: css('--text'), width: 2, dash: [6, 5], points: { show: false } };
    return {
      width: element.clientWidth || 300,
      height: HEIGHTS[figure],
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: 'time' }, drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: true },
        y: { range: (_, __, most) => [0, Math.max(LEAST[figure], (most ?? 0) * 1.08)] },
      },
      axes: [
        { ...axis, font, size: 28, space: 46, incrs: [60, 120, 300], values: (_, times) => times.map(clock) },
        { ...axis, font, size: 46, space: 28 },
      ],
      series: [{}, ...(figure === 'rate' ? [...areas.reverse(), target] : lines)],
    };
  }

  private data(figure: Figure): uPlot.AlignedData {
    const { all, names } = this.samples;
    const times = all.map((sample) => sample.at);
    if (figure !== 'rate') {
      const of = (link: LinkSample | undefined) =>
        link === undefined || link.delay === null
          ? null
          : figure === 'delay' ? link.delay : link.loss / 10;
      return [times, ...names.map((name) => all.map((sample) => of(sample.links.get(name))))];
    }
    const sums: (number | null)[][] = names.map(() => []);
    for (const sample of all) {
      let sum = 0;
      names.forEach((name, place) => {
        sum += (sample.links.get(name)?.[this.direction] ?? 0) / 1e3;
        sums[place]?.push(sample.links.size > 0 ? sum : null);
      });
    }
    const target = all.map((sample) => this.target(sample));
    return [times, ...sums.reverse(), target];
  }

  /** The encoder's target is of what is sent. */
  private target(sample: Sample): number | null {
    return this.direction === 'sent' && sample.target !== null ? sample.target / 1e3 : null;
  }
}

function clock(time: number): string {
  return new Date(time * 1000).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23',
  });
}

function holder(figure: Figure): HTMLElement {
  return document.getElementById(figure) as HTMLElement;
}
