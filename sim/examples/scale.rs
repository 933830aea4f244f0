//! What a node pays in a swarm of N: time, memory, control traffic and disagreement for N from 64 to 10,000.
//! `cargo run --release -p murmur-sim --example scale [N…]`
//!
//! Each size runs in a process of its own, so that the peak of memory is its own. Per node and round, everything should
//! stay flat: a node of a swarm of 10,000 knows no more, says no more and is no further from the others than one of 64.

use std::process::Command;
use std::time::{Duration, Instant};

use murmur_sim::checks::safety;
use murmur_sim::{Sample, Scenario, Swarm};

/// Exchanges come and go by the million.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sizes without arguments.
const SIZES: [usize; 4] = [64, 100, 1_000, 10_000];

/// Outer rounds of each run: H steps of 100 ms each, one second in all.
const ROUNDS: u64 = 200;

/// Parameters of the quadratic: one block, so that numerics do not hide what the rest costs.
const PARAMETERS: usize = 64;

/// The first part of a run, in which nodes find each other, does not count.
const WARM_UP_ROUNDS: u64 = 50;

/// Points in time over which disagreement and traffic are averaged.
const SAMPLES: u64 = 30;

fn main() {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("one"), Some(size)) => one(size.parse().expect("a number of nodes")),
        (first, second) => {
            println!(
                "nodes   seconds  of CPU  MiB   messages/node/round  bytes/node/round  disagreement rms  entries/s"
            );
            let asked: Vec<String> = first.map(str::to_owned).into_iter().chain(second).chain(arguments).collect();
            let sizes = if asked.is_empty() { SIZES.map(|size| size.to_string()).to_vec() } else { asked };
            for size in sizes {
                let program = std::env::current_exe().expect("this program");
                let status = Command::new(program).args(["one", &size]).status().expect("it starts");
                assert!(status.success(), "{size} nodes: {status}");
            }
        }
    }
}

/// Everybody knows the address of one who began before, at random distances.
fn scenario(size: usize) -> Scenario {
    let mut scenario = Scenario::calm(size);
    scenario.parameters = PARAMETERS;
    // A round of set length, so that rounds can be counted.
    scenario.gossip.interval_steps = 10;
    (scenario.gossip.interval_steps_min, scenario.gossip.interval_steps_max) = (10, 10);
    for (index, plan) in scenario.nodes.iter_mut().enumerate().skip(1) {
        plan.bootstrap = vec![index / 2];
    }
    scenario
}

fn one(size: usize) {
    let begin = Instant::now();
    let scenario = scenario(size);
    let parameters = scenario.parameters;
    let mut swarm = Swarm::new(scenario, 1).without_books();
    let round = |round: u64| Duration::from_secs(round);
    swarm.run_until(round(WARM_UP_ROUNDS));
    let first = swarm.sample();
    let mut disagreement = 0.0;
    let mut last: Sample = first.clone();
    for sample in 1..=SAMPLES {
        swarm.run_until(round(WARM_UP_ROUNDS + sample * (ROUNDS - WARM_UP_ROUNDS) / SAMPLES));
        last = swarm.sample();
        disagreement += last.disagreement / SAMPLES as f64;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let node_rounds = (size as u64 * (ROUNDS - WARM_UP_ROUNDS)) as f64;
    let messages = (last.traffic.control_messages - first.traffic.control_messages) as f64 / node_rounds;
    let bytes = (last.traffic.control_bytes - first.traffic.control_bytes) as f64 / node_rounds;
    let entries = swarm.fingerprint().1 as f64 / processor_seconds().max(0.01);
    println!(
        "{size:>6} {seconds:>8.1} {:>7.1} {:>5} {messages:>15.3} {bytes:>18.1} {disagreement:>17.4} {entries:>14.0}",
        processor_seconds(),
        peak_memory_mebibytes()
    );
    let completed = (last.exchanges_completed - first.exchanges_completed) as f64 / node_rounds;
    let connected = last.connected as f64 / size as f64;
    println!("       exchanges/node/round {completed:.3}, connections/node {connected:.1}, loss {:.4}", last.loss);
    // Of each node; exchanges as wholes are what smaller swarms are checked for.
    let found = safety(&swarm.record(), parameters);
    assert!(found.is_empty(), "{found:?}");
}

/// VmHWM, where the system tells it.
fn peak_memory_mebibytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Time of the processor in user mode, where the system tells it: a shared machine makes the other time longer.
fn processor_seconds() -> f64 {
    /// Linux counts in hundredths of a second for every program.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may hold spaces; after it, user time is the twelfth field.
    let ticks = text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11)?.parse::<f64>().ok());
    ticks.unwrap_or(0.0) / TICKS_PER_SECOND
}
