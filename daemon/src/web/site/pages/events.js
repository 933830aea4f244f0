// What has happened, the newest first.

import { el, say, set } from "../elements.js";
import { clock, count, zone } from "../format.js";

const LEVELS = [["all", "all"], ["warning", "warnings and errors"], ["error", "errors"]];
const SHOWN = { all: ["info", "warning", "error"], warning: ["warning", "error"], error: ["error"] };

export default {
  title: "Events",
  lead: "What the daemon noticed. A warning says what to do about it.",
  metrics: [],
  build() {
    let level = "all";
    let context = null;
    let key = "";
    const search = el("input", { type: "search", id: "search", placeholder: "text", autocomplete: "off" });
    const list = el("ol", { class: "events" });
    const note = el("p", { class: "quiet", role: "status" });
    const choice = ([value, name]) => el("label", {},
      el("input", { type: "radio", name: "level", value, checked: value === level, onchange: () => { level = value; again(); } }),
      el("span", {}, name));
    const again = () => { key = ""; if (context) update(context); };
    search.addEventListener("input", again);

    function update(given) {
      context = given;
      const { events } = given.picture;
      const wanted = search.value.trim().toLowerCase();
      const shown = events.filter(({ facts }) => SHOWN[level].includes(facts.level)
        && `${facts.text} ${facts.hint ?? ""}`.toLowerCase().includes(wanted)).reverse();
      // At midnight a date comes before what was today's.
      const next = `${shown.length} ${shown[0]?.seq} ${events.length} ${new Date().toDateString()}`;
      if (next === key) return;
      key = next;
      list.replaceChildren(...shown.map(line));
      const warnings = events.filter(({ facts }) => facts.level !== "info").length;
      say(note, `${count(shown.length)} of ${count(events.length)} events, ${count(warnings)} of them warnings or errors. Healthy: no new warnings.`);
    }
    const nodes = [
      el("div", { class: "filter" },
        el("fieldset", { class: "windows" }, el("legend", {}, "Show"), ...LEVELS.map(choice)),
        el("p", {}, el("label", { for: "search" }, "Only with "), search)),
      note, list, el("p", { class: "quiet" }, `Times are those of this browser's clock (${zone()}).`),
    ];
    return { nodes, update };
  },
};

function line({ wall, times, facts }) {
  const time = el("time", { datetime: new Date(wall).toISOString(), title: new Date(wall).toLocaleString() }, clock(wall));
  const word = facts.level === "info" ? null : el("strong", {}, facts.level);
  const often = times > 1 ? el("span", { class: "quiet" }, ` ${times} times`) : null;
  const hint = facts.hint ? el("p", { class: "hint" }, facts.hint) : null;
  const node = el("li", {}, time, el("div", {}, el("p", {}, word, word && " ", facts.text, often), hint));
  set(node, "data-tone", { error: "bad", warning: "fair" }[facts.level] ?? null);
  return node;
}
