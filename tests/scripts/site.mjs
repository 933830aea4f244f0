// Tests the dashboard's scripts in node, with as little of a browser as they need: `node site.mjs SITE`, SITE being the folder of the
// scripts. What is wrong ends it with 1. `dashboard.cjs` looks at the page in a real browser.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";

// ---- As much of a browser as the scripts use ----

class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: new Map(), childNodes: [], listeners: [], dataset: {}, hidden: false, open: false, text: "" });
  }

  get children() { return this.childNodes; }
  get lastChild() { return this.childNodes.at(-1) ?? null; }
  get textContent() { return this.text + this.childNodes.map((child) => child.textContent).join(""); }
  set textContent(text) { [this.childNodes, this.text] = [[], text]; }
  setAttribute(name, value) { this.attributes.set(name, value); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  removeAttribute(name) { this.attributes.delete(name); }
  addEventListener(...listener) { this.listeners.push(listener); }
  append(...nodes) {
    for (const node of nodes) {
      const child = typeof node === "string" ? Object.assign(new Element("#text"), { text: node }) : node;
      child.parent = this;
      this.childNodes.push(child);
    }
  }

  replaceChildren(...nodes) {
    [this.childNodes, this.text] = [[], ""];
    this.append(...nodes);
  }

  insertBefore(node, before) {
    node.parent = this;
    this.childNodes = this.childNodes.filter((child) => child !== node);
    const place = before ? this.childNodes.indexOf(before) : this.childNodes.length;
    this.childNodes.splice(place, 0, node);
  }

  remove() { this.parent.childNodes = this.parent.childNodes.filter((child) => child !== this); }
  matches() { return false; }
  focus() {}
  find(holds) {
    for (const child of this.childNodes) {
      const found = holds(child) ? child : child.find(holds);
      if (found) return found;
    }
    return null;
  }
}

const named = new Map();
globalThis.document = {
  visibilityState: "visible",
  documentElement: new Element("html"),
  createElement: (tag) => Object.assign(new Element(tag), tag === "input" ? { value: "" } : {}),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: (id) => named.get(id) ?? named.set(id, new Element(id)).get(id),
  querySelectorAll: () => [],
  addEventListener: () => {},
};
globalThis.location = { hash: "#peers", reload: () => assert.fail("it reloads") };
globalThis.addEventListener = () => {};
globalThis.requestAnimationFrame = (draw) => setTimeout(draw, 0);
globalThis.ResizeObserver = class { observe() {} disconnect() {} };
// Of one tab.
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
Object.defineProperty(globalThis, "navigator", { configurable: true, value: {} });
const sources = [];
globalThis.EventSource = class {
  constructor(url) { sources.push(Object.assign(this, { url, readyState: 1 })); }
  close() { this.readyState = 2; }
};
globalThis.EventSource.CLOSED = 2;

// ---- A daemon ----

const NODE = "12D3KooWatticATTIC";
const member = (peer, more = {}) => ({
  facts: { peer, name: peer.slice(-4), connected: true, trust: 1, says_tokens_per_second: 10, age: 1, ...more },
  last: null, exchanges: 0, failed: 0, lag: null, rate: null,
});
const daemon = {
  session: 1,
  seq: 5,
  records: [],
  answered: [],
  summary: () => ({
    node: NODE, seq: daemon.seq, time: 1000, wall: 1e6, up: 100, rates: {}, peers_more: 0, exchanges: [], events: [], missed: 0, end: null,
    run: { session: daemon.session, version: "0.1.0", prediction: "byte", ratio_band: { low: 0.4, high: 0.8, drifting: 1.5 }, parameters: 1 },
    sample: sample({}), peers: [member("12D3KooWbarnBARN"), member("12D3KooWdeskDESK", { banned: true })],
  }),
};
const sample = (more) => ({
  phase: "training", doing: "training", steps: 0, progress: 0, tokens_per_second: 0, swarm_tokens_per_second: 0, step_seconds: 0, peers: 2,
  exchanges: 0, exchanges_failed: 0, interval_steps: 0, sent: 0, received: 0, today: 0, reachable: "", boundary_share: 0, ...more,
});
const record = (seq, body) => ({ v: 1, seq, t: new Date(1e6 + seq * 1000).toISOString(), up: 100 + seq, node: NODE, ...body });
const after = (url) => daemon.records.filter(({ seq }) => seq > Number(url.split("after=")[1]));
globalThis.fetch = async (url) => {
  const body = url.includes("/summary") ? daemon.summary() : { period: 1, from: 0, to: 1000, series: {} };
  const read = (content) => async () => {
    daemon.answered.push(url);
    return content;
  };
  return { ok: true, status: 200, json: read(body), text: read(after(url).map((one) => JSON.stringify(one)).join("\n")) };
};
const answered = (part) => daemon.answered.filter((url) => url.includes(part)).length;

async function until(what, holds) {
  for (let turn = 0; turn < 500; turn += 1) {
    if (holds()) return;
    await new Promise((next) => setTimeout(next, 10));
  }
  assert.fail(`waited in vain for ${what}`);
}

// ---- Tests ----

const folder = mkdtempSync(path.join(tmpdir(), "murmur-site-"));
const script = (name) => import(pathToFileURL(path.join(folder, name)).href);

/** A page as it is drawn of a summary. */
async function drawn(name, summary) {
  const { Picture } = await script("picture.js");
  const { Curves } = await script("series.js");
  const page = (await script(`pages/${name}.js`)).default;
  const picture = new Picture(summary);
  const context = { picture, curves: new Curves(page.metrics), isLost: false };
  const { nodes, update, close } = page.build(context);
  update(context);
  close?.();
  const root = new Element("main");
  root.append(...nodes);
  return root;
}

const figure = (root, label) => root.find((node) => node.getAttribute("class") === "figure" && node.children[0].textContent === label);

const tests = {
  async "bytes have the units that the terminal has"() {
    const { bytes } = await script("format.js");
    assert.deepEqual([999_994e6, 999_995e6, 2.5e12].map(bytes), ["999.99 GB", "1.00 TB", "2.50 TB"]);
  },

  async "a point without a neighbour is a dot"() {
    const { Chart } = await script("chart.js");
    const chart = new Chart({ title: "a", curves: [{ metric: "loss", name: "loss" }], written: String });
    // A step takes two minutes.
    const points = [0, 120, 240].map((time) => ({ time, min: 1, mean: 1, max: 1 }));
    chart.draw({ begin: 0, to: 240, period: 1, of: () => points });
    assert.equal(chart.shapes[0].line.getAttribute("d").match(/M[\d.]+ [\d.]+h\.01/g).length, 3);
    chart.draw({ begin: 0, to: 240, period: 60, of: () => points });
    assert.ok(!chart.shapes[0].line.getAttribute("d").includes("h"), "those of a line are none");
  },

  async "the error that ended training is an event"() {
    const { Picture } = await script("picture.js");
    const picture = new Picture(daemon.summary());
    picture.apply(record(6, { kind: "end", steps: 3, failure: "no memory" }));
    assert.deepEqual(picture.events.map(({ facts }) => [facts.level, facts.text]), [["error", "training has ended: no memory"]]);
    const inOrder = new Picture(daemon.summary());
    inOrder.apply(record(6, { kind: "end", steps: 3 }));
    assert.equal(inOrder.events.length, 0);
  },

  async "a step is not known before the first one"() {
    const value = (root) => figure(root, "Step").children[1].textContent;
    assert.equal(value(await drawn("resources", daemon.summary())), "–");
    assert.equal(value(await drawn("resources", { ...daemon.summary(), sample: sample({ step_seconds: 0.25 }) })), "250 ms");
  },

  async "what colours say is said in words as well"() {
    const events = ["info", "warning", "error"].map((level, seq) => ({ seq, wall: 1e6, times: 1, facts: { level, text: `it is ${level}` } }));
    const said = (await drawn("overview", { ...daemon.summary(), events })).textContent;
    for (const words of ["warning: it is warning", "error: it is error", "DESKbanned"]) {
      assert.ok(said.includes(words), `${words} is not in ${said}`);
    }
    assert.ok(said.includes("it is info") && !said.includes("info: "), said);
  },

  async "a team's cut is shown, how long training waited, and for whom"() {
    assert.equal(figure(await drawn("overview", daemon.summary()), "Team").hidden, true);
    const team = { state: "training", cut: "layers 0-3 here, 4-11 on barnBARN", waited: 75.4, slowest: "12D3KooWbarnBARN", lost: 1 };
    const shown = figure(await drawn("overview", { ...daemon.summary(), sample: sample({ team }) }), "Team");
    assert.equal(shown.hidden, false);
    assert.equal(shown.textContent, "Teamtraininglayers 0-3 here, 4-11 on barnBARN · waited 1 min 15 s, most for barnBARN · BARN · 1 helper lost");
  },

  async "a page stays as its reader has set it while the process is the same"() {
    await script("main.js");
    await until("a stream", () => sources.length === 1);
    const main = document.getElementById("main");
    const page = () => main.find((node) => node.getAttribute("id") === "filter");
    const filter = page();
    assert.ok(filter, "the page of members is open");
    // The line is cut, and there again.
    const [source] = sources;
    const again = () => { source.onerror(); source.onopen(); };
    source.onopen();
    const before = [answered("/records"), answered("/summary")];
    again();
    await until("what came meanwhile", () => answered("/records") > before[0]);
    assert.equal(answered("/summary"), before[1], "nothing begins anew");
    assert.equal(page(), filter);
    // It was away for so long that records are not kept any more.
    [daemon.seq, daemon.records] = [5000, [record(4000, { kind: "missed", count: 3994, of: "records" })]];
    again();
    await until("all of it anew", () => answered("/summary") > before[1]);
    await until("another stream", () => sources.length === 2);
    assert.match(sources[1].url, /after=5000$/);
    assert.equal(page(), filter);
    // Another process answers.
    [daemon.session, daemon.seq, daemon.records] = [2, 5001, [record(5001, { kind: "run", session: 2 })]];
    sources[1].onerror();
    sources[1].onopen();
    await until("the page of another process", () => page() !== filter && page() !== null);
  },
};

cpSync(process.argv[2], folder, { recursive: true });
writeFileSync(path.join(folder, "package.json"), '{"type": "module"}');
let wrong = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok    ${name}`);
  } catch (error) {
    wrong += 1;
    console.log(`WRONG ${name}: ${error.stack}`);
  }
}
rmSync(folder, { recursive: true });
process.exit(wrong === 0 ? 0 : 1);
