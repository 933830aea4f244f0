// A curve over time, drawn as SVG, with the least and greatest values behind it and, on request, as a table.
//
// This is the only chart of the page, and it is our own: it draws some hundred points a second at most, its colours come from
// the style sheet, and keys reach every point of it.

import { el, say, set, svg } from "./elements.js";
import { clock, zone } from "./format.js";

const HEIGHT = 190;
const MARGIN = { top: 10, right: 72, bottom: 24, left: 2 };

/** Rows of the table: more would not be read. */
const ROWS_MAX = 60;

let charts = 0;

export class Chart {
  /** `curves`: [{ metric, name }]; `written` makes text of a value; `band`: { low, high, name } is healthy. */
  constructor({ title, curves, written, band = null, zero = false }) {
    Object.assign(this, { title, curves, written, band, zero, cursor: null, width: 600 });
    this.id = `chart-${++charts}`;
    this.grid = svg("g", { class: "grid" });
    this.bandShape = svg("rect", { class: "band" });
    this.shapes = curves.map((_, index) => ({
      area: svg("path", { class: `area curve-${index}` }),
      line: svg("path", { class: `line curve-${index}` }),
      dot: svg("circle", { class: `dot curve-${index}`, r: 3.5, visibility: "hidden" }),
    }));
    this.rule = svg("line", { class: "rule", visibility: "hidden" });
    const layers = ["area", "line"].flatMap((layer) => this.shapes.map((shape) => shape[layer]));
    this.drawing = svg("svg", { role: "img", tabindex: 0, "aria-describedby": `${this.id}-said` },
      this.grid, this.bandShape, ...layers, this.rule, ...this.shapes.map((shape) => shape.dot));
    this.said = el("p", { class: "said", id: `${this.id}-said`, "aria-live": "off" });
    this.table = el("div", { class: "scroll" });
    this.details = el("details", { ontoggle: () => this.drawTable() }, el("summary", {}, "as a table"), this.table);
    const key = curves.length > 1 && el("ul", { class: "key" },
      ...curves.map((curve, index) => el("li", { class: `curve-${index}` }, curve.name)));
    this.keys = key ? [...key.children] : [];
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, el("span", {}, title), key || null), this.drawing, this.said, this.details);
    this.listen();
    this.observer = new ResizeObserver(([entry]) => this.resize(entry.contentRect.width));
    this.observer.observe(this.node);
  }

  close() {
    this.observer.disconnect();
  }

  resize(width) {
    if (Math.abs(width - this.width) < 1 || width === 0) return;
    this.width = width;
    if (this.data) this.draw(this.data);
  }

  listen() {
    const at = (event) => {
      const box = this.drawing.getBoundingClientRect();
      const { begin: from, to } = this.data ?? {};
      const share = (event.clientX - box.left - MARGIN.left) / Math.max(1, this.inner());
      this.point(from + share * (to - from));
    };
    this.drawing.addEventListener("pointermove", at);
    this.drawing.addEventListener("pointerdown", at);
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.drawing.addEventListener("blur", () => this.point(null));
    this.drawing.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
      if (!steps || !this.data) return;
      event.preventDefault();
      set(this.said, "aria-live", "polite");
      this.step(steps);
    });
  }

  inner() {
    return this.width - MARGIN.left - MARGIN.right;
  }

  /** Draws what a window of curves has. */
  draw(curves) {
    const lines = this.curves.map(({ metric }) => curves.of(metric));
    this.data = curves;
    const { begin: from, to } = curves;
    const scale = this.scale(lines);
    const x = (time) => MARGIN.left + ((time - from) / Math.max(1, to - from)) * this.inner();
    const y = (value) => MARGIN.top + (1 - (value - scale.low) / (scale.high - scale.low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    Object.assign(this, { x, y, lines });
    set(this.drawing, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    set(this.drawing, "aria-label", this.summary());
    this.drawGrid(scale, from, to);
    this.drawBand(scale);
    lines.forEach((points, index) => {
      const inside = points.filter((point) => point.time >= from - curves.period);
      const parts = split(inside, 5 * curves.period);
      if (this.keys[index]) this.keys[index].hidden = points.length === 0;
      set(this.shapes[index].line, "d", parts.map((part) => path(part, (point) => [x(point.time), y(point.mean)])).join(""));
      set(this.shapes[index].area, "d", parts.map((part) => hull(part, x, y)).join(""));
    });
    this.point(this.cursor);
    if (this.details.open && !this.table.matches(":hover, :focus-within")) this.drawTable();
  }

  scale(lines) {
    const values = lines.flatMap((points) => points.flatMap((point) => [point.min, point.max]));
    if (this.band) values.push(0, this.band.high * 1.15);
    if (this.zero) values.push(0);
    let low = values.reduce((one, other) => Math.min(one, other), Infinity);
    let high = values.reduce((one, other) => Math.max(one, other), -Infinity);
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = low > 0 && this.zero ? [0, high * 1.2] : [low - 0.5, high + 0.5];
    const room = (high - low) * 0.06;
    const isAtZero = low === 0;
    return { low: isAtZero ? 0 : low - room, high: high + room };
  }

  drawGrid({ low, high }, from, to) {
    const wanted = ticks(low, high, 3, this.written).map((value) => [this.y(value), this.written(value)]);
    const times = [from, (from + to) / 2, to];
    const labels = times.map((time, index) => (to - from > 0 ? age(to - time) : index === 2 ? "now" : ""));
    const key = JSON.stringify([wanted, labels, this.width]);
    if (key === this.gridKey) return;
    this.gridKey = key;
    const right = MARGIN.left + this.inner();
    this.grid.replaceChildren(
      ...wanted.flatMap(([at, text]) => [
        svg("line", { x1: MARGIN.left, x2: right, y1: at, y2: at }),
        label(right + 8, at + 4, "start", text),
      ]),
      ...labels.map((text, index) => label(MARGIN.left + (index / 2) * this.inner(), HEIGHT - 5, ["start", "middle", "end"][index], text)),
    );
  }

  drawBand({ low, high }) {
    if (!this.band) return set(this.bandShape, "visibility", "hidden");
    const [top, bottom] = [Math.min(high, this.band.high), Math.max(low, this.band.low)];
    set(this.bandShape, "x", MARGIN.left);
    set(this.bandShape, "width", Math.max(0, this.inner()));
    set(this.bandShape, "y", this.y(top));
    set(this.bandShape, "height", Math.max(0, this.y(bottom) - this.y(top)));
    return undefined;
  }

  /** Shows the values at a time; nothing where there is none. */
  point(time) {
    this.cursor = time;
    const nearest = time === null || !this.lines ? null : near(this.lines.find((points) => points.length > 0) ?? [], time);
    set(this.rule, "visibility", nearest ? "visible" : "hidden");
    this.shapes.forEach(({ dot }, index) => {
      const point = nearest && this.at(index, nearest.time);
      set(dot, "visibility", point ? "visible" : "hidden");
      if (point) { set(dot, "cx", this.x(point.time)); set(dot, "cy", this.y(point.mean)); }
    });
    if (!nearest) return say(this.said, this.band ? `The shaded range is ${this.band.name}.` : "");
    set(this.rule, "x1", this.x(nearest.time)); set(this.rule, "x2", this.x(nearest.time));
    set(this.rule, "y1", MARGIN.top); set(this.rule, "y2", HEIGHT - MARGIN.bottom);
    return say(this.said, `${age(this.data.to - nearest.time)}: ${this.values(nearest.time).join(", ")}`);
  }

  /** A curve's point at a time; none before it begins, and none in a gap. */
  at(index, time) {
    const point = near(this.lines[index], time);
    const { period } = this.data;
    return point && point.time - time <= period / 2 && time - point.time <= 2 * period ? point : null;
  }

  /** Of the curves that have points there. */
  values(time) {
    return this.curves.flatMap(({ name }, index) => {
      const point = this.at(index, time);
      if (!point) return [];
      const value = this.written(point.mean);
      return this.curves.length > 1 ? `${name} ${value}` : value;
    });
  }

  /** So many points along. */
  step(steps) {
    const points = this.lines.find((line) => line.length > 0) ?? [];
    if (points.length === 0) return;
    const now = this.cursor === null ? points.length - 1 : points.indexOf(near(points, this.cursor));
    const next = this.cursor === null && Math.abs(steps) === 1 ? now : now + steps;
    this.point(points[Math.min(points.length - 1, Math.max(0, next))].time);
  }

  summary() {
    const parts = this.curves.map(({ name }, index) => {
      const points = this.lines[index];
      if (points.length === 0) return `${name}: nothing yet`;
      const least = points.reduce((low, point) => Math.min(low, point.min), Infinity);
      const most = points.reduce((high, point) => Math.max(high, point.max), -Infinity);
      return `${name}: now ${this.written(points.at(-1).mean)}, between ${this.written(least)} and ${this.written(most)}`;
    });
    return `${this.title}. ${parts.join(". ")}.`;
  }

  /** The same as numbers, the newest first. */
  drawTable() {
    if (!this.details.open || !this.lines) return;
    const longest = this.lines.reduce((one, other) => (other.length > one.length ? other : one), []);
    const every = Math.max(1, Math.ceil(longest.length / ROWS_MAX));
    const rows = longest.filter((_, index) => (longest.length - 1 - index) % every === 0).reverse();
    const header = el("tr", {}, el("th", { scope: "col" }, "time"), ...this.curves.map(({ name }) => el("th", { scope: "col", class: "number" }, name)));
    const cells = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, clock(row.time * 1000)),
      ...this.lines.map((_, index) => {
        const point = this.at(index, row.time);
        return el("td", { class: "number" }, point ? this.written(point.mean) : "–");
      })));
    this.table.replaceChildren(el("table", {}, el("caption", {}, `${this.title}. Times of this browser's clock (${zone()}).`), el("thead", {}, header), el("tbody", {}, ...cells)));
  }
}

function label(x, y, anchor, text) {
  return svg("text", { x, y, "text-anchor": anchor }, text);
}

/** How long ago, for an axis. */
function age(seconds) {
  const whole = Math.round(seconds);
  if (whole < 2) return "now";
  if (whole < 120) return `${whole} s ago`;
  const about = (number) => String(Math.round(10 * number) / 10);
  if (whole < 7200) return `${about(whole / 60)} min ago`;
  if (whole < 172800) return `${about(whole / 3600)} h ago`;
  return `${about(whole / 86400)} d ago`;
}

/** Round values between two, about so many; fewer where they would be written alike. */
function ticks(low, high, wanted, written) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw) ?? raw;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high && found.length < 8; value += step) {
    const tick = Math.abs(value) < step * 1e-9 ? 0 : value;
    if (found.length === 0 || written(found.at(-1)) !== written(tick)) found.push(tick);
  }
  return found;
}

/** Runs of points without a gap. */
function split(points, gap) {
  const parts = [];
  for (const point of points) {
    const part = parts.at(-1);
    if (part && point.time - part.at(-1).time <= Math.max(gap, 60)) part.push(point);
    else parts.push([point]);
  }
  return parts;
}

function path(points, place) {
  const drawn = points.map((point, index) => {
    const [x, y] = place(point);
    return `${index === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  // Its ends are round, so this is a dot. Of no length at all nothing would be left where lines are dashed.
  if (drawn.length === 1) drawn.push("h.01");
  return drawn.join("");
}

/** From the greatest values and back along the least. */
function hull(points, x, y) {
  if (points.length < 2) return "";
  const up = path(points, (point) => [x(point.time), y(point.max)]);
  const back = path([...points].reverse(), (point) => [x(point.time), y(point.min)]).replace("M", "L");
  return `${up}${back}Z`;
}

/** The point that is nearest to a time. */
function near(points, time) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].time < time) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [points[low - 1], points[low]];
  if (!before || !after) return after ?? before ?? null;
  return time - before.time < after.time - time ? before : after;
}
