//! What gossip costs training: steps a second with it and without, in turns on the same cores.

use murmur::observe::report::NodeReport;
use murmur_tests::Daemon;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::process::{place, processor_seconds};
use murmur_tests::swarm::Swarm;
use serde_json::{Value, json};

/// The built-in run's model and rhythm, without an end. The rhythm is held, or a busy machine would be spared.
const RUN: &str = "\
[schedule]
total_steps = 1000000
[gossip]
interval_steps = 10
interval_steps_min = 10
interval_steps_max = 10
";

/// Turns of each kind.
const TURNS: usize = 3;

/// Seconds without pauses, over which processor time is counted.
const STRETCH_SECONDS: f64 = 20.0;

/// Seconds of a turn, shorter than silence that ends a connection.
const TURN_SECONDS: f64 = 6.0;

/// The measured trainers go before everything else on the machine, also before their partner.
const FIRST: i32 = -15;
const AS_OTHERS: i32 = 0;

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let lan = Lan::new(Family::V4, 3)?;
    let settings = "[training]\nevaluate_every = 0\n[checkpoint]\nevery_seconds = 0\n";
    let swarm = Swarm::with_settings(murmur, lan, 2, RUN, settings);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let run_file = murmur_tests::write_run(folder.path(), RUN);
    let alone = swarm.start(2, &["start", run_file.to_str().expect("UTF-8")]);
    let [together, partner] = swarm.daemons.as_slice() else { return None };
    partner.wait_for("it averages", |report| report.exchanges_completed >= 10);
    alone.wait_for("it trains", |report| report.steps >= 10);
    place(partner.process_id(), "1", AS_OTHERS);
    let mut results = serde_json::Map::new();
    for (name, cores) in [("one spare core", "0,1"), ("no spare core", "0")] {
        place(together.process_id(), cores, FIRST);
        place(alone.process_id(), cores, FIRST);
        // Without pauses: what the books say.
        alone.signal("STOP");
        let busy_before = busy(together);
        let (_, before, after) = stretch(together, STRETCH_SECONDS);
        let (boundaries, gossip) = cost(&busy_before, &busy(together), &before, &after);
        let exchanges = after.exchanges_completed - before.exchanges_completed;
        // In turns: what the clock says.
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            let (with, _, _) = stretch(together, TURN_SECONDS);
            together.signal("STOP");
            partner.signal("STOP");
            alone.signal("CONT");
            let (without, _, _) = stretch(&alone, TURN_SECONDS);
            alone.signal("STOP");
            together.signal("CONT");
            partner.signal("CONT");
            turns.push((with, without));
        }
        alone.signal("CONT");
        let ratios: Vec<f64> = turns.iter().map(|(with, without)| with / without).collect();
        let figures = json!({
            "steps a second with gossip, and alone": turns,
            "ratios": ratios,
            "exchanges in so many steps": [exchanges, after.steps - before.steps],
            "ratio of the sums": turns.iter().map(|turn| turn.0).sum::<f64>() / turns.iter().map(|turn| turn.1).sum::<f64>(),
            "share of time at step boundaries": boundaries,
            "share of its processor time outside the training threads": gossip,
        });
        results.insert(name.to_owned(), figures);
    }
    Some(Value::Object(results))
}

/// Steps a second over so many seconds, with the reports at both ends. The first report after a pause belongs to the pause.
fn stretch(daemon: &Daemon, seconds: f64) -> (f64, NodeReport, NodeReport) {
    let pause = daemon.latest().expect("it reported");
    let before = daemon.wait_for("it goes on", |report| report.seconds > pause.seconds + 0.6);
    let before = daemon.wait_for("a fresh report", |report| report.seconds > before.seconds);
    let after = daemon.wait_for("a stretch", |report| report.seconds >= before.seconds + seconds);
    ((after.steps - before.steps) as f64 / (after.seconds - before.seconds), before, after)
}

/// Processor seconds of the training threads, and of all others.
fn busy(daemon: &Daemon) -> (f64, f64) {
    let mut busy = (0.0, 0.0);
    for (name, seconds) in processor_seconds(daemon.process_id()).values() {
        // Steps run on the trainer and on the threads of the matrix products, which are named for the program.
        let is_gossip = ["tokio", "worker", "store", "futures"].iter().any(|word| name.starts_with(word));
        if is_gossip { busy.1 += seconds } else { busy.0 += seconds }
    }
    busy
}

/// Shares of the time at step boundaries and of the processor time that is not training's.
fn cost(earlier: &(f64, f64), later: &(f64, f64), before: &NodeReport, after: &NodeReport) -> (f64, f64) {
    let boundaries =
        (after.times.seconds_at_boundaries - before.times.seconds_at_boundaries) / (after.seconds - before.seconds);
    let (training, others) = (later.0 - earlier.0, later.1 - earlier.1);
    (boundaries, others / (training + others))
}
