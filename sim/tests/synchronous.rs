//! Swarms that average all at once, in the simulator: whatever happens to hosts and network, who averages together has one
//! replica, nobody waits beyond a deadline, and those left find each other again.

use std::time::Duration;

use murmur_protocol::manifest::{SynchronousSpec, Topology};
use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::status::SynchronousStatus;
use murmur_sim::{Disk, Incident, NetworkSpec, NodePlan, Sabotage, Scenario, Swarm};

use crate::{after, seconds};

const HOSTS: usize = 6;

const TOPOLOGIES: [Topology; 4] = [Topology::Ring, Topology::Tree, Topology::Star, Topology::HalvingDoubling];

/// A founder and members that copy its replica, as a run is begun.
fn scenario(topology: Topology, slice_bits: u32) -> Scenario {
    let mut scenario = Scenario::calm(HOSTS);
    for (index, plan) in scenario.nodes.iter_mut().enumerate().skip(1) {
        *plan = NodePlan::joiner(Duration::from_millis(200 * index as u64), vec![0]);
    }
    scenario.synchronous = SynchronousSpec { topology, slice_bits, ..SynchronousSpec::default() };
    scenario
}

fn status(swarm: &Swarm, host: usize) -> SynchronousStatus {
    swarm.status(host).and_then(|status| status.synchronous).expect("it runs, and averages with all")
}

/// All that run average together, and go on.
fn expect_one_group(swarm: &mut Swarm, until: u64, what: &str) {
    let running: Vec<usize> = (0..HOSTS).filter(|host| swarm.is_running(*host)).collect();
    let before: Vec<u64> = running.iter().map(|host| status(swarm, *host).finished).collect();
    swarm.run_until(seconds(until));
    assert_eq!(swarm.record().found, [], "{what}");
    for (host, before) in running.iter().zip(before) {
        let now = status(swarm, *host);
        assert_eq!(now.members, running.len(), "{what}: host {host}: {now:?}");
        assert!(now.finished > before + 5, "{what}: host {host} stands: {now:?} after {before}");
        assert!(now.waited.as_secs_f64() < until as f64, "{what}: {now:?}");
    }
}

#[test]
fn hosts_find_each_other_and_go_on_through_a_split() {
    for (topology, slice_bits) in TOPOLOGIES.into_iter().zip([32, 16, 8, 8]) {
        let scenario = scenario(topology, slice_bits)
            .at(seconds(20), Incident::Split(vec![1, 4]))
            .at(seconds(60), Incident::Heal)
            .at(seconds(70), Incident::Crash(5));
        let mut swarm = after(seconds(14), scenario, 3);
        expect_one_group(&mut swarm, 19, &format!("{topology}, together"));
        swarm.run_until(seconds(50));
        let members: Vec<usize> = (0..HOSTS).map(|host| status(&swarm, host).members).collect();
        assert_eq!(members, [4, 2, 4, 4, 2, 4], "{topology}: both parts go on");
        swarm.run_until(seconds(160));
        expect_one_group(&mut swarm, 170, &format!("{topology}, healed"));
    }
}

#[test]
fn laws_hold_whatever_is_lost_and_whoever_dies() {
    for seed in crate::seeds(8, 50) {
        let mut fate = stream(seed, "fate of a synchronous swarm", &[]);
        let topology = TOPOLOGIES[fate.random_range(0..4)];
        let mut scenario = scenario(topology, [32, 16, 8][fate.random_range(0..3)]);
        scenario.network = NetworkSpec { loss: 0.05, transfer_failure: 0.05, ..NetworkSpec::calm() };
        for _ in 0..6 {
            let (at, host) = (seconds(fate.random_range(10..60)), fate.random_range(1..HOSTS));
            let incident = match fate.random_range(0..5) {
                0 => Incident::Crash(host),
                1 => Incident::Restart { host, same_identity: true, disk: Disk::Lost },
                2 => Incident::Restart { host, same_identity: true, disk: Disk::Kept },
                3 => Incident::Pause(host, Duration::from_millis(fate.random_range(100..9000))),
                _ => Incident::Split(vec![host, (host + 2) % HOSTS]),
            };
            scenario = scenario.at(at, incident);
        }
        scenario = scenario.at(seconds(65), Incident::Heal);
        scenario = scenario.at(seconds(65), Incident::NetworkBecomes(NetworkSpec::calm()));
        let mut swarm = after(seconds(200), scenario, seed);
        expect_one_group(&mut swarm, 215, &format!("seed {seed}, {topology}"));
    }
}

#[test]
fn runs_are_the_same_from_the_same_seed() {
    let run = |seed| {
        let scenario = scenario(Topology::Ring, 8).at(seconds(12), Incident::Crash(2));
        after(seconds(25), scenario, seed).fingerprint()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn sabotage_is_found() {
    let mut swarm = Swarm::sabotaged(scenario(Topology::Ring, 32), 1, Sabotage::TakesSumsUpTwice);
    swarm.run_until(seconds(20));
    let found = swarm.record().found;
    assert!(found.iter().any(|violation| violation.check == "one replica"), "{found:?}");
    // Without deadlines one that stands still holds up all others, until their connections to it end: not before 25 s.
    let stands = |sabotage: Option<Sabotage>| {
        let scenario = scenario(Topology::Ring, 32).at(seconds(20), Incident::Pause(2, seconds(60)));
        let mut swarm = Swarm::sabotaged(scenario, 1, sabotage);
        swarm.run_until(seconds(21));
        let before = status(&swarm, 0).finished;
        swarm.run_until(seconds(25));
        (before, status(&swarm, 0).finished)
    };
    let (before, after) = stands(None);
    assert!(before > 5 && after > before + 2, "{before} and {after}");
    let (before, after) = stands(Some(Sabotage::ForgetsDeadlines));
    assert!(after <= before + 1, "{before} and {after}: nobody goes on");
}
