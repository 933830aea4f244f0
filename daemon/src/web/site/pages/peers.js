// The members that the node knows, with what it has seen of them and what they say of themselves.

import { el, say } from "../elements.js";
import * as health from "../health.js";
import { ago, brief, bytes, count, counted, fixed, isNumber, named, rate } from "../format.js";
import { Table } from "../table.js";

const RESULTS = { rejected: "busy", deadline_passed: "too late", partner_lost: "lost", model_replaced: "model replaced", not_held: "handed over" };

export default {
  title: "Members",
  lead: "Members that this node knows. Names and speeds are what they say themselves; all else this node has measured.",
  metrics: [],
  build({ picture: { sample: first } }) {
    const isTogether = isNumber(first?.members);
    const filter = el("input", { type: "search", id: "filter", placeholder: "name or id", autocomplete: "off" });
    const sum = el("p", { class: "quiet" });
    let now = 0;
    let context = null;
    const age = (peer) => (peer.last ? Math.max(0, now - peer.last.time) : null);
    const greatest = (value) => (peer) => value(peer) ?? null;
    const [number, isOfPairs] = [true, true];
    const table = new Table({
      caption: "Members",
      empty: "No member is known, or none has such a name.",
      sort: isTogether ? 0 : 1,
      isReversed: !isTogether,
      columns: [
        { title: "Member", text: (peer) => named(peer.facts.peer, peer.facts.name) },
        { title: "Last", isOfPairs, help: "the last exchange with it; within five minutes is healthy", number, text: (peer) => ago(age(peer)), order: age },
        { title: "Result", isOfPairs, help: "what came of it: ok, busy where it had no room, clip where only a part was taken over; most of them ok is healthy", text: (peer) => outcome(peer.last?.facts) },
        { title: "Distance", isOfPairs, help: "how far apart the two models were; alike for all is healthy", number, text: (peer) => fixed(peer.last?.facts.distance, 4), order: greatest((peer) => peer.last?.facts.distance) },
        { title: "Took", isOfPairs, help: "from the proposal to the end; a few seconds on a good link are healthy", number, text: (peer) => brief(peer.last?.facts.seconds), order: greatest((peer) => peer.last?.facts.seconds) },
        { title: "Done", isOfPairs, help: "completed exchanges; about as many with each is healthy", number, text: (peer) => count(peer.exchanges), order: (peer) => peer.exchanges },
        { title: "Failed", isOfPairs, help: "exchanges that broke off; fewer than one in ten is healthy", number, text: (peer) => count(peer.failed), order: (peer) => peer.failed },
        { title: "Speed", help: "tokens, images or rows a second, as it says itself; steady is healthy", number, text: (peer) => (peer.facts.says_tokens_per_second > 0 ? count(peer.facts.says_tokens_per_second) : "–"), order: (peer) => peer.facts.says_tokens_per_second },
        { title: "Lag", isOfPairs, help: "steps that its model was behind this one; less than 0 where it was ahead; near 0 is healthy", number, text: (peer) => fixed(peer.lag, 0), order: greatest((peer) => peer.lag) },
        { title: "Sent", help: "since this process began; about as much as received is healthy", number, text: (peer) => bytes(peer.facts.sent), order: greatest((peer) => peer.facts.sent) },
        { title: "Received", help: "since this process began", number, text: (peer) => bytes(peer.facts.received), order: greatest((peer) => peer.facts.received) },
        { title: "Now", help: "bytes a second, both ways; 0 between exchanges is healthy", number, text: (peer) => (peer.facts.connected ? rate(peer.rate) : "–"), order: greatest((peer) => peer.rate) },
        { title: "Trip", help: "the round trip of the last ping; below a second is healthy", number, text: (peer) => brief(peer.facts.rtt), order: greatest((peer) => peer.facts.rtt), tone: (peer) => health.member.trip(peer.facts.rtt) },
        { title: "Path", help: "direct is better than by a relay", text: (peer) => peer.facts.path ?? (peer.facts.connected ? "–" : "away") },
        { title: "Trust", help: "how much of the usual its model may change; 100 % is healthy", number, text: (peer) => (peer.facts.banned ? "banned" : `${Math.round(100 * peer.facts.trust)} %`), order: (peer) => -peer.facts.trust, isOpposite: true, tone: (peer) => health.member.trust(peer.facts) },
      ].filter((column) => !(isTogether && column.isOfPairs)),
    });
    filter.addEventListener("input", () => context && update(context));

    function update(given) {
      context = given;
      const { picture } = given;
      now = picture.now();
      const wanted = filter.value.trim().toLowerCase();
      const fits = ({ facts }) => facts.peer.toLowerCase().includes(wanted) || (facts.name ?? "").toLowerCase().includes(wanted);
      const all = picture.members();
      const here = all.filter((peer) => peer.facts.connected).length;
      const more = all.length - here + (picture.peers_more ?? 0);
      say(sum, `${counted(here, "connected member").replace("connected members", "members connected").replace("connected member", "member connected")} · ${count(more)} more known. ${isTogether ? "All average at once, so there are no exchanges of two. Healthy:" : "Healthy: an exchange with each within some minutes,"} trust of 100 %.`);
      table.show(all.filter(fits), (peer) => peer.facts.peer);
    }
    const nodes = [el("p", { class: "filter" }, el("label", { for: "filter" }, "Only members with "), filter), sum, table.node];
    return { nodes, update };
  },
};

/** What came of an exchange, in a word. */
function outcome(facts) {
  if (!facts) return "–";
  if (facts.result !== "done") return RESULTS[facts.result] ?? facts.result.replaceAll("_", " ");
  return isNumber(facts.clip) && facts.clip < 0.995 ? `clip ${facts.clip.toFixed(2)}` : "ok";
}
