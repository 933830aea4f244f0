//! How long it takes from the start of a process until it trains with the swarm, on loopback.

use std::time::{Duration, Instant};

use murmur_tests::{Daemon, write_run};
use serde_json::{Value, json};

/// (name, layers, width, heads, feed-forward width) of models of 10.8 and 50.1 million parameters.
const MODELS: [(&str, u32, u32, u32, u32); 2] = [("10M", 6, 384, 6, 1024), ("50M", 8, 720, 12, 1920)];

/// Joins of each kind.
const JOINS: usize = 4;

/// Longer than a donor keeps the copy of its model that it gives away.
const PAUSE: Duration = Duration::from_secs(11);

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let mut results = serde_json::Map::new();
    for (name, layers, width, heads, feed_forward) in MODELS {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let run = format!(
            "[run]\nname = \"join\"\n[model]\nlayers = {layers}\nwidth = {width}\nheads = {heads}\n\
             feed_forward = {feed_forward}\ncontext = 16\n[optimizer]\nbatch_sequences = 1\n\
             [schedule]\ntotal_steps = 1000000\n[data]\nvalidation_sequences = 1\n"
        );
        let run_file = write_run(folder.path(), &run);
        let founder =
            Daemon::spawn(murmur, &folder.path().join("founder"), &["start", run_file.to_str().expect("UTF-8")]);
        let ticket = founder.ticket();
        let parameters = founder.wait_for("it trains", |report| report.steps >= 10).parameters;
        let mut kinds = serde_json::Map::new();
        for (kind, pause) in [("in quick succession", Duration::ZERO), ("apart", PAUSE)] {
            let mut seconds = Vec::new();
            for number in 0..JOINS {
                std::thread::sleep(pause);
                let begin = Instant::now();
                let joiner = Daemon::spawn(murmur, &folder.path().join(format!("{kind}-{number}")), &["join", &ticket]);
                joiner.wait_for_notice("took over the model");
                let taken_over = begin.elapsed().as_secs_f64();
                joiner.wait_for("its first step", |report| report.phase == "training" && report.loss.is_some());
                seconds.push((taken_over, begin.elapsed().as_secs_f64()));
                joiner.kill();
            }
            kinds.insert(kind.to_owned(), json!(seconds));
        }
        results
            .insert(format!("{name}, {parameters} parameters: seconds until (model, first step told)"), kinds.into());
    }
    Some(results.into())
}
