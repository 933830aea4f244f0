//! Swarms whose members choose how they average (`synchronous.auto`): all at once where that pays, in pairs where it does not,
//! and all of them the same.

use std::time::Duration;

use murmur_protocol::manifest::{SynchronousSpec, Topology};
use murmur_protocol::random::{RngExt, stream};
use murmur_sim::{Disk, Incident, LatencySpec, NetworkSpec, NodePlan, Scenario, Swarm};

use crate::{after, seconds};

const HOSTS: usize = 6;

fn network(way_milliseconds: u64) -> NetworkSpec {
    let latency = LatencySpec { median: Duration::from_millis(way_milliseconds), spread: 0.1 };
    NetworkSpec { latency, ..NetworkSpec::calm() }
}

/// A founder and members that copy its model; a step takes a second.
fn scenario(way_milliseconds: u64) -> Scenario {
    let mut scenario = Scenario::calm(HOSTS);
    for (index, plan) in scenario.nodes.iter_mut().enumerate() {
        if index > 0 {
            *plan = NodePlan::joiner(Duration::from_millis(200 * index as u64), vec![0]);
        }
        plan.step_time = seconds(1);
    }
    scenario.network = network(way_milliseconds);
    scenario.synchronous = SynchronousSpec { topology: Topology::Ring, auto: true, ..SynchronousSpec::default() };
    scenario
}

/// Whether each host that runs averages all at once now.
fn are_together(swarm: &Swarm) -> Vec<bool> {
    let running = (0..HOSTS).filter_map(|host| swarm.status(host));
    running.map(|status| status.synchronous.is_some_and(|synchronous| synchronous.members > 1)).collect()
}

fn steps(swarm: &Swarm, host: usize) -> u64 {
    swarm.status(host).expect("it runs").training.steps
}

#[test]
fn members_go_over_to_all_at_once_on_a_fast_network_and_stay_in_pairs_on_a_slow_one() {
    for (way, expected) in [(1, true), (5, true), (500, false)] {
        let mut swarm = after(seconds(60), scenario(way), 1);
        assert_eq!(are_together(&swarm), [expected; HOSTS], "{way} ms");
        let before: Vec<u64> = (0..HOSTS).map(|host| steps(&swarm, host)).collect();
        swarm.run_until(seconds(120));
        assert_eq!(are_together(&swarm), [expected; HOSTS], "{way} ms");
        for (host, before) in before.into_iter().enumerate() {
            let taken = steps(&swarm, host) - before;
            let least = if expected { 40 } else { 59 };
            assert!(taken >= least, "{way} ms: host {host} took {taken} steps in a minute");
        }
        assert_eq!(swarm.record().found, [], "{way} ms");
    }
}

/// Encoding and merging take a part of a step here, so that exchanges are under way for most of the time. One that was cut off
/// would be one-sided, and one that landed in a replica would make it another one.
#[test]
fn exchanges_that_are_under_way_end_before_all_average_at_once() {
    for seed in 0..16 {
        let mut scenario = scenario(1);
        scenario.worker.delay = (Duration::from_millis(100), Duration::from_millis(300));
        let mut swarm = Swarm::new(scenario, seed);
        let is_over = |second: &u64| {
            swarm.run_until(seconds(*second));
            (0..HOSTS).all(|host| swarm.status(host).is_some_and(|status| status.synchronous.is_some()))
        };
        let begun = (1..60).find(is_over).expect("all average at once");
        swarm.run_until(seconds(begun + 8));
        let differed = (0..HOSTS).filter_map(|host| swarm.status(host)?.synchronous).map(|told| told.differed);
        assert_eq!(differed.sum::<u64>(), 0, "seed {seed}");
        let record = swarm.record();
        assert!(record.exchanges.merges > 10, "seed {seed}");
        assert_eq!(record.exchanges.one_sided.len(), 0, "seed {seed}");
        assert_eq!(record.found, [], "seed {seed}");
    }
}

#[test]
fn where_a_network_becomes_slow_they_go_back_and_try_again_once_it_is_fast() {
    let scenario = scenario(1)
        .at(seconds(100), Incident::NetworkBecomes(network(500)))
        .at(seconds(200), Incident::NetworkBecomes(network(1)));
    let mut swarm = after(seconds(99), scenario, 2);
    assert_eq!(are_together(&swarm), [true; HOSTS]);
    swarm.run_until(seconds(199));
    assert_eq!(are_together(&swarm), [false; HOSTS]);
    swarm.run_until(seconds(400));
    assert_eq!(are_together(&swarm), [true; HOSTS]);
    assert_eq!(swarm.record().found, []);
}

#[test]
fn one_slow_machine_sends_all_back_to_pairs_and_holds_up_nobody_for_long() {
    let scenario = scenario(1).at(seconds(100), Incident::SlowTrainer(3, 8.0));
    let mut swarm = after(seconds(99), scenario, 3);
    assert_eq!(are_together(&swarm), [true; HOSTS]);
    let before = steps(&swarm, 0);
    swarm.run_until(seconds(300));
    assert_eq!(are_together(&swarm), [false; HOSTS]);
    let taken = steps(&swarm, 0) - before;
    assert!(taken > 140, "{taken} steps in two hundred seconds");
    assert_eq!(swarm.record().found, []);
}

#[test]
fn whatever_happens_all_end_in_one_scheme_and_go_on() {
    for seed in crate::seeds(8, 50) {
        let mut fate = stream(seed, "fate of a swarm that chooses", &[]);
        let mut scenario = scenario([1, 5, 150][fate.random_range(0..3)]);
        scenario.network = NetworkSpec { loss: 0.05, transfer_failure: 0.05, ..scenario.network };
        for _ in 0..8 {
            let (at, host) = (seconds(fate.random_range(10..120)), fate.random_range(1..HOSTS));
            let incident = match fate.random_range(0..7) {
                0 => Incident::Crash(host),
                1 => Incident::Restart { host, same_identity: true, disk: Disk::Lost },
                2 => Incident::Restart { host, same_identity: true, disk: Disk::Kept },
                3 => Incident::Pause(host, Duration::from_millis(fate.random_range(100..9000))),
                4 => Incident::SlowTrainer(host, 6.0),
                5 => Incident::NetworkBecomes(network([1, 400][fate.random_range(0..2)])),
                _ => Incident::Split(vec![host, (host + 2) % HOSTS]),
            };
            scenario = scenario.at(at, incident);
        }
        for host in 1..HOSTS {
            scenario = scenario.at(seconds(125), Incident::SlowTrainer(host, 1.0));
        }
        scenario = scenario.at(seconds(125), Incident::Heal);
        scenario = scenario.at(seconds(125), Incident::NetworkBecomes(network(1)));
        let mut swarm = Swarm::new(scenario, seed);
        // The longest that a choice is put off after two that were given up.
        swarm.run_until(seconds(600));
        let together = are_together(&swarm);
        assert!(together.iter().all(|one| *one), "seed {seed}: {together:?}");
        let running: Vec<usize> = (0..HOSTS).filter(|host| swarm.is_running(*host)).collect();
        let before: Vec<u64> = running.iter().map(|host| steps(&swarm, *host)).collect();
        swarm.run_until(seconds(630));
        for (host, before) in running.iter().zip(before) {
            let taken = steps(&swarm, *host) - before;
            assert!(taken >= 20, "seed {seed}: host {host} took {taken} steps in thirty seconds");
        }
        assert_eq!(swarm.record().found, [], "seed {seed}");
    }
}
