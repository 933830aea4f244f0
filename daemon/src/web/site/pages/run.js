// The run: how others join, what its members have agreed on, and what this machine's owner has set.

import * as api from "../api.js";
import { el, say, section, svg } from "../elements.js";

export default {
  title: "Run",
  lead: "How others join, what all members have agreed on, and what is set on this machine.",
  metrics: [],
  build() {
    const ticket = el("div", { class: "ticket" });
    const manifest = el("div");
    const settings = el("div");
    const note = el("p", { class: "quiet" });
    api.get("run").then((run) => {
      showTicket(ticket, run.closed);
      say(note, `${run.run} · ${run.closed ? "a closed run: only who has a ticket may join" : "an open run: anybody who knows it may join"}`);
      manifest.replaceChildren(...sections(run.manifest));
      settings.replaceChildren(...sections(run.settings, run.defaults));
    }, (error) => say(note, error.message));
    const nodes = [
      note,
      section("Ticket", ticket),
      section("Agreed on by all members", manifest),
      section("Set on this machine", el("p", { class: "quiet" }, "Bold: not the default. Of paths only the last part is shown, of secrets nothing."), settings),
    ];
    return { nodes, update: () => {} };
  },
};

/** The ticket; of a closed run a field for the token that it needs. */
async function showTicket(place, isClosed) {
  const token = api.token();
  if (isClosed && !token) return place.replaceChildren(ask(place));
  try {
    const answer = await api.get("ticket", { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    const secret = answer.closed ? "It holds the secret of a closed run: who has it may join." : "Others join with:";
    const line = el("pre", { tabindex: 0 }, answer.join);
    const copy = el("button", { type: "button", "aria-live": "polite", onclick: () => copyOf(line).then((said) => say(copy, said)) }, "Copy");
    return place.replaceChildren(el("div", {}, el("p", {}, secret), line, copy), code(answer.qr) ?? "");
  } catch (error) {
    if (error.status !== 401) return place.replaceChildren(el("p", { "data-tone": "bad" }, error.message));
    api.dropToken();
    return place.replaceChildren(ask(place, "This token is not valid now: each start of the daemon draws a new one."));
  }
}

/** Copies an element's text and says so; where the browser refuses, the text is selected for the keyboard. */
async function copyOf(line) {
  try {
    await navigator.clipboard.writeText(line.textContent);
    return "Copied";
  } catch {
    getSelection().selectAllChildren(line);
    return "This browser does not let a page copy: the line is selected, copy it with the keyboard";
  }
}

function ask(place, said = "") {
  const wrong = el("p", { "data-tone": "bad", role: "alert" }, said);
  const field = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false" });
  const show = () => {
    const token = field.value.trim();
    if (!/^[0-9a-f]{64}$/.test(token)) return say(wrong, "A token has 64 digits and letters a to f.");
    api.keepToken(token);
    return showTicket(place, true);
  };
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
  return el("div", {}, wrong,
    el("p", {}, "The ticket of a closed run lets others in, so it needs the daemon's token. It stands in ", el("code", {}, "daemon.json"), " in the data directory. ", el("code", {}, "murmur ticket"), " prints a ticket as well."),
    el("p", { class: "filter" }, el("label", { for: "token" }, "Token "), field, " ", el("button", { type: "button", onclick: show }, "Show")));
}

/** The ticket for a camera: dark on light in either theme, because readers expect it so. */
function code(qr) {
  if (!qr) return null;
  return svg("svg", { class: "qr", viewBox: `0 0 ${qr.size} ${qr.size}`, role: "img", "aria-label": "the ticket as a QR code", "shape-rendering": "crispEdges" },
    svg("rect", { width: qr.size, height: qr.size, class: "light" }), svg("path", { d: qr.path, class: "dark" }));
}

/** A table for each section. */
function sections(values, usual) {
  return Object.entries(values).filter(([, fields]) => fields && typeof fields === "object").map(([name, fields]) => {
    const rows = Object.entries(fields).filter(([, value]) => value !== null).map(([field, value]) => {
      const text = written(value);
      const isOther = usual && JSON.stringify(usual[name]?.[field]) !== JSON.stringify(value);
      return el("tr", {}, el("th", { scope: "row" }, field), el("td", {}, isOther ? el("strong", {}, text) : text));
    });
    return el("div", { class: "settings" }, el("h3", {}, name.replaceAll("_", " ")), el("table", {}, el("tbody", {}, ...rows)));
  });
}

function written(value) {
  if (value === "") return "none";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.map(written).join(", ");
  if (typeof value === "object") return JSON.stringify(value);
  return /[\n\t]/.test(value) ? JSON.stringify(value) : String(value);
}
