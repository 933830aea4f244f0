// The page: which part of it is shown, and the records that keep it true.

import * as api from "./api.js";
import { el, say, set } from "./elements.js";
import { named } from "./format.js";
import * as health from "./health.js";
import { Picture } from "./picture.js";
import { Curves, WINDOWS } from "./series.js";
import { Stream } from "./stream.js";
import overview from "./pages/overview.js";
import swarm from "./pages/swarm.js";
import peers from "./pages/peers.js";
import traffic from "./pages/traffic.js";
import events from "./pages/events.js";
import resources from "./pages/resources.js";
import run from "./pages/run.js";
import data from "./pages/data.js";

const PAGES = { overview, swarm, peers, traffic, events, resources, run, data };
const NAMES = Object.keys(PAGES);

/** The page is drawn so often at most, in milliseconds. */
const FRAME = 250;

/** After a request without an answer the next one comes so much later, in milliseconds. */
const AGAIN = 3000;

const main = document.getElementById("main");
const state = { picture: null, curves: null, turn: 0, update: null, close: null, isLost: false, drawnAt: 0, isDue: false };
/** The curves of each page that was opened, so that they are still there once the daemon has ended. */
let kept = new Map();
let stream = null;
let windowSeconds = Number(stored("murmur-window") ?? 300);

function stored(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}

function store(key, value) {
  try { localStorage.setItem(key, value); } catch { /* for this page alone then */ }
}

/** Everything so far, and then what comes. */
async function begin() {
  let isSame = false;
  try {
    const summary = await api.get("summary");
    const before = state.picture;
    // Another version of the daemon has other scripts.
    if (before && before.run.version !== summary.run.version) return location.reload();
    isSame = before !== null && before.node === summary.node && before.run.session === summary.run.session;
    if (isSame) {
      before.begin(summary);
    } else {
      state.picture = new Picture(summary);
      kept = new Map();
    }
  } catch (error) {
    lost(error);
    setTimeout(begin, AGAIN);
    return;
  }
  // The page in sight stays as its reader has set it.
  if (isSame && state.update) await fetchAgain();
  else await open();
  if (stream) stream.restart(state.picture.seq);
  else stream = new Stream(state.picture.seq, { taken, reset, told, isForeign });
}

function lost(error) {
  state.isLost = true;
  showConnection();
  if (state.update) return draw();
  return main.replaceChildren(el("h1", { class: "verdict", "data-tone": "bad" }, "The daemon does not answer"), el("p", { class: "quiet" }, error.message));
}

/** The process is another one, or too much was missed: all that is known begins anew. */
function reset() {
  stream.close();
  begin();
}

function told(word) {
  const isLost = word === "lost";
  if (isLost === state.isLost) return;
  state.isLost = isLost;
  wish();
}

/** Whether a record is of another node, or of another process of this one. */
function isForeign(record) {
  return record.node !== state.picture.node || (record.kind === "run" && record.session !== state.picture.run.session);
}

/** Takes in a record. Tests call it, too. */
export function taken(record) {
  state.picture.apply(record, (metric, time, value) => kept.forEach((curves) => curves.push(metric, time, value)));
  return wish();
}

/** Asks for a drawing, at most some times a second and only while somebody looks. */
function wish() {
  if (state.isDue || document.visibilityState === "hidden") return;
  state.isDue = true;
  const wait = Math.max(0, FRAME - (performance.now() - state.drawnAt));
  setTimeout(() => requestAnimationFrame(() => {
    state.isDue = false;
    draw();
  }), wait);
}

export function draw() {
  state.drawnAt = performance.now();
  if (!state.picture || !state.update) return;
  const { picture } = state;
  say(document.getElementById("run"), picture.run.run_name || picture.run.run || "murmur");
  say(document.getElementById("node"), named(picture.node, picture.run.name));
  showConnection();
  if (state.curves.isStale && !state.isFetching) fetchAgain();
  state.update(context());
}

function showConnection() {
  const connection = document.getElementById("connection");
  const isSilent = state.isLost || (state.picture !== null && health.isSilent(state.picture, false));
  say(connection, state.isLost ? "Not connected to the daemon" : isSilent ? "Nothing new from the daemon" : "Live");
  set(connection, "data-tone", isSilent ? "bad" : null);
  // What was in order then may not be so now.
  set(main, "data-silent", isSilent ? "" : null);
}

async function fetchAgain() {
  state.isFetching = true;
  try {
    await state.curves.load(windowSeconds);
    state.isFetching = false;
    wish();
  } catch {
    setTimeout(() => { state.isFetching = false; }, AGAIN);
  }
}

function context() {
  return { picture: state.picture, curves: state.curves, isLost: state.isLost, wish };
}

/** Opens the page that the address names; false where another one was asked for meanwhile. */
async function open() {
  const own = state.turn += 1;
  api.takeToken();
  const name = NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "overview";
  const page = PAGES[name];
  for (const link of document.querySelectorAll("#pages a")) {
    set(link, "aria-current", link.hash === `#${name}` ? "page" : null);
  }
  document.title = `${page.title} · murmur`;
  const curves = kept.get(name) ?? new Curves(page.metrics);
  kept.set(name, curves);
  let isLost = false;
  try { await curves.load(windowSeconds); } catch { isLost = true; }
  if (own !== state.turn) return false;
  // Of a daemon that has ended its last word stays, with what is known of the curves.
  state.isLost ||= isLost;
  state.close?.();
  state.curves = curves;
  const built = page.build(context());
  const head = name === "overview" ? [] : [el("h1", {}, page.title), el("p", { class: "lead" }, page.lead)];
  const choice = page.metrics.length > 0 || page.hasWindows ? windows() : null;
  main.replaceChildren(...head, ...(choice && name !== "overview" ? [choice] : []), ...built.nodes);
  if (choice && name === "overview") built.place?.(choice);
  state.update = built.update;
  state.close = built.close;
  draw();
  return true;
}

/** Which window the curves show. */
function windows() {
  const choice = (seconds, name) => {
    const input = el("input", { type: "radio", name: "window", value: seconds, checked: seconds === windowSeconds });
    input.addEventListener("change", () => {
      windowSeconds = seconds;
      store("murmur-window", seconds);
      open().then((isOpen) => isOpen && main.querySelector("input[name=window]:checked")?.focus());
    });
    return el("label", {}, input, el("span", {}, name));
  };
  return el("fieldset", { class: "windows" }, el("legend", {}, "Curves of the last"), ...WINDOWS.map((one) => choice(...one)));
}

function buildPages() {
  const list = document.getElementById("pages");
  list.replaceChildren(...NAMES.map((name) => el("li", {}, el("a", { href: `#${name}` }, PAGES[name].title))));
  addEventListener("hashchange", () => {
    // Before the first answer there is nothing to draw, and `begin` opens what is named by then.
    if (location.hash === "#main" || !state.picture) return;
    open().then((isOpen) => {
      if (!isOpen) return;
      // Who reads with the ears goes on where the new page begins.
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    });
  });
}

/** The system's theme, a light or a dark one, in turn. */
function buildTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const name = () => root.dataset.theme ?? "system";
  const show = () => say(button, `Theme: ${name()}`);
  button.addEventListener("click", () => {
    const next = { system: "light", light: "dark", dark: "system" }[name()];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    store("murmur-theme", next);
    show();
  });
  show();
}

buildPages();
buildTheme();
main.replaceChildren(el("p", { class: "quiet" }, "Asking the daemon…"));
begin();
// Ages grow although nothing comes.
setInterval(wish, 1000);
