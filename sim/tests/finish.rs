//! The founder finishes a run: whatever the network and the hosts do meanwhile, all nodes that take part end with one
//! model.

use std::time::Duration;

use murmur_protocol::manifest::GossipKind;
use murmur_protocol::{Event, Phase};
use murmur_sim::{Disk, Incident, NetworkSpec, NodePlan, Scenario, Swarm, checks};

use crate::{after, seconds};

/// Twelve hosts whose steps take from 100 to 210 ms; the last appears when the run is already being finished.
fn scenario() -> Scenario {
    let mut scenario = Scenario::calm(12);
    for (index, plan) in scenario.nodes.iter_mut().enumerate() {
        plan.step_time = Duration::from_millis(100 + 10 * index as u64);
    }
    scenario.nodes[11] = NodePlan::joiner(seconds(50), vec![5]);
    scenario
}

/// Steps from the order to the end.
const STEPS: f64 = 300.0;

/// Runs until `end`: every node has completed the run at the same place, and their models are one. Members settle again where
/// they are further apart than a twentieth of the usual distance: of sixty seeds of the calm scenario the median ends at a
/// hundredth, the worst at three hundredths.
fn ends_with_one_model(scenario: Scenario, seed: u64, end: u64) {
    let (parameters, count) = (scenario.parameters, scenario.nodes.len());
    let mut swarm = after(seconds(40), scenario, seed);
    let apart = swarm.record().disagreement();
    swarm.run_until(seconds(end));
    let running: Vec<usize> = (0..count).filter(|host| swarm.is_running(*host)).collect();
    for host in &running {
        let status = swarm.status(*host).expect("it runs");
        assert_eq!(
            status.phase,
            Phase::Completed,
            "seed {seed}: host {host} at {:?} of {:?}",
            status.training,
            status.end
        );
    }
    let record = swarm.record();
    assert_eq!(checks::safety(&record, parameters), [], "seed {seed}");
    assert_eq!(checks::converged(&record, running.len(), 0.05 * apart), Ok(()), "seed {seed}, {apart} apart before");
}

#[test]
fn a_run_is_finished_by_one_order() {
    // Of many fragments, those that are exchanged last are as well brought together.
    for (seed, fragments) in [1, 2, 8, 32].into_iter().enumerate() {
        let mut scenario = scenario().at(seconds(40), Incident::Finish { at: 3, steps: STEPS });
        (scenario.parameters, scenario.gossip.fragments) = (300 * usize::from(fragments), fragments);
        ends_with_one_model(scenario, seed as u64, 240);
    }
}

/// Models that have become one have so fine a grid that blocks wrap, which is no reason to settle again, for ever.
#[test]
fn members_of_a_finished_run_come_to_rest() {
    for seed in 0..4 {
        let mut scenario = scenario().at(seconds(40), Incident::Finish { at: 3, steps: STEPS });
        scenario.parameters = 3000;
        let mut swarm = Swarm::new(scenario, seed);
        let mut bytes = [150, 300].into_iter().map(|end| {
            swarm.run_until(seconds(end));
            swarm.record().payload_bytes()
        });
        let (settled, later) = (bytes.next().expect("two"), bytes.next().expect("two"));
        assert!(settled > 0 && later == settled, "seed {seed}: {later} bytes, {settled} when all had settled");
    }
}

/// The fast ones have come to the first end when the order for a later one comes.
#[test]
fn who_has_ended_trains_on_where_the_founder_sets_a_later_end() {
    let mut scenario = scenario();
    scenario.nodes.iter_mut().take(3).for_each(|plan| plan.step_time = Duration::from_millis(40));
    let order = |steps| Incident::Finish { at: 11, steps };
    scenario.nodes[11] = NodePlan { step_time: Duration::from_millis(400), ..scenario.nodes[10].clone() };
    let scenario = scenario.at(seconds(40), order(40.0)).at(seconds(43), order(600.0));
    let mut swarm = after(seconds(43), scenario, 3);
    let ended = |swarm: &Swarm, host| swarm.status(host).expect("it runs").phase != Phase::Training;
    let before: Vec<usize> = (0..12).filter(|host| ended(&swarm, *host)).collect();
    assert!(!before.is_empty() && before.len() < 12, "{before:?} have ended");
    swarm.run_until(seconds(46));
    assert!(before.iter().all(|host| !ended(&swarm, *host)), "they train again");
    swarm.run_until(seconds(400));
    assert!((0..12).all(|host| swarm.status(host).expect("it runs").phase == Phase::Completed));
}

/// What a member has learned reaches the others once its quiet hours are over.
#[test]
fn who_rests_while_the_run_ends_is_averaged_afterwards() {
    for kind in [GossipKind::Pairs, GossipKind::Links] {
        let tell = |event| Incident::Tell(2, Box::new(event));
        let mut scenario = Scenario::calm(4)
            .at(seconds(40), Incident::Finish { at: 0, steps: 50.0 })
            .at(seconds(41), tell(Event::RestBegan))
            .at(seconds(80), tell(Event::RestEnded));
        scenario.gossip.kind = kind;
        ends_with_one_model(scenario, 1, 160);
    }
}

#[test]
fn an_order_that_is_lost_on_half_of_the_ways_reaches_everybody() {
    for seed in 0..4 {
        let lossy = NetworkSpec { loss: 0.4, ..NetworkSpec::calm() };
        let scenario = scenario()
            .at(seconds(30), Incident::NetworkBecomes(lossy))
            .at(seconds(40), Incident::Finish { at: 3, steps: STEPS })
            .at(seconds(200), Incident::NetworkBecomes(NetworkSpec::calm()));
        ends_with_one_model(scenario, seed, 420);
    }
}

/// Members of one half that settle among themselves in vain, and meet the other half then, settle again: with seeds 55 and 69 a
/// model was left up to 28 times as far from the mean as is allowed. So it was, twelve times, with seed 6 where nobody settled once
/// more after a pause, and twice with seed 72 where a distance that is usual in training made a member a liar. While rounding
/// errors were clipped, 37 and 65 ended further apart than allowed.
#[test]
fn halves_that_were_apart_when_one_of_them_ended_become_one_model() {
    for seed in [0, 1, 2, 3, 6, 18, 27, 35, 37, 42, 44, 48, 49, 55, 57, 65, 69, 72] {
        let scenario = scenario()
            .at(seconds(35), Incident::Split(vec![0, 1, 2, 3, 4, 5]))
            .at(seconds(40), Incident::Finish { at: 3, steps: STEPS })
            .at(seconds(140), Incident::Heal);
        ends_with_one_model(scenario, seed, 420);
    }
}

#[test]
fn nodes_that_crash_restart_and_leave_while_a_run_ends_change_nothing() {
    for seed in 0..4 {
        let again = |host, disk| Incident::Restart { host, same_identity: true, disk };
        let scenario = scenario()
            .at(seconds(40), Incident::Finish { at: 3, steps: STEPS })
            .at(seconds(45), Incident::Crash(3))
            .at(seconds(48), again(4, Disk::Kept))
            .at(seconds(55), Incident::Leave(7))
            .at(seconds(60), again(8, Disk::Lost))
            .at(seconds(75), again(9, Disk::Kept))
            .at(seconds(120), again(3, Disk::Kept));
        ends_with_one_model(scenario, seed, 420);
    }
}
