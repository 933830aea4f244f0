// The data of a run that shares it: which shards are here, and what was fetched from members.

import * as api from "../api.js";
import { el, figure, figures, say } from "../elements.js";
import { bytes, count, percent } from "../format.js";

/** How often it is asked for, in milliseconds. */
const PERIOD = 5000;

export default {
  title: "Data",
  lead: "Where a run shares its data, members hold parts of it and fetch what they lack from each other.",
  metrics: [],
  build() {
    const note = el("p", {}, "Asking…");
    const [held, assigned, reachable, fetched, served] =
      [figure("Shards held"), figure("Assigned"), figure("Within reach"), figure("Fetched"), figure("Served")];
    const list = figures(held, assigned, reachable, fetched, served);
    const progress = el("progress", { max: 1, "aria-label": "assigned shards that are here" });
    list.hidden = progress.hidden = true;
    let timer = null;
    let isOver = false;
    const ask = async () => {
      if (document.visibilityState !== "hidden") {
        try { show((await api.get("status")).data); } catch { /* the page says that the daemon is silent */ }
      }
      if (!isOver) timer = setTimeout(ask, PERIOD);
    };

    function show(data) {
      list.hidden = progress.hidden = !data;
      if (!data) return say(note, "This run does not share its data: each member has its own copy, or makes it, as the built-in stories do.");
      const isAll = data.shards_assigned_held >= data.shards_assigned;
      progress.value = data.shards_assigned > 0 ? data.shards_assigned_held / data.shards_assigned : 1;
      say(note, isAll ? "Everything that this node is to hold is here." : `${percent(progress.value)} of what this node is to hold is here.`);
      held.show(`${count(data.shards_held)} of ${count(data.shards)}`, { words: "on this disk; a share of them is healthy, all are not needed" });
      assigned.show(`${count(data.shards_assigned_held)} of ${count(data.shards_assigned)}`, isAll
        ? { tone: "good", words: "of those that this node is to hold are here; all is healthy" }
        : { tone: "fair", words: "of those that this node is to hold are here; it rises until all are" });
      reachable.show(`${count(data.shards_reachable)} of ${count(data.shards)}`, data.shards_reachable >= data.shards
        ? { tone: "good", words: "here or with a connected member; all is healthy" }
        : { tone: "fair", words: "here or with a connected member; all is healthy, so more members are needed" });
      fetched.show(bytes(data.bytes_fetched), { words: "received from members; it stops once all is here" });
      return served.show(bytes(data.bytes_served), { words: "sent to members; about as much as fetched is healthy" });
    }
    ask();
    return { nodes: [note, progress, list], update: () => {}, close: () => { isOver = true; clearTimeout(timer); } };
  },
};
