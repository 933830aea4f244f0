//! `murmur sim check-determinism`: one seed, two runs, one trace.

use murmur_sim::runner::check_determinism;
use serde_json::json;

use super::interrupted;
use super::interruption::on_interruption;
use super::setting::the_one;
use super::source::Source;
use crate::cli::SimCheckDeterminismOptions;
use crate::console::{Console, print_line};
use crate::failure::{ExitCode, Failure};

pub(super) fn run(options: &SimCheckDeterminismOptions) -> anyhow::Result<()> {
    // Two swarms side by side take as much as two seeds.
    let source = Source::load(&options.scenario, options.nodes, the_one(&options.set)?, 2)?;
    let seed = options.seed;
    let Some(repetition) = check_determinism(&source.file, seed, &*on_interruption()?) else {
        return Err(interrupted("interrupted before the end: nothing can be said".to_owned()).into());
    };
    let divergence = repetition.divergence.as_ref();
    if options.format == Console::Json {
        let result = json!({
            "seed": seed,
            "same": divergence.is_none(),
            "trace_entries": repetition.entries,
            "trace_digest": repetition.digest,
            "differs_after_seconds": divergence.map(|divergence| divergence.after.as_secs_f64()),
            "first_difference": divergence.and_then(|divergence| divergence.entries.as_ref()),
        });
        print_line(&result.to_string());
    }
    let Some(divergence) = divergence else {
        if options.format == Console::Text {
            let (entries, digest) = (repetition.entries, &repetition.digest);
            print_line(&format!("seed {seed} of {}: two runs, the same {entries} events and effects", source.name));
            print_line(&format!("trace {digest}"));
        }
        return Ok(());
    };
    if let (Console::Text, Some([one, other])) = (options.format, &divergence.entries) {
        print_line(&format!("first run   {one}"));
        print_line(&format!("second run  {other}"));
    }
    let after = divergence.after.as_secs_f64();
    let message =
        format!("seed {seed} of {} gives two runs: they differ after {after:.3} simulated seconds", source.name);
    Err(Failure::new(ExitCode::Failure, message)
        .hint("the core or the simulator depends on something besides the seed: a clock, a thread, hash order")
        .into())
}
