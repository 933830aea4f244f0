// The node as its records draw it: what `daemon/src/observe/picture.rs` keeps, without the curves. Its memory is bounded.

const PEERS_KEPT = 128;
const EVENTS_KEPT = 256;
const EXCHANGES_KEPT = 64;

export class Picture {
  constructor(summary) {
    this.begin(summary);
  }

  /** All of it anew. */
  begin(summary) {
    Object.assign(this, summary);
    this.began = summary.time - summary.up;
    this.peers = new Map(summary.peers.map((peer) => [peer.facts.peer, { ...peer, time: summary.time }]));
    this.last = null;
    this.hasPeers = false;
    this.heardAt = performance.now();
  }

  /** The time on the node's clock now, in seconds since 1970. */
  now() {
    return this.time + (performance.now() - this.heardAt) / 1000;
  }

  /** Takes in a record. `push` gets what belongs to a curve: its metric, its time and its value. */
  apply(record, push = () => {}) {
    this.seq = record.seq;
    this.up = Math.max(0, record.up);
    this.wall = Date.parse(record.t);
    this.time = Math.max(this.time, this.began + this.up);
    this.heardAt = performance.now();
    switch (record.kind) {
      case "sample": return this.takeSample(record, push);
      case "peers": return this.takePeers(record);
      case "exchange": return this.takeExchange(record);
      case "event": return this.takeEvent({ level: record.level, text: record.text, hint: record.hint });
      case "missed": this.missed += record.count; return undefined;
      case "end":
        if (record.failure) this.takeEvent({ level: "error", text: `training has ended: ${record.failure}` });
        this.end = { steps: record.steps, failure: record.failure };
        return undefined;
      default: return undefined;
    }
  }

  takeSample(sample, push) {
    const isNews = !this.sample || this.sample.steps !== sample.steps;
    const at = (metric, value) => { if (typeof value === "number") push(metric, this.time, value); };
    if (isNews) at("loss", sample.loss);
    at("validation_loss", sample.validation_loss);
    for (const metric of ["accuracy", "roc_auc", "rmse", "r_squared"]) at(metric, sample[metric]);
    at("disagreement", sample.disagreement);
    at("ratio", sample.ratio);
    at("tokens_per_second", sample.tokens_per_second);
    at("swarm_tokens_per_second", sample.swarm_tokens_per_second);
    at("memory", sample.memory);
    at("disk_free", sample.disk_free);
    const { last, up } = this;
    if (last && up > last.up) {
      const per = (now, before) => Math.max(0, now - before) / (up - last.up);
      const rates = { sent_per_second: per(sample.sent, last.sent), received_per_second: per(sample.received, last.received) };
      rates.processors = typeof sample.cpu_seconds === "number" ? per(sample.cpu_seconds, last.cpu) : null;
      this.rates = rates;
      for (const [metric, value] of Object.entries(rates)) at(metric, value);
    }
    this.last = { up, sent: sample.sent, received: sample.received, cpu: sample.cpu_seconds };
    this.sample = sample;
  }

  takePeers({ peers, more }) {
    this.peers_more = more ?? 0;
    for (const peer of this.peers.values()) peer.facts = { ...peer.facts, connected: false };
    for (const facts of peers) {
      const known = this.peers.get(facts.peer) ?? newPeer(facts);
      const total = (of) => (of.sent ?? 0) + (of.received ?? 0);
      if (known.time && this.time > known.time && this.hasPeers) {
        known.rate = Math.max(0, total(facts) - total(known.facts)) / (this.time - known.time);
      }
      known.facts = facts;
      known.time = this.time;
      this.peers.set(facts.peer, known);
    }
    this.hasPeers = true;
    this.forgetPeers();
  }

  takeExchange(facts) {
    const peer = this.peers.get(facts.partner) ?? newPeer({ peer: facts.partner, trust: 1, says_tokens_per_second: 0 });
    if (facts.result === "done") peer.exchanges += 1;
    else if (facts.result !== "rejected") peer.failed += 1;
    if (typeof facts.lag === "number") peer.lag = facts.lag;
    peer.last = { time: this.time, wall: this.wall, facts };
    this.peers.set(facts.partner, peer);
    this.exchanges.push(peer.last);
    if (this.exchanges.length > EXCHANGES_KEPT) this.exchanges.shift();
    this.forgetPeers();
  }

  takeEvent(facts) {
    const last = this.events.at(-1);
    const isSame = last && last.facts.text === facts.text && last.facts.level === facts.level && last.facts.hint === facts.hint;
    if (isSame) {
      this.events[this.events.length - 1] = { ...last, times: last.times + 1, seq: this.seq, wall: this.wall };
      return;
    }
    this.events.push({ seq: this.seq, wall: this.wall, times: 1, facts });
    if (this.events.length > EVENTS_KEPT) this.events.shift();
  }

  forgetPeers() {
    const heard = (peer) => Math.max(peer.last?.time ?? 0, peer.time ?? 0);
    while (this.peers.size > PEERS_KEPT) {
      const [oldest] = [...this.peers].reduce((one, other) => (heard(other[1]) < heard(one[1]) ? other : one));
      this.peers.delete(oldest);
    }
  }

  /** Those that are connected, then those that are gone. */
  members() {
    return [...this.peers.values()].sort((one, other) => Number(other.facts.connected) - Number(one.facts.connected));
  }

  /** The newest exchange that was completed. */
  lastDone() {
    return this.exchanges.findLast((exchange) => exchange.facts.result === "done");
  }

  unit() {
    return { image: "images", row: "rows" }[this.run.prediction] ?? "tokens";
  }
}

function newPeer(facts) {
  return { facts, last: null, exchanges: 0, failed: 0, lag: null, rate: null, time: 0 };
}
