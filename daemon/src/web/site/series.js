// Curves in buckets of the same length, as the daemon sends them, and what comes after goes on in the same buckets.

import * as api from "./api.js";

/** Points of a curve that are asked for. */
const POINTS = 600;

/** Seconds of each window; 0 is all that is kept. */
export const WINDOWS = [[300, "5 min"], [3600, "1 h"], [0, "all"]];

export class Curves {
  constructor(metrics) {
    this.metrics = metrics;
    this.window = 0;
    this.period = 1;
    this.most = POINTS;
    this.curves = new Map(metrics.map((metric) => [metric, []]));
    this.from = this.to = 0;
    /**
     * Whether the daemon is to be asked again: it has not answered, or a window without an end has so many points by now that
     * they had better be thinned.
     */
    this.isStale = false;
  }

  /** Asks for a window of so many seconds; until the answer has come, and where none comes, it shows what is known of it. */
  async load(window) {
    if (this.metrics.length === 0) return;
    this.window = window;
    this.from = window > 0 ? this.to - window : 0;
    const query = `metrics=${this.metrics.join(",")}&window=${window}&points=${POINTS}`;
    const answer = await api.get(`series?${query}`).catch((error) => {
      this.isStale = true;
      throw error;
    });
    this.period = answer.period;
    this.to = answer.to;
    this.from = answer.from;
    // Of a bucket that is not over yet its mean counts as one value: the daemon knows how many there were, and soon it is over.
    for (const metric of this.metrics) {
      const points = (answer.series[metric] ?? []).map(([time, min, mean, max]) => ({ time, min, mean, max, values: 1 }));
      this.curves.set(metric, points);
    }
    this.most = Math.max(POINTS, ...[...this.curves.values()].map((points) => points.length)) + POINTS / 2;
    this.isStale = false;
  }

  /** The next value of a curve, at a time that is not before the last one's. */
  push(metric, time, value) {
    const points = this.curves.get(metric);
    if (!points || !Number.isFinite(value)) return;
    const middle = (Math.floor(time / this.period) + 0.5) * this.period;
    const last = points.at(-1);
    if (last && last.time >= middle) {
      last.values += 1;
      last.min = Math.min(last.min, value);
      last.max = Math.max(last.max, value);
      last.mean += (value - last.mean) / last.values;
    } else {
      points.push({ time: middle, min: value, mean: value, max: value, values: 1 });
    }
    this.move(time);
  }

  /** Time goes on: what has left the window goes. */
  move(time) {
    this.to = Math.max(this.to, time);
    if (this.window > 0) this.from = this.to - this.window;
    for (const points of this.curves.values()) {
      while (points.length > 0 && points[0].time < this.from - this.period) points.shift();
      if (points.length > this.most) {
        points.shift();
        this.isStale = true;
      }
    }
  }

  /** Where drawings begin: where the window does, or with the first value where that is later. */
  get begin() {
    const firsts = [...this.curves.values()].filter((points) => points.length > 0).map((points) => points[0].time - this.period / 2);
    return Math.max(this.from, Math.min(...firsts, this.to - 30));
  }

  of(metric) {
    return this.curves.get(metric) ?? [];
  }
}
