// What the swarm costs on the wire: rates over time, and bytes with each member in three windows, kept over restarts.

import * as api from "../api.js";
import { Chart } from "../chart.js";
import { el, figure, figures, say, section } from "../elements.js";
import * as health from "../health.js";
import { bytes, duration, isNumber, named, rate } from "../format.js";
import { Table } from "../table.js";

/** Bytes with members change once in five seconds. */
const PERIOD = 5000;

const WINDOWS = { five_minutes: "5 min", hour: "1 h", all: "all" };

export default {
  title: "Traffic",
  lead: "Bytes over the wire. The curves count everything; the table counts models and exchanges, member by member.",
  metrics: ["sent_per_second", "received_per_second"],
  build({ picture }) {
    const [sent, received, today, boundaries] = [figure("Sent now"), figure("Received now"), figure("Today"), figure("Boundaries")];
    const chart = new Chart({
      title: "Bytes a second",
      curves: [{ metric: "sent_per_second", name: "sent" }, { metric: "received_per_second", name: "received" }],
      written: bytes,
      zero: true,
    });
    const sum = el("p", { class: "quiet" });
    const columns = Object.entries(WINDOWS).flatMap(([key, name]) => [
      { title: `Sent, ${name}`, number: true, text: (peer) => bytes(peer[key].sent), order: (peer) => peer[key].sent },
      { title: `Received, ${name}`, number: true, text: (peer) => bytes(peer[key].received), order: (peer) => peer[key].received },
    ]);
    const rates = { title: "Rate, 5 min", help: "both ways", number: true, text: (peer) => rate(peer.rate), order: (peer) => peer.rate };
    const who = { title: "Member", text: (peer) => named(peer.peer, peer.name) + (peer.connected ? "" : " (away)") };
    const table = new Table({
      caption: "Bytes with each member", empty: "Nothing was sent to a member yet.", sort: 6, columns: [who, rates, ...columns],
    });
    let timer = null;
    let isOver = false;
    const ask = async () => {
      if (document.visibilityState !== "hidden") {
        try {
          const answer = await api.get("traffic");
          table.show(answer.peers, (peer) => peer.peer);
          const since = answer.since > 0 ? duration(answer.time - answer.since / 1000) : "this moment";
          say(sum, `“All” counts for ${since}, over restarts. Healthy: about as much with each member.`);
        } catch { /* the page says that the daemon is silent */ }
      }
      if (!isOver) timer = setTimeout(ask, PERIOD);
    };
    ask();

    function update({ curves }) {
      chart.draw(curves);
      const { sample, rates: now } = picture;
      if (!sample) return;
      sent.show(rate(now.sent_per_second), { words: `${bytes(sample.sent)} since the start; short bursts at each exchange are healthy` });
      received.show(rate(now.received_per_second), { words: `${bytes(sample.received)} since the start; as much as is sent is healthy` });
      today.show(bytes(sample.today), health.today(sample.today));
      const held = `${(100 * sample.boundary_share).toFixed(1)} %`;
      if (isNumber(sample.members)) boundaries.show(held, health.waiting(sample.boundary_share), "Waiting");
      else boundaries.show(held, health.boundaries(sample.boundary_share));
    }
    const nodes = [figures(sent, received, today, boundaries), chart.node, section("With each member", sum, table.node)];
    return { nodes, update, close: () => { isOver = true; clearTimeout(timer); chart.close(); } };
  },
};
