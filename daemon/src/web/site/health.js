// Whether a figure is healthy, in words. The limits are those of the terminal's views (`daemon/src/watch/draw/verdict.rs`),
// and a test holds the two together.

import { ago, count, counted, duration, isNumber, percent } from "./format.js";

/** Seconds without a record after which that is said. */
export const STALE_SECONDS = 10;
/** Seconds without an exchange after which that is said, where there are members. */
export const QUIET_SECONDS = 300;
/** Where all members average at once: a share of the time in which a node waits above which that is said. */
export const WAITING_SHARE = 0.5;

/** Points of a curve that say how it goes: a single one may be of a moment in which the machine did something else. */
const LATELY = 7;

const good = (words) => ({ tone: "good", words });
const fair = (words) => ({ tone: "fair", words });
const bad = (words) => ({ tone: "bad", words });
const plain = (words) => ({ tone: "", words });

/** One sentence: is it in order, and if not, what is the matter. */
export function verdict(picture, isLost) {
  const { sample, end } = picture;
  const band = picture.run.ratio_band;
  const age = picture.now() - picture.time;
  if (end) return end.failure ? bad(`Ended: ${end.failure}`) : plain("Ended in order");
  if (isLost && age > STALE_SECONDS) return bad(`It has not answered for ${duration(age)}`);
  if (age > STALE_SECONDS) return bad(`Nothing new for ${duration(age)}`);
  if (!sample) return plain("It has begun");
  if (sample.resting) return fair(`Trains alone for now: ${sample.resting}`);
  if (sample.phase === "joining") {
    const share = isNumber(sample.copied) ? ` (${percent(sample.copied)})` : "";
    return fair(sentence(sample.doing) + share);
  }
  if (sample.phase !== "training") return good(sentence(sample.doing || sample.phase));
  if (sample.team && sample.team.state !== "training") return fair(sentence(sample.doing));
  const members = counted(sample.peers, "member");
  if (sample.peers === 0) return fair("Trains alone: no member is connected");
  if (sample.members === 0) return fair("Stands still and seeks the others' agreement");
  if (sample.members === 1) return fair("Averages with nobody, though members are connected");
  if (isNumber(sample.members)) {
    const others = `Averages all at once with ${counted(sample.members - 1, "member")}`;
    if (sample.boundary_share > WAITING_SHARE) return fair(`${others}, and waits ${percent(sample.boundary_share)} of the time`);
    return good(`${others}, and has their model`);
  }
  const { ratio } = sample;
  if (!isNumber(ratio)) return plain(`Trains with ${members}; it is not known yet how far the models are apart`);
  if (ratio > band.drifting) return bad(`Trains with ${members}, and the models drift apart`);
  const last = picture.lastDone();
  const quiet = last ? picture.now() - last.time : 0;
  if (quiet > QUIET_SECONDS) return fair(`Trains with ${members}; the last exchange was ${ago(quiet)}`);
  if (ratio > band.high) return good(`Trains with ${members}, and the models stay together`);
  return good(`Trains with ${members}, and the models agree`);
}

/** Whether nothing is known of how it is now. */
export const isSilent = (picture, isLost) => isLost || (!picture.end && picture.now() - picture.time > STALE_SECONDS);

/** Whether it trains no more, though it may answer others. */
const isOver = ({ sample, end }) => Boolean(end) || ["completed", "leaving", "left"].includes(sample?.phase);

/** What there is to do next: "logs", "use", "invite", or nothing. */
export function next(picture, isLost) {
  const { sample, end } = picture;
  if (end?.failure || (!end && isSilent(picture, isLost))) return "logs";
  if (!sample || sample.resting) return "";
  if (isOver(picture)) return "use";
  return sample.phase === "training" && sample.peers === 0 ? "invite" : "";
}

function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : "";
}

/** The healthy range of the disagreement ratio, in words. */
export const healthy = (band) => `${band.low} to ${band.high}`;

export function ratio(value, band) {
  const range = `${healthy(band)} is healthy, above ${band.drifting} models drift apart`;
  if (!isNumber(value)) return plain(`not known before the second exchange; ${range}`);
  if (value < band.low) return good(`closer than needed; ${range}`);
  if (value <= band.high) return good(`good; ${range}`);
  if (value <= band.drifting) return fair(`a little far; ${range}`);
  return bad(`the models drift apart; ${range}`);
}

/** Share of the time that goes by between two steps. */
export function boundaries(share) {
  if (share < 0.05) return good("of the time is spent between steps; below 5 % is good");
  if (share < 0.15) return fair("of the time is spent between steps; below 5 % is good");
  return bad("of the time is spent between steps: exchanges hold training up; below 5 % is good");
}

/** `prediction`: what is predicted, such as a byte. */
export function loss(sample, points, prediction) {
  const unit = `nats per ${prediction}`;
  const healthy = "healthy: it falls, and then stays low";
  const half = points.slice(-Math.max(4, Math.floor(points.length / 2)));
  if (!isNumber(sample?.loss) || half.length < 4) return plain(`${unit}; ${healthy}`);
  const [first, last] = [half[0].mean, half.at(-1).mean];
  if (last > 1.1 * first) return fair(`${unit}, and it rises; ${healthy}`);
  return good(`${unit}, ${last < first ? "and it falls" : "and it stays"}; ${healthy}`);
}

export function speed(sample, points, unit) {
  const usual = points.length > 10 ? median(points.map((point) => point.mean)) : null;
  const words = `${unit} a second; healthy: steady`;
  if (!usual || sample.phase !== "training") return plain(sample.phase === "training" ? words : "it does not train now");
  if (median(points.slice(-LATELY).map((point) => point.mean)) < 0.5 * usual) return fair(`${words}, and it is below half of its usual ${count(usual)}`);
  return good(words);
}

export function members(sample) {
  if (!sample) return plain("");
  if (sample.peers === 0) return fair("connected; with one or more a model is shared");
  return good("connected; with three or more a copied model can be checked");
}

/** The share of the time in which a node waits, where all average at once; `whom` was waited for last, where that is known. */
export function waiting(share, whom) {
  const words = `of the time is spent between steps: each waits for all${whom ? `, lately for ${whom}` : ""}; below 20 % is good`;
  return share > WAITING_SHARE ? bad(words) : share > 0.2 ? fair(words) : good(words);
}

export function failures(sample) {
  const all = sample.exchanges + sample.exchanges_failed;
  if (all === 0) return plain("none yet; healthy: some each minute");
  const share = sample.exchanges_failed / all;
  const words = `${sample.exchanges_failed} broke off; healthy: fewer than one in ten`;
  return share > 0.3 ? bad(words) : share > 0.1 ? fair(words) : good(words);
}

export function exchangeAge(seconds) {
  if (!isNumber(seconds)) return plain("healthy: one every few minutes at least");
  return seconds > QUIET_SECONDS ? fair("long ago; healthy: within five minutes") : good("healthy: within five minutes");
}

export function processors(value) {
  return isNumber(value) ? plain("in use; healthy: as many as it was given, while it trains") : plain("not told by this system");
}

export function memory(sample) {
  if (!isNumber(sample.memory)) return plain("not told by this system");
  return plain("held; healthy: level after the first minutes");
}

export function disk(free) {
  if (!isNumber(free)) return plain("not told by this system");
  if (free < 1e9) return bad("free, and a checkpoint may not fit; healthy: more than 5 GB");
  if (free < 5e9) return fair("free; healthy: more than 5 GB");
  return good("free; healthy: more than 5 GB");
}

export function today(bytes) {
  return plain(`both ways since midnight${bytes ? "" : ", so far none"}; a budget is set with --daily-gigabytes`);
}

export function reachable(words) {
  return plain(words || "not known yet");
}

/** A cell of the members' table. */
export const member = {
  trust: (facts) => (facts.banned ? bad("") : facts.trust < 0.5 ? fair("") : plain("")),
  trip: (seconds) => (isNumber(seconds) && seconds > 1 ? fair("") : plain("")),
};

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}
