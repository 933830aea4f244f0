//! Whether memory grows with exchanges that break off: connections die under them, a thousand times.

use std::time::{Duration, Instant};

use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::Swarm;
use serde_json::{Value, json};

use crate::process::memory;

/// A model whose exchange takes a while on the link below, so that most connections die under one.
const RUN: &str = "\
[run]
name = \"failures\"
[model]
layers = 2
width = 128
heads = 4
feed_forward = 352
context = 16
[optimizer]
batch_sequences = 1
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 1
[gossip]
interval_steps = 5
interval_steps_min = 5
interval_steps_max = 5
final_exchanges = 1
";

/// Members that all break off with the one that is watched.
const DAEMONS: usize = 5;

const MEGABITS: u32 = 20;

/// Failed exchanges of the watched one.
const FAILURES: u64 = 1000;

/// Longest time for them.
const TIME_LIMIT: Duration = Duration::from_secs(480);

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let lan = Lan::new(Family::V4, DAEMONS)?;
    let settings = "[training]\nevaluate_every = 0\n[network]\nlisten = [\"/ip4/0.0.0.0/tcp/4711\"]\n";
    let swarm = Swarm::with_settings(murmur, lan, DAEMONS, RUN, settings);
    let watched = &swarm.daemons[0];
    swarm.wait_until_all_average();
    swarm.lan.host(0).limit(MEGABITS);
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut next = 0;
    let mut cuts = 0u64;
    loop {
        let report = watched.wait_for("a report", |_| true);
        let is_over = report.exchanges_failed >= FAILURES || begin.elapsed() > TIME_LIMIT;
        if report.exchanges_failed >= next || is_over {
            let held = memory(watched.process_id());
            rows.push(json!([report.exchanges_failed, report.exchanges_completed, held.resident, held.anonymous]));
            next = report.exchanges_failed + FAILURES / 10;
        }
        if is_over {
            break;
        }
        // Every established TCP connection of this host to port 4711 or from it is destroyed.
        let killed = swarm.lan.host(0).command("ss").args(["-KtnH", "state", "established"]).output();
        cuts += u64::from(killed.expect("ss is there").stdout.len() > 1);
        std::thread::park_timeout(Duration::from_millis(150));
    }
    Some(json!({
        "seconds": begin.elapsed().as_secs(),
        "times that connections were destroyed": cuts,
        "failed exchanges, completed ones, resident MB, resident MB without the program's file": rows,
    }))
}
