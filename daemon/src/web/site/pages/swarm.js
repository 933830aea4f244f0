// The swarm as a graph: members on a circle in the order of their ids, so that none wanders, and exchanges as edges that fade
// with their age. A node knows only its own exchanges; in `murmur local` all nodes tell theirs.

import * as api from "../api.js";
import { el, say, section, set, svg } from "../elements.js";
import { ago, count, counted, fixed, isNumber, named, short } from "../format.js";
import { Table } from "../table.js";

/** How often the graph is asked for, in milliseconds. */
const PERIOD = 2000;

/** Seconds after which an edge has faded. */
const FADED = 300;

/** Members that are drawn; the page Members and the table have the others. */
const DRAWN_MAX = 48;

const SIZE = 560;

/** So much below its id a member's name is written. */
const NAME_LOWER = 14;

/** Wider than high, so that names have room on both sides. */
const WIDTH = 760;

export default {
  title: "Swarm",
  lead: "Who averages with whom. Where members average in pairs, a line is the last exchange of two; it fades over five minutes.",
  metrics: [],
  build({ picture }) {
    const edges = svg("g", { class: "edges" });
    const dots = svg("g", { class: "dots" });
    const drawing = svg("svg", { class: "graph", viewBox: `${(SIZE - WIDTH) / 2} 0 ${WIDTH} ${SIZE}`, role: "img" }, edges, dots);
    const scope = el("p", { class: "quiet" });
    const said = el("p", { class: "said" });
    const table = new Table({
      caption: "Exchanges between members",
      empty: "No exchange is known yet.",
      sort: 2,
      isReversed: true,
      columns: [
        { title: "Member", text: (edge) => edge.one },
        { title: "Partner", text: (edge) => edge.other },
        { title: "Last exchange", number: true, text: (edge) => ago(edge.age), order: (edge) => edge.age },
        { title: "Distance", help: "how far apart the two models were", number: true, text: (edge) => fixed(edge.distance, 4), order: (edge) => edge.distance },
        { title: "Exchanges", number: true, text: (edge) => count(edge.exchanges), order: (edge) => edge.exchanges },
      ],
    });
    const tableSection = section("The same as a table", table.node);
    const nodes = [el("div", { class: "graph-frame" }, drawing, el("div", {}, scope, said)), tableSection];
    let timer = null;
    let isOver = false;
    const ask = async () => {
      if (document.visibilityState !== "hidden") {
        try { show(await api.get("swarm")); } catch { /* the next one may come; the page says that the daemon is silent */ }
      }
      if (!isOver) timer = setTimeout(ask, PERIOD);
    };

    function show(graph) {
      if (isOver) return;
      const { members, links } = read(graph, picture);
      const isTogether = isNumber(picture.sample?.members);
      tableSection.hidden = isTogether;
      if (isTogether) say(scope, "All members average at once, so there are no exchanges of two and no lines between them.");
      else say(scope, graph.whole
        ? `${counted(graph.nodes.length, "node")} of this local swarm tell of their exchanges. Healthy: each has a fresh line to several others.`
        : "A node knows its own exchanges alone, so the lines are those of this one. Healthy: fresh lines to several members.");
      const fresh = links.filter((link) => isNumber(link.age) && link.age < FADED).length;
      set(drawing, "aria-label", `${counted(members.length, "member")}${isTogether ? "" : `, ${counted(fresh, "exchange")} in the last five minutes`}`);
      drawGraph(members, links);
      table.show(links.filter((link) => link.exchanges > 0), (link) => link.key);
    }

    function drawGraph(members, links) {
      // This node, then who is connected, then others, again in the order of their ids.
      const rank = (member) => (member.isSelf ? 0 : member.isHere ? 1 : 2);
      const near = [...members].sort((one, other) => rank(one) - rank(other)).slice(0, DRAWN_MAX);
      const drawn = members.filter((member) => near.includes(member));
      const middle = SIZE / 2;
      const radius = SIZE / 2 - 60;
      const places = new Map(drawn.map(({ id }, index) => {
        const turn = -Math.PI / 2 + (2 * Math.PI * index) / drawn.length;
        return [id, { x: middle + radius * Math.cos(turn), y: middle + radius * Math.sin(turn), turn }];
      }));
      const shown = links.filter((link) => isNumber(link.age) && link.age < FADED && places.has(link.from) && places.has(link.to));
      keyed(edges, shown, (link) => link.key, () => svg("path", {}), (line, link) => {
        const [from, to] = [places.get(link.from), places.get(link.to)];
        const bend = 0.18;
        const [cx, cy] = [(from.x + to.x) / 2 + (middle - (from.x + to.x) / 2) * bend, (from.y + to.y) / 2 + (middle - (from.y + to.y) / 2) * bend];
        set(line, "d", `M${from.x.toFixed(1)} ${from.y.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`);
        set(line, "stroke-opacity", (1 - 0.92 * (link.age / FADED)).toFixed(2));
        set(line, "stroke-width", (1 + 2.5 * (1 - link.age / FADED) ** 3).toFixed(2));
      });
      const dot = () => svg("g", {}, svg("circle", {}), svg("text", {}, svg("tspan", {}), svg("tspan", { class: "name", dy: NAME_LOWER })), svg("title", {}));
      keyed(dots, drawn, (member) => member.id, dot, (group, member) => {
        const { x, y, turn } = places.get(member.id);
        const [circle, text, title] = group.children;
        set(group, "class", [member.isSelf && "self", !member.isHere && "away"].filter(Boolean).join(" ") || null);
        set(circle, "cx", x.toFixed(1)); set(circle, "cy", y.toFixed(1)); set(circle, "r", member.isSelf ? 11 : 8);
        const side = Math.cos(turn);
        const lower = Math.sin(turn);
        const [id, name] = text.children;
        // Two lines stand above a dot at the top, beside one at the side, and below one at the bottom.
        const rise = member.name ? (NAME_LOWER * (1 - lower)) / 2 : 0;
        const place = (x + 20 * side).toFixed(1);
        set(text, "y", (y + 26 * lower + 5 - rise).toFixed(1));
        set(text, "text-anchor", side > 0.25 ? "start" : side < -0.25 ? "end" : "middle");
        set(id, "x", place); set(name, "x", place);
        say(id, short(member.id)); say(name, member.name ? cut(member.name, 14) : "");
        say(title, member.full);
      });
      const left = members.length - drawn.length;
      const more = left === 1 ? "1 more member is" : `${count(left)} more members are`;
      say(said, left > 0 ? `${more} not drawn; the page Members has all that this node knows.` : "");
    }

    ask();
    return { nodes, update: () => {}, close: () => { isOver = true; clearTimeout(timer); } };
  },
};

/** Members by their id, and for each pair its freshest exchange. */
function read(graph, picture) {
  const members = new Map();
  const known = (id) => members.get(id) ?? members.set(id, { id, name: null, isHere: false }).get(id);
  for (const { facts } of picture.peers.values()) {
    Object.assign(known(facts.peer), { name: facts.name, isHere: facts.connected });
  }
  const links = new Map();
  for (const node of graph.nodes) {
    Object.assign(known(node.peer), { name: node.name ?? known(node.peer).name, isHere: true });
    for (const edge of node.edges) {
      const member = known(edge.partner);
      if (node.peer === picture.node) member.isHere ||= edge.connected;
      const [from, to] = [node.peer, edge.partner].sort();
      const key = `${from} ${to}`;
      const link = links.get(key);
      const isFresher = !link || !isNumber(link.age) || (isNumber(edge.age) && edge.age < link.age);
      if (isFresher) links.set(key, { key, from, to, age: edge.age, distance: edge.distance, exchanges: Math.max(edge.exchanges, link?.exchanges ?? 0) });
    }
  }
  const all = [...members.values()].sort((one, other) => (one.id < other.id ? -1 : 1)).map((member) => ({
    ...member,
    isSelf: member.id === picture.node,
    full: named(member.id, member.name),
  }));
  const full = new Map(all.map((member) => [member.id, member.full]));
  return { members: all, links: [...links.values()].map((link) => ({ ...link, one: full.get(link.from), other: full.get(link.to) })) };
}

function cut(text, most) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

/** Elements that stay the same for the same key. */
function keyed(parent, items, key, make, change) {
  const left = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  for (const item of items) {
    const id = key(item);
    let child = left.get(id);
    left.delete(id);
    if (!child) {
      child = make();
      child.dataset.key = id;
      parent.append(child);
    }
    change(child, item);
  }
  left.forEach((child) => child.remove());
}
