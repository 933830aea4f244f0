//! Under which conditions all of it was measured: what a paper has to say of a run.

use murmur_protocol::manifest::{OptimizerKind, OptimizerSpec, ScheduleSpec};

use super::{rate, seconds, when};
use crate::Text;
use crate::compare::{Links, Results};
use crate::report::{count, counted};

/// Each with its name.
pub fn conditions(results: &Results) -> Vec<(&'static str, String)> {
    let plan = &results.plan;
    let (base, trainer) = (&plan.base, &plan.base.trainer);
    let model = &trainer.model;
    let list = |numbers: &[f64]| numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let batch = trainer.optimizer.batch_sequences;
    let mut conditions = vec![
        ("murmur", format!("version {}", env!("CARGO_PKG_VERSION"))),
        ("loss", "mean over the living nodes, nats a byte, on held-out text".to_owned()),
        (
            "model",
            format!(
                "transformer of bytes, {}, width {}, {}, feed-forward width {}, context {}, {} parameters",
                counted(model.layers.into(), "layer"),
                model.width,
                counted(model.heads.into(), "head"),
                model.feed_forward,
                model.context,
                count(murmur_training::parameter_count(&model.clone().into()) as f64),
            ),
        ),
        ("batch", format!("{} of {} bytes a node and step", counted(batch.into(), "sequence"), model.context)),
        ("optimizer", optimizer(&trainer.optimizer)),
        (
            "learning rates",
            format!("{}; for each method the best at the end, with the first seed", list(&plan.learning_rates)),
        ),
        ("schedule", schedule(&trainer.schedule)),
        ("text", text(&trainer.text, trainer.validation_fraction)),
        (
            "held-out set",
            format!(
                "{} of {} bytes, the same for all nodes",
                counted(trainer.validation_sequences.into(), "window"),
                model.context
            ),
        ),
        (
            "nodes",
            format!(
                "{}, speeds {}{}",
                base.nodes,
                list(&base.speeds),
                if base.speeds.len() < base.nodes { ", repeated" } else { "" }
            ),
        ),
        (
            "steps",
            format!(
                "{} a node on average, {} each at speed 1",
                count(base.steps as f64),
                seconds(base.step_time.as_secs_f64())
            ),
        ),
        ("links", links(&base.links)),
        ("seeds", format!("{} from {} on; faults with the first", plan.seeds, base.seed)),
    ];
    if !plan.faults.is_empty() {
        let faults: Vec<String> =
            plan.faults.iter().map(|fault| format!("{}: {}", fault.name(), fault.title())).collect();
        conditions.push(("faults", format!("{}. {}", faults.join("; "), when(plan))));
    }
    conditions
}

fn optimizer(spec: &OptimizerSpec) -> String {
    let OptimizerSpec { beta1, beta2, epsilon, weight_decay, gradient_norm_max, .. } = spec;
    let adam = format!("AdamW, β₁ {beta1}, β₂ {beta2}, ε {epsilon}");
    let matched = if spec.match_batch { ", its second moment that of the batches of all nodes" } else { "" };
    let muon = match spec.kind {
        OptimizerKind::AdamW => String::new(),
        OptimizerKind::Muon => format!(
            "Muon for hidden matrices, momentum {}, at {} times AdamW's rate; ",
            spec.muon_momentum,
            (1000.0 * spec.muon_learning_rate / spec.learning_rate).round() / 1000.0
        ),
    };
    format!("{muon}{adam}{matched}; weight decay {weight_decay}, gradients of at most norm {gradient_norm_max}")
}

fn schedule(spec: &ScheduleSpec) -> String {
    format!(
        "{} of linear warm-up, a fall to {} of the peak like half a cosine over the last {} % of the others",
        counted(spec.warmup_steps, "step"),
        spec.final_fraction,
        100.0 * spec.decay_fraction
    )
}

fn text(text: &Text, held_out: f64) -> String {
    match text {
        Text::Grammar => "built-in stories, endless".to_owned(),
        Text::Bytes(bytes) => format!(
            "{} bytes, BLAKE3 {}, of which the last {} % are held out",
            count(bytes.len() as f64),
            blake3::hash(bytes).to_hex(),
            100.0 * held_out
        ),
    }
}

fn links(links: &Links) -> String {
    format!(
        "{}: {} up, {} down, latency {} ms (median; log-normal, spread {}), {} % of messages and transfers lost",
        links.name,
        rate(links.up_bytes_per_second),
        rate(links.down_bytes_per_second),
        1000.0 * links.latency.median.as_secs_f64(),
        links.latency.spread,
        100.0 * links.loss
    )
}
