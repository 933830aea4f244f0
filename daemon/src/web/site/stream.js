// Follows the daemon's records, with one connection for all tabs of this browser.
//
// Browsers open six connections to one address. If each tab held one, the seventh would wait for ever. So a tab in sight
// takes a lock, follows the stream, and hands each record to the others over a channel. A hidden tab closes all of that and
// costs nothing. When it is seen again, it goes on after the last record that it has.

import * as api from "./api.js";

const NAME = "murmur-stream";

export class Stream {
  /**
   * `taken` gets each record once and in order; `reset` is called where that is not possible; `told` hears "live" or "lost";
   * `isForeign` says whether a record is of another process than those before.
   */
  constructor(seq, { taken, reset, told, isForeign }) {
    Object.assign(this, { seq, taken, reset, told, isForeign, stop: null, catching: null });
    document.addEventListener("visibilitychange", () => this.look());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.look());
    this.look();
  }

  look() {
    if (document.visibilityState === "hidden") this.close();
    else if (!this.stop) this.open();
  }

  /** Begins after another record: all before is known from elsewhere. */
  restart(seq) {
    this.close();
    this.seq = seq;
    this.look();
  }

  async open() {
    const stop = new AbortController();
    this.stop = stop;
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = ({ data }) => this.heard(data);
    await this.catchUp();
    if (stop.signal.aborted) return;
    const lead = () => new Promise((done) => {
      if (stop.signal.aborted) return done();
      stop.signal.addEventListener("abort", done);
      this.lead(stop.signal);
    });
    if (!navigator.locks) return void lead();
    try {
      await navigator.locks.request(NAME, { signal: stop.signal }, lead);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }

  /** Follows the stream for all tabs. */
  lead(signal) {
    const source = new EventSource(`/api/v1/stream?after=${this.seq}`);
    let wasLost = false;
    const tell = (message) => {
      if (signal.aborted) return;
      this.channel.postMessage(message);
      this.heard(message);
    };
    source.onopen = () => tell(wasLost ? { again: true } : { state: "live" });
    source.onmessage = (event) => tell({ record: JSON.parse(event.data) });
    source.onerror = () => {
      wasLost = true;
      tell({ state: "lost" });
      // What is closed by an answer other than 200 does not come back by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => signal.aborted || this.restart(this.seq), 3000);
    };
    signal.addEventListener("abort", () => source.close());
  }

  close() {
    if (!this.stop) return;
    this.stop.abort();
    this.stop = null;
    this.channel.close();
  }

  heard({ record, state, again }) {
    // It may be another process that answers now.
    if (again) return void this.catchUp();
    if (state) return this.told(state);
    this.told("live");
    if (this.isForeign(record)) return this.reset();
    if (record.seq <= this.seq) return;
    if (record.kind === "missed" && record.of === "records") return this.reset();
    if (record.seq > this.seq + 1 && this.seq > 0) return void this.catchUp();
    this.seq = record.seq;
    this.taken(record);
  }

  /** Fetches what came since the last record of this tab. */
  async catchUp() {
    const { stop } = this;
    if (this.catching === stop) return;
    this.catching = stop;
    try {
      for (let more = true; more;) {
        const after = this.seq;
        const found = await api.records(after);
        if (this.stop !== stop) return;
        // A process that has told fewer records than `after` begins with its first one: it is not the one from before.
        const isOther = found.some((record) => record.seq <= after || this.isForeign(record));
        if (isOther || found.some((record) => record.kind === "missed" && record.of === "records")) return this.reset();
        for (const record of found.filter(({ seq }) => seq > this.seq)) {
          this.seq = record.seq;
          this.taken(record);
        }
        more = found.length >= 1000;
      }
      this.told("live");
    } catch {
      if (this.stop === stop) this.told("lost");
    } finally {
      if (this.catching === stop) this.catching = null;
    }
  }
}
