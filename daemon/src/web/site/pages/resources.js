// What the daemon takes of its machine: processors, memory, disk.

import { Chart } from "../chart.js";
import { el, figure, figures, say } from "../elements.js";
import * as health from "../health.js";
import { bytes, count, duration, fixed } from "../format.js";

export default {
  title: "Resources",
  lead: "What the daemon takes of its machine.",
  metrics: ["processors", "memory", "disk_free", "tokens_per_second"],
  build({ picture }) {
    const unit = picture.unit();
    const facts = el("p", { class: "quiet" });
    const [processors, memory, disk, step] = [figure("Processors"), figure("Memory"), figure("Disk"), figure("Step")];
    const whole = (value) => count(value);
    const chart = (title, metric, written, zero = true) => new Chart({ title, curves: [{ metric, name: title }], written, zero });
    const charts = [
      chart("Processors in use", "processors", (value) => fixed(value, 1)),
      chart("Memory held", "memory", bytes),
      chart("Disk free", "disk_free", bytes, false),
      chart(`${unit[0].toUpperCase()}${unit.slice(1)} a second`, "tokens_per_second", whole),
    ];
    function update({ picture, curves }) {
      charts.forEach((one) => one.draw(curves));
      const { sample, run, rates, up } = picture;
      say(facts, `${run.device || "unknown device"} · ${count(run.parameters)} parameters · murmur ${run.version} · running for ${duration(up)}`);
      if (!sample) return;
      processors.show(fixed(rates.processors, 1), health.processors(rates.processors));
      memory.show(bytes(sample.memory), { ...health.memory(sample), words: `${health.memory(sample).words}; the most was ${bytes(sample.peak_memory)}` });
      disk.show(bytes(sample.disk_free), health.disk(sample.disk_free));
      // Before the first step it is not known.
      const took = sample.step_seconds > 0 ? `${fixed(1000 * sample.step_seconds, 0)} ms` : "–";
      step.show(took, { words: `a step${sample.interval_steps ? `, and an own exchange every ${fixed(sample.interval_steps, 0)} of them` : ""}; steady is healthy` });
    }
    const nodes = [facts, figures(processors, memory, disk, step), el("div", { class: "pairs" }, ...charts.map((one) => one.node))];
    return { nodes, update, close: () => charts.forEach((one) => one.close()) };
  },
};
