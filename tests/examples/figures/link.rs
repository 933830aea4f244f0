//! How much of a link of 100 Mbit/s an exchange uses while it runs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use murmur_tests::netns::{Family, Host, Lan};
use murmur_tests::swarm::Swarm;
use serde_json::{Value, json};

const MEGABITS: u32 = 100;

/// Ten million parameters, so that an exchange takes a second each way, and little work a step.
const RUN: &str = "\
[run]
name = \"link\"
[model]
layers = 4
width = 448
heads = 8
feed_forward = 1216
context = 8
[optimizer]
batch_sequences = 1
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 1
[gossip]
interval_steps = 20
interval_steps_min = 20
interval_steps_max = 20
final_exchanges = 1
";

/// Exchanges that are measured.
const EXCHANGES: u64 = 5;

/// A link that moves less than this share in a sample does not carry bulk.
const BULK_SHARE: f64 = 0.05;

/// Silence that ends an exchange, in seconds: shorter than what lies between two exchanges.
const SILENCE_SECONDS: f64 = 0.4;

/// Bytes through a link up to a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    received: u64,
    sent: u64,
}

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let lan = Lan::new(Family::V4, 2)?;
    lan.hosts().iter().for_each(|host| host.limit(MEGABITS));
    let (mut sampler, samples) = sample(lan.host(1));
    // One that evaluates and writes checkpoints does other work than the network's.
    let swarm = Swarm::with_settings(murmur, lan, 2, RUN, "[training]\nevaluate_every = 0\n");
    swarm.daemons[1].wait_for("it has the model", |report| report.phase == "training");
    let state: Vec<Sample> = samples.try_iter().collect();
    swarm.daemons[1].wait_for("first exchanges", |report| report.exchanges_completed >= 2);
    let _ = samples.try_iter().count();
    let last = swarm.daemons[1].wait_for("exchanges", |report| report.exchanges_completed >= 2 + EXCHANGES);
    let seen: Vec<Sample> = samples.try_iter().collect();
    let _ = sampler.kill();
    let _ = sampler.wait();
    Some(json!({
        "link Mbit/s": MEGABITS,
        "parameters": last.parameters,
        "copying the model": bursts(&state).iter().map(|burst| describe(burst)).collect::<Vec<_>>(),
        "exchanges": bursts(&seen).iter().map(|burst| describe(burst)).collect::<Vec<_>>(),
        "broken off": last.exchanges_failed,
    }))
}

/// Reads the counters of a host's link fifty times a second, in a shell on that host, until nobody listens.
fn sample(host: &Host) -> (Child, Receiver<Sample>) {
    let script = "while :; do while read -r line; do case $line in eth0:*) echo $EPOCHREALTIME ${line#eth0:} || exit;; esac; \
                  done < /proc/net/dev; sleep 0.02; done";
    let mut child = host.command("bash").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("bash is there");
    let stdout = child.stdout.take().expect("a pipe");
    let (sender, samples) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            let [seconds, received, .., sent] = fields[..10] else { continue };
            let _ = sender.send(Sample { seconds, received: received as u64, sent: sent as u64 });
        }
    });
    (child, samples)
}

/// The stretches in which bulk flows.
fn bursts(samples: &[Sample]) -> Vec<Vec<Sample>> {
    let mut bursts: Vec<Vec<Sample>> = Vec::new();
    for pair in samples.windows(2) {
        let [before, after] = pair else { continue };
        let bytes = (after.received - before.received).max(after.sent - before.sent);
        if share(bytes, after.seconds - before.seconds) < BULK_SHARE {
            continue;
        }
        match bursts.last_mut() {
            Some(burst) if burst.last().is_some_and(|last| after.seconds - last.seconds < SILENCE_SECONDS) => {
                burst.extend(pair);
            }
            _ => bursts.push(pair.to_vec()),
        }
    }
    bursts
}

/// One burst: how long it took, and what share of each way it used, over all of it and while that way was in use.
fn describe(burst: &[Sample]) -> Value {
    let (first, last) = (burst[0], burst[burst.len() - 1]);
    let seconds = last.seconds - first.seconds;
    let (received, sent) = (last.received - first.received, last.sent - first.sent);
    let flowing = |bytes: fn(&Sample) -> u64| {
        let mut flow = (0, 0.0);
        for pair in burst.chunks(2) {
            let [before, after] = pair else { continue };
            let (moved, lasted) = (bytes(after) - bytes(before), after.seconds - before.seconds);
            if share(moved, lasted) >= BULK_SHARE {
                flow = (flow.0 + moved, flow.1 + lasted);
            }
        }
        (flow.1, share(flow.0, flow.1))
    };
    let (in_flow, out_flow) = (flowing(|sample| sample.received), flowing(|sample| sample.sent));
    json!({
        "seconds": round(seconds),
        "MB received and sent": [round(received as f64 / 1e6), round(sent as f64 / 1e6)],
        "share from first to last byte, the way in and the way out": [round(share(received, seconds)), round(share(sent, seconds))],
        "receiving: seconds, share": [round(in_flow.0), round(in_flow.1)],
        "sending: seconds, share": [round(out_flow.0), round(out_flow.1)],
    })
}

/// Share of one direction of the link.
fn share(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / (f64::from(MEGABITS) * 1e6) / seconds
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
