//! A flash crowd: many daemons that join one swarm within seconds.

use std::time::{Duration, Instant};

use crate::{Daemon, write_run};

/// How often the daemons' reports are looked at; they come twice a second.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// What became of it.
#[derive(Debug)]
pub struct Crowd {
    /// Seconds from the first joiner's start to the last one's.
    pub started_over: f64,
    /// Seconds from the start of each joiner until it trained, in order of their starts.
    pub trains_after: Vec<f64>,
    /// The same until it had completed an exchange.
    pub averages_after: Vec<f64>,
    /// Connected peers of each daemon in the end, the founder's first.
    pub peers: Vec<usize>,
}

/// Founds a swarm of `run` on loopback, lets `joiners` daemons join it by the founder's ticket, evenly spread over
/// `spread`, and watches for `limit` from the last start. Whoever does not train, or has not averaged, by then has an
/// infinite time.
///
/// # Panics
/// When a daemon cannot be started or ends.
pub fn watch_crowd(program: &str, run: &str, joiners: usize, spread: Duration, limit: Duration) -> Crowd {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let run_file = write_run(folder.path(), run);
    let spawn = |name: &str, arguments: &[&str]| Daemon::spawn(program, &folder.path().join(name), arguments);
    let founder = spawn("founder", &["start", run_file.to_str().expect("UTF-8")]);
    founder.wait_for("some steps", |report| report.steps > 10);
    let ticket = founder.ticket();

    let begin = Instant::now();
    let mut daemons = Vec::new();
    for number in 0..joiners {
        let due = spread.mul_f64(number as f64 / joiners as f64);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        daemons.push((Instant::now(), spawn(&format!("joiner-{number}"), &["join", &ticket])));
    }
    let started_over = begin.elapsed().as_secs_f64();
    let mut trains_after = vec![f64::INFINITY; joiners];
    let mut averages_after = trains_after.clone();
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline && averages_after.iter().any(|seconds| seconds.is_infinite()) {
        for (number, (start, daemon)) in daemons.iter().enumerate() {
            let Some(report) = daemon.latest() else { continue };
            let seconds = start.elapsed().as_secs_f64();
            if report.steps > 0 && report.phase == "training" {
                trains_after[number] = trains_after[number].min(seconds);
            }
            if report.exchanges_completed > 0 {
                averages_after[number] = averages_after[number].min(seconds);
            }
        }
        std::thread::sleep(LOOK_PERIOD);
    }
    let all = std::iter::once(&founder).chain(daemons.iter().map(|(_, daemon)| daemon));
    let peers = all.map(|daemon| daemon.latest().map_or(0, |report| report.peers)).collect();
    Crowd { started_over, trains_after, averages_after, peers }
}
