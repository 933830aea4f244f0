//! The laws of a swarm, held in the simulator.

mod broken;
mod calm;
mod choosing;
mod everything;
mod findings;
mod finish;
mod holdings;
mod hostile;
mod learning;
mod mechanisms;
mod membership;
mod scenarios;
mod seldom;
mod synchronous;
mod teams;

use std::time::Duration;

use murmur_sim::{Scenario, Swarm};

/// A swarm after so long.
fn after(time: Duration, scenario: Scenario, seed: u64) -> Swarm {
    let mut swarm = Swarm::new(scenario, seed);
    swarm.run_until(time);
    swarm
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Whether this run takes its time: with `MURMUR_TEST_SCALE=nightly` what a push repeats a few times is repeated often.
fn is_nightly() -> bool {
    std::env::var("MURMUR_TEST_SCALE").is_ok_and(|scale| scale == "nightly")
}

/// So many seeds on each push, and so many times as many at night; `MURMUR_TEST_SEEDS=1000..9000` names others.
fn seeds(on_each_push: u64, at_night: u64) -> std::ops::Range<u64> {
    let named = std::env::var("MURMUR_TEST_SEEDS").ok();
    let range = named
        .as_deref()
        .and_then(|text| text.split_once(".."))
        .map(|(from, to)| from.parse().expect("a seed")..to.parse().expect("a seed"));
    range.unwrap_or(0..if is_nightly() { at_night * on_each_push } else { on_each_push })
}
