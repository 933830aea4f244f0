// The first page answers four questions in this order: is it training, with whom, do they agree, what does it cost.

import * as api from "../api.js";
import { Chart } from "../chart.js";
import { el, figure, figures, say, section, set } from "../elements.js";
import * as health from "../health.js";
import { ago, bytes, clock, count, counted, duration, fixed, isNumber, named, percent, zone } from "../format.js";

/** Members and events that are shown here; all of them have pages of their own. */
const MEMBERS = 6;
const EVENTS = 5;

/** How often it is asked who is waited for, in milliseconds. */
const PERIOD = 2000;

export default {
  title: "Overview",
  metrics: ["loss", "validation_loss", "accuracy", "roc_auc", "r_squared", "ratio", "tokens_per_second", "sent_per_second", "received_per_second"],
  build({ picture: now }) {
    const { prediction } = now.run;
    const verdict = el("h1", { class: "verdict" });
    // Its words change with each second at times; what is read aloud changes only with how it is.
    const aloud = el("p", { class: "hidden", role: "status" });
    let tone = null;
    const progress = el("progress", { max: 1, "aria-label": "done of the run" });
    const far = el("p", { class: "far" });
    const hint = el("p", { class: "hint" });
    let step = "";
    const head = el("div", { class: "head" }, verdict, aloud, hint, progress, far);

    const [loss, heldOut, speed, steps] = [figure("Loss"), figure("Held-out loss"), figure("Speed"), figure("Steps")];
    const lossChart = new Chart({
      title: `Loss, in nats per ${prediction}`,
      curves: [{ metric: "loss", name: "training" }, { metric: "validation_loss", name: "validation" }],
      written: (value) => fixed(value, 3),
    });
    const score = figure("Held-out score");
    const scoreChart = new Chart({
      title: "Scores of held-out examples; 1 is the best",
      // Of classes the first two, of numbers the last: never more than two lines.
      curves: [{ metric: "accuracy", name: "accuracy" }, { metric: "roc_auc", name: "ROC AUC" }, { metric: "r_squared", name: "R²" }],
      written: (value) => fixed(value, 3),
    });
    // Texts have no scores.
    score.node.hidden = scoreChart.node.hidden = true;
    const [members, done, team] = [figure("Members"), figure("Exchanges"), figure("Team")];
    // Most nodes hold their model alone.
    team.node.hidden = true;
    const list = el("ul", { class: "brief" });
    const [ratio, last] = [figure("Disagreement ratio"), figure("Last exchange")];
    const ratioChart = new Chart({
      title: "Disagreement ratio: over what a node learns between two exchanges",
      curves: [{ metric: "ratio", name: "ratio" }],
      written: (value) => fixed(value, 2),
    });
    const [boundaries, today, machine, memory] = [figure("Boundaries"), figure("Traffic today"), figure("Processors"), figure("Memory")];
    const trafficChart = new Chart({
      title: "Traffic, bytes a second",
      curves: [{ metric: "sent_per_second", name: "sent" }, { metric: "received_per_second", name: "received" }],
      written: bytes,
      zero: true,
    });
    const happened = el("ol", { class: "brief events" });
    const charts = [lossChart, scoreChart, ratioChart, trafficChart];
    const place = el("div", { class: "choice" });

    const nodes = [
      head, place,
      section("Is it training?", figures(loss, heldOut, score, speed, steps), lossChart.node, scoreChart.node),
      section("With whom?", figures(members, done, team), list),
      section("Do they agree?", figures(ratio, last), ratioChart.node),
      section("What does it cost?", figures(boundaries, today, machine, memory), trafficChart.node),
      section("What has happened?", happened,
        el("p", { class: "quiet" }, `Times are those of this browser's clock (${zone()}). `, el("a", { href: "#events" }, "All events"))),
    ];

    // Who is waited for is told at this moment alone: the last one that was seen is named.
    let awaited = null;
    let timer = null;
    let isOver = false;
    const ask = async () => {
      if (document.visibilityState !== "hidden" && isNumber(now.sample?.members)) {
        try { awaited = (await api.get("status")).synchronous?.waits_for ?? awaited; } catch { /* the page says that the daemon is silent */ }
      }
      if (!isOver) timer = setTimeout(ask, PERIOD);
    };
    const whom = (picture) => awaited && named(awaited, picture.peers.get(awaited)?.facts.name);

    function update({ picture, curves, isLost }) {
      const found = health.verdict(picture, isLost);
      say(verdict, found.words);
      set(verdict, "data-tone", found.tone || null);
      if (tone !== null && tone !== found.tone) say(aloud, found.words);
      tone = found.tone;
      const next = health.next(picture, isLost);
      if (next !== step) hint.replaceChildren(...(NEXT[next]?.(picture) ?? []));
      step = next;
      const band = picture.run.ratio_band;
      ratioChart.band = { ...band, name: `the healthy one, ${health.healthy(band)}` };
      charts.forEach((chart) => chart.draw(curves));
      const { sample } = picture;
      if (!sample) return;
      const share = sample.copied ?? sample.share;
      progress.hidden = !isNumber(share);
      if (isNumber(share)) progress.value = share;
      say(far, howFar(picture));
      loss.show(fixed(sample.loss, 3), health.loss(sample, curves.of("loss"), prediction));
      heldOut.node.hidden = !isNumber(sample.validation_loss);
      heldOut.show(fixed(sample.validation_loss, 3), { words: "at the last evaluation, on data that no node trains on" });
      const scored = scores(sample);
      score.node.hidden = scoreChart.node.hidden = scored.length === 0;
      if (scored.length > 0) score.show(scored[0], { words: scored.slice(1).join(" · ") });
      const trains = sample.phase === "training";
      // Before the first step it is not known.
      const isMeasured = sample.tokens_per_second > 0 || sample.step_seconds > 0;
      speed.show(trains && isMeasured ? count(sample.tokens_per_second) : "–", health.speed(sample, curves.of("tokens_per_second"), picture.unit()));
      steps.show(count(sample.steps), { words: `own ones; the swarm is at ${count(Math.max(0, sample.progress))}, close to it is healthy` });
      members.show(count(sample.peers), health.members(sample));
      const isTogether = isNumber(sample.members);
      if (isTogether && trains) done.show(count(sample.members), { words: "members average all at once, this one counted; 0 while it seeks them" }, "Averages with");
      else if (isTogether) done.show("–", { words: "it averages with nobody now" }, "Averages with");
      else done.show(count(sample.exchanges), health.failures(sample));
      team.node.hidden = !sample.team;
      if (sample.team) team.show(sample.team.state, { words: ofTeam(picture) });
      brief(list, picture.members().slice(0, MEMBERS).map((peer) => memberLine(picture, peer)), "No member is known yet.");
      ratioChart.node.hidden = isTogether;
      if (isTogether) {
        ratio.show("none", { words: "all members hold one model after each all-reduce" });
        last.show(duration(sample.waited_seconds), { words: `for others, of ${duration(picture.up)}` }, "Waited");
      } else {
        ratio.show(fixed(sample.ratio, 2), health.ratio(sample.ratio, picture.run.ratio_band));
        const newest = picture.lastDone();
        const age = newest ? Math.max(0, picture.now() - newest.time) : null;
        last.show(ago(age), health.exchangeAge(age));
      }
      const held = `${(100 * sample.boundary_share).toFixed(1)} %`;
      if (isTogether) boundaries.show(held, health.waiting(sample.boundary_share, whom(picture)), "Waiting");
      else boundaries.show(held, health.boundaries(sample.boundary_share));
      today.show(bytes(sample.today), health.today(sample.today));
      machine.show(fixed(picture.rates.processors, 1), health.processors(picture.rates.processors));
      memory.show(bytes(sample.memory), health.memory(sample));
      const newestFirst = picture.events.slice(-EVENTS).reverse();
      brief(happened, newestFirst.map(eventLine), "Nothing yet.");
    }
    ask();
    const close = () => {
      isOver = true;
      clearTimeout(timer);
      charts.forEach((chart) => chart.close());
    };
    return { nodes, update, place: (choice) => place.append(choice), close };
  },
};

const code = (text) => el("code", {}, text);

/** What there is to do next, in words. */
const NEXT = {
  invite: () => ["Others join with the line that stands on the page ", el("a", { href: "#run" }, "Run"), "."],
  logs: () => [code("murmur logs"), " shows what it said last, where it ran in the background. Started again, it goes on where it was."],
  use: (picture) => ({
    images: [code("murmur eval"), " measures what it has learned."],
    rows: [code("murmur predict"), " predicts new rows, ", code("murmur eval"), " measures what it has learned."],
    tokens: [code("murmur sample"), " writes with what it has learned, ", code("murmur eval"), " measures it, ", code("murmur export"),
      " makes a folder of it for other programs."],
  })[picture.unit()],
};

/** What the last evaluation said of held-out images or rows, the figure that people ask for first. */
function scores({ accuracy, roc_auc: area, rmse, r_squared: share }) {
  return [
    isNumber(accuracy) && `${(100 * accuracy).toFixed(2)} % right`, isNumber(share) && `R² ${fixed(share, 3)}`,
    isNumber(area) && `ROC AUC ${fixed(area, 3)}`, isNumber(rmse) && `RMSE ${fixed(rmse, 3)}`,
  ].filter(Boolean);
}

function howFar({ sample, up }) {
  const parts = [];
  const share = sample.copied ?? sample.share;
  if (isNumber(share)) parts.push(`${percent(share)} ${isNumber(sample.copied) ? "copied" : "done"}`);
  if (isNumber(sample.progress_max)) parts.push(`swarm step ${count(Math.max(0, sample.progress))} of ${count(sample.progress_max)}`);
  else parts.push(`own step ${count(sample.steps)}${isNumber(sample.steps_max) ? ` of ${count(sample.steps_max)}` : ""}`);
  if (isNumber(sample.seconds_left) && sample.phase === "training") parts.push(`${duration(sample.seconds_left)} left`);
  parts.push(`running for ${duration(up)}`);
  return parts.join(" · ");
}

/** Who of a team has which layers, how long training waited, and for whom most. */
function ofTeam({ sample: { team }, peers }) {
  const most = team.slowest ? `, most for ${named(team.slowest, peers.get(team.slowest)?.facts.name)}` : "";
  const lost = team.lost > 0 ? ` · ${counted(team.lost, "helper")} lost` : "";
  return `${team.cut ?? "nobody has layers yet"} · waited ${duration(team.waited)}${most}${lost}`;
}

/** What a line of the list of members says: who, how it goes, and a tone. */
function memberLine(picture, peer) {
  const { facts, last } = peer;
  const age = last ? picture.now() - last.time : null;
  const isTogether = isNumber(picture.sample?.members);
  const state = facts.banned ? "banned" : !facts.connected ? "not connected" : last ? `exchange ${ago(age)}` : isTogether ? "connected" : "no exchange yet";
  const speed = facts.says_tokens_per_second > 0 ? ` · says ${count(facts.says_tokens_per_second)} ${picture.unit()}/s` : "";
  return { lead: named(facts.peer, facts.name), text: state + speed, tone: facts.banned ? "bad" : facts.connected ? "" : "quiet" };
}

function eventLine({ wall, times, facts }) {
  const often = times > 1 ? ` (${counted(times, "time")})` : "";
  const word = facts.level === "info" ? "" : `${facts.level}: `;
  return { lead: clock(wall), text: word + facts.text + often, tone: { error: "bad", warning: "fair" }[facts.level] ?? "" };
}

/** A short list whose lines are kept and said anew. */
function brief(list, lines, empty) {
  const shown = lines.length > 0 ? lines : [{ lead: "", text: empty, tone: "quiet" }];
  while (list.children.length > shown.length) list.lastChild.remove();
  while (list.children.length < shown.length) list.append(el("li", {}, el("span", { class: "first" }), el("span")));
  shown.forEach(({ lead, text, tone }, index) => {
    const line = list.children[index];
    say(line.children[0], lead);
    say(line.children[1], text);
    set(line, "data-tone", tone || null);
  });
}
