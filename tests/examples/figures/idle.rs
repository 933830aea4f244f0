//! What a member costs that only stays to give the model to others.

use murmur_tests::netns::{Family, Lan};
use murmur_tests::process::{memory, processor_seconds};
use murmur_tests::swarm::{CALM_RUN, Swarm};
use serde_json::{Value, json};

/// Daemons that are done with the run; each knows all others.
const DAEMONS: usize = 4;

/// How long they are watched, in seconds of their own clocks.
const SECONDS: f64 = 30.0;

/// θ, its gradient and both moments of AdamW, as `f32`.
const MODEL_BYTES_PER_PARAMETER: f64 = 16.0;

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let run = CALM_RUN.replace("total_steps = 100000", "total_steps = 300");
    let lan = Lan::new(Family::V4, DAEMONS)?;
    let swarm = Swarm::with_settings(murmur, lan, DAEMONS, &run, "[training]\nafter_completion = \"serve\"\n");
    let done = |daemon: &murmur_tests::Daemon| daemon.wait_for("the end", |report| report.phase == "completed");
    let reports: Vec<_> = swarm.daemons.iter().map(done).collect();
    let processes: Vec<u32> = swarm.daemons.iter().map(|daemon| daemon.process_id()).collect();
    let sum = |process: &u32| processor_seconds(*process).values().map(|(_, seconds)| seconds).sum::<f64>();
    // What came with the last exchanges is over after some seconds.
    let calm: Vec<f64> = (swarm.daemons.iter().zip(&reports))
        .map(|(daemon, done)| daemon.wait_for("calm", |report| report.seconds >= done.seconds + 10.0).seconds)
        .collect();
    let before: Vec<f64> = processes.iter().map(sum).collect();
    for (daemon, calm) in swarm.daemons.iter().zip(calm) {
        daemon.wait_for("time to pass", |report| report.seconds >= calm + SECONDS);
    }
    let shares: Vec<f64> =
        processes.iter().zip(before).map(|(process, before)| (sum(process) - before) / SECONDS).collect();
    let model = reports[0].parameters as f64 * MODEL_BYTES_PER_PARAMETER / 1e6;
    let held: Vec<_> = processes.iter().map(|process| memory(*process)).collect();
    Some(json!({
        "idle members": DAEMONS,
        "seconds": SECONDS,
        "share of a core": shares,
        "resident MB": held.iter().map(|memory| memory.resident).collect::<Vec<_>>(),
        "resident MB without the program's file": held.iter().map(|memory| memory.anonymous).collect::<Vec<_>>(),
        "of that the model's own MB (theta, gradient, moments)": model,
        "peers": swarm.daemons.iter().map(|daemon| daemon.latest().map(|report| report.peers)).collect::<Vec<_>>(),
        "threads of the first, with processor seconds so far": processor_seconds(processes[0]).values().collect::<Vec<_>>(),
    }))
}
