//! How fast the simulator is: prints simulated steps, exchanges and events per second of real time.
//! `cargo run --release -p murmur-sim --example speed`

use std::time::Duration;

use murmur_sim::{Scenario, Swarm};

fn main() {
    let begin = std::time::Instant::now();
    let mut scenario = Scenario::calm(32);
    scenario.nodes[1..].iter_mut().enumerate().for_each(|(index, plan)| plan.bootstrap = vec![index / 2]);
    let mut swarm = Swarm::new(scenario, 1);
    swarm.run_until(Duration::from_secs(60));
    let record = swarm.record();
    let (elapsed, steps) = (begin.elapsed().as_secs_f64(), record.lives.iter().map(|life| life.steps).sum::<u64>());
    let (exchanges, entries) = (record.exchanges.merges / 2, swarm.fingerprint().1);
    println!("32 nodes of 300 parameters, 60 s simulated in {elapsed:.2} s: per second of real time");
    let per_second = |count: f64| (count / elapsed).round();
    println!("{} steps, {} exchanges", per_second(steps as f64), per_second(exchanges as f64));
    println!("{} events and effects", per_second(entries as f64));
}
