//! Hundreds of schedules of loss, duplication, reordering, broken links, crashes, joiners and leavers, each drawn from
//! its seed. Whatever happens, every check holds; a failing seed says how to replay it.

use std::time::Duration;

use murmur_protocol::Phase;
use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_sim::checks::*;
use murmur_sim::{Disk, HostIndex, Incident, LatencySpec, Lie, NetworkSpec, NodePlan, Scenario, Swarm};

use crate::after;

/// Chaos, then averaging alone, then silence.
const LEARNING_SECONDS: u64 = 40;
const AVERAGING_SECONDS: u64 = 110;
const END_SECONDS: u64 = 135;

/// Schedules in each half; the halves run on two threads.
const SEEDS_IN_HALF: u64 = 125;

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}

/// A schedule, and how many nodes take part at its end; `identities_survive` tells whether a host that comes back from
/// a crash may do so under its old identity.
fn schedule(seed: u64, identities_survive: bool) -> (Scenario, usize) {
    let mut dice = stream(seed, "hostile schedule", &[]);
    let count: usize = dice.random_range(2..=7);
    let mut scenario = Scenario::calm(count);
    scenario.parameters = dice.random_range(20..300);
    scenario.worker.overload = 0.02 * dice.random::<f64>();
    let everybody = |host: HostIndex| (0..count).filter(|other| *other != host).collect();
    scenario.network = network(&mut dice);
    for host in 0..count {
        let joins_late = host > 0 && dice.random_bool(0.3);
        scenario.nodes[host] = if joins_late {
            NodePlan::joiner(seconds(dice.random_range(0.0..20.0)), everybody(host))
        } else {
            NodePlan::founder(everybody(host))
        };
        let line = dice.random_range(20e3..1e6);
        (scenario.nodes[host].uplink_bytes_per_second, scenario.nodes[host].downlink_bytes_per_second) =
            (line, 2.0 * line);
        scenario.nodes[host].step_time = seconds(dice.random_range(0.07..0.2));
    }
    // Host 0 stays, so that there is a model for joiners.
    let mut remaining = count;
    for host in 1..count {
        let time = seconds(dice.random_range(22.0..35.0));
        let later = time + seconds(dice.random_range(0.1..5.0));
        let incidents = match dice.random_range(0..6) {
            0 => vec![(time, Incident::Leave(host))],
            1 => vec![(time, Incident::Crash(host))],
            2 => {
                let same_identity = dice.random::<bool>() && identities_survive;
                vec![
                    (time, Incident::Crash(host)),
                    (later, Incident::Restart { host, same_identity, disk: Disk::Lost }),
                ]
            }
            3 => vec![(time, Incident::Pause(host, seconds(dice.random_range(0.1..10.0))))],
            4 => vec![(time, Incident::Split(vec![host])), (later, Incident::Heal)],
            _ => vec![(time, Incident::Break(host, 0)), (later, Incident::Break(host, host - 1))],
        };
        remaining -= usize::from(matches!(&incidents[..], [(_, Incident::Leave(_) | Incident::Crash(_))]));
        scenario.incidents.extend(incidents);
    }
    let calm = scenario.then_calm(Duration::from_secs(LEARNING_SECONDS), Duration::from_secs(AVERAGING_SECONDS));
    (calm, remaining)
}

/// Anything between a calm and a hostile network, trouble by trouble.
fn network(dice: &mut Generator) -> NetworkSpec {
    let hostile = NetworkSpec::hostile();
    NetworkSpec {
        latency: LatencySpec { median: hostile.latency.median.mul_f64(dice.random()), ..hostile.latency },
        loss: hostile.loss * dice.random::<f64>(),
        duplication: hostile.duplication * dice.random::<f64>(),
        reordering: hostile.reordering * dice.random::<f64>(),
        transfer_failure: hostile.transfer_failure * dice.random::<f64>(),
        dial_failure: hostile.dial_failure * dice.random::<f64>(),
        breakage: hostile.breakage * dice.random::<f64>(),
        ..hostile
    }
}

/// Runs one schedule and asks every check.
fn violations(seed: u64, identities_survive: bool) -> Vec<String> {
    let (scenario, remaining) = schedule(seed, identities_survive);
    let parameters = scenario.parameters;
    let record = after(Duration::from_secs(END_SECONDS), scenario, seed).record();
    let found = safety(&record, parameters).into_iter().chain(liveness(&record, remaining, 0.01));
    found.map(|violation| violation.to_string()).collect()
}

fn assert_all_hold(seeds: impl Iterator<Item = u64>, identities_survive: bool) {
    let only: Option<u64> = std::env::var("MURMUR_SIM_SEED").ok().and_then(|text| text.parse().ok());
    for seed in seeds.filter(|seed| only.is_none_or(|only| only == *seed)) {
        if only.is_some() {
            show(seed, identities_survive);
        }
        let found = violations(seed, identities_survive);
        assert!(found.is_empty(), "seed {seed}: {}\n{}", found.join("; "), replay(seed));
    }
}

fn replay(seed: u64) -> String {
    format!("replay: MURMUR_SIM_SEED={seed} cargo test -p murmur-sim --test laws hostile:: -- --nocapture")
}

/// The last events of a schedule, and how its hosts stood at the end.
fn show(seed: u64, identities_survive: bool) {
    let (scenario, _) = schedule(seed, identities_survive);
    println!("{:#?}", scenario.incidents);
    let mut swarm = Swarm::new(scenario, seed);
    swarm.keep_lines(400);
    swarm.run_until(Duration::from_secs(END_SECONDS));
    swarm.last_lines().for_each(|line| print!("{line}"));
    for host in 0..swarm.record().lives.len().min(7) {
        let status = swarm.status(host);
        println!("host {host}: {:?}", status.map(|status| (status.phase, status.connected, status.exchanges)));
    }
}

#[test]
fn the_first_half_of_the_schedules_holds() {
    assert_all_hold(0..SEEDS_IN_HALF, false);
}

#[test]
fn the_second_half_of_the_schedules_holds() {
    assert_all_hold(SEEDS_IN_HALF..2 * SEEDS_IN_HALF, false);
}

/// The same where a responder may come back in the middle of an exchange with other terms.
#[test]
fn schedules_with_surviving_identities_hold() {
    assert_all_hold(0..SEEDS_IN_HALF, true);
}

/// Whom honest nodes accuse under the same schedules.
#[test]
fn nobody_is_accused_on_a_bad_network() {
    let accusations = (0..100u64).filter_map(|seed| {
        let mut swarm = after(Duration::from_secs(LEARNING_SECONDS), schedule(seed, false).0, seed);
        nobody_accused(&swarm.record()).err().map(|violation| format!("seed {seed}: {violation}"))
    });
    let found: Vec<String> = accusations.collect();
    assert!(found.is_empty(), "{} of 100 schedules:\n{}", found.len(), found.join("\n"));
}

/// A donor gives a model drowned in noise away as 900 steps old. A check allows for what an old model lacks, but not for
/// one that is none of this run's.
#[test]
fn a_random_model_said_to_be_old_is_not_believed() {
    const JOINS: f64 = 60.0;
    const JOINER: HostIndex = 4;
    for seed in 0..20 {
        let mut scenario = Scenario::calm(4);
        scenario.nodes[3].lie = Some(Lie::Noise);
        scenario.nodes.push(NodePlan::joiner(seconds(JOINS), vec![3, 0]));
        let mut swarm = Swarm::new(scenario, seed);
        let mut time = JOINS;
        while swarm.status(JOINER).is_none_or(|status| status.phase == Phase::Joining) {
            time += 0.05;
            swarm.run_until(seconds(time));
            assert!(time < JOINS + 120.0, "seed {seed}: it does not join");
        }
        let record = swarm.record();
        let joined = record.lives.iter().find(|life| life.host == JOINER).expect("it lives");
        let (loss, first) = (joined.loss, record.first_loss);
        assert!(loss < 0.1 * first, "seed {seed}: it trains on a model of loss {loss}; the run began at {first}");
    }
}
