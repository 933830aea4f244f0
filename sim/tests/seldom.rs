//! What drivers tell a core now and then: refusals, doubles, silence, sleep. That the simulator does it as daemons do, and what the
//! core makes of it.

use std::time::Duration;

use murmur_protocol::{Event, ExchangeFailure, Notice, Phase};
use murmur_sim::checks::safety;
use murmur_sim::{Disk, DriverSpec, HostIndex, Incident, LinkSpec, NodePlan, Record, Scenario, Swarm};

use crate::{after, seconds};

/// What a host has to say from `since` on.
fn notices(record: &Record, host: HostIndex, since: Duration) -> impl Iterator<Item = &Notice> {
    let later = record.notices.iter().filter(move |(at, by, _)| *by == host && at.since_start() >= since);
    later.map(|(.., notice)| notice)
}

fn connected(swarm: &Swarm, host: HostIndex) -> Vec<HostIndex> {
    let status = swarm.status(host).expect("it runs");
    status.connected.into_iter().filter_map(|peer| swarm.host_of(peer)).collect()
}

fn assert_safe(swarm: &mut Swarm, parameters: usize) {
    let found = safety(&swarm.record(), parameters);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn refused_orders_of_trainers_and_networks_cost_single_exchanges() {
    for (drivers, reason) in [
        (DriverSpec { refusal: 0.1, full_queue: 0.0 }, ExchangeFailure::Overloaded),
        (DriverSpec { refusal: 0.0, full_queue: 0.3 }, ExchangeFailure::DeadlinePassed),
    ] {
        let scenario = Scenario { drivers, ..Scenario::calm(6) };
        let parameters = scenario.parameters;
        let mut swarm = after(seconds(120), scenario.then_calm(seconds(120), seconds(240)), 1);
        let failed = |swarm: &Swarm| -> u64 {
            let statuses = (0..6).map(|host| swarm.status(host).expect("it runs").exchanges);
            statuses.map(|exchanges| exchanges.failed.get(&reason).copied().unwrap_or_default()).sum()
        };
        let before = failed(&swarm);
        assert!(before > 0, "{reason:?}");
        let completed = swarm.sample().exchanges_completed;
        assert!(completed > 5 * before, "{reason:?}: {before} beside {completed}");
        swarm.run_until(seconds(240));
        assert_safe(&mut swarm, parameters);
        assert!(swarm.sample().worst_disagreement < 0.01, "{}", swarm.sample().worst_disagreement);
    }
}

#[test]
fn a_trainer_that_went_back_to_an_older_model_copies_a_newer_one() {
    let since = seconds(60);
    let scenario = Scenario::calm(6).at(since, Incident::Outdated(3));
    let parameters = scenario.parameters;
    let mut swarm = Swarm::new(scenario, 1);
    // Its partners would tell it later that its model is far off.
    swarm.run_until(since + seconds(2));
    let record = swarm.record();
    let is_copy = |notice: &Notice| matches!(notice, Notice::StateReceived { .. });
    assert!(notices(&record, 3, since).any(is_copy), "it has copied a model");
    assert!(!notices(&record, 2, since).any(is_copy), "nobody else has");
    assert_safe(&mut swarm, parameters);
}

/// A daemon hears nothing of a cut; it pings.
#[test]
fn a_cut_is_noticed_when_pings_have_stayed_without_answer_and_a_short_one_is_not() {
    let cut_at = seconds(60);
    let halves = |swarm: &Swarm| connected(swarm, 0).into_iter().any(|host| host >= 3);
    for (length, is_noticed) in [(seconds(4), false), (seconds(100), true)] {
        let scenario = Scenario::calm(6).at(cut_at, Incident::Split(vec![3, 4, 5])).at(cut_at + length, Incident::Heal);
        let mut swarm = after(cut_at + seconds(4), scenario, 1);
        assert!(halves(&swarm), "nobody can know yet");
        swarm.run_until(cut_at + seconds(36));
        assert_eq!(halves(&swarm), !is_noticed, "{length:?}");
        let record = swarm.record();
        let lost = notices(&record, 0, cut_at).filter(|notice| matches!(notice, Notice::PeerLeft { .. })).count();
        assert_eq!(lost > 0, is_noticed, "{length:?}");
    }
}

/// A network that falls apart into three parts does so way by way, and no connection is given up earlier for that.
#[test]
fn a_cut_of_many_ways_is_noticed_no_earlier_than_one_of_two() {
    let cut_at = seconds(60);
    let far = |one: HostIndex, other: HostIndex| one % 3 != other % 3;
    let mut scenario = Scenario::calm(9);
    for (one, other) in
        (0..9).flat_map(|one| (0..9).map(move |other| (one, other))).filter(|(one, other)| far(*one, *other))
    {
        scenario = scenario.at(cut_at, Incident::LinkBecomes(one, other, LinkSpec::dead()));
    }
    let mut swarm = Swarm::new(scenario, 1);
    let between = |swarm: &Swarm| -> usize {
        (0..9).map(|host| connected(swarm, host).into_iter().filter(|other| far(host, *other)).count()).sum()
    };
    swarm.run_until(cut_at);
    let before = between(&swarm);
    swarm.run_until(cut_at + seconds(10));
    assert!(before > 20 && between(&swarm) > before / 2, "{before} before, {} after 10 s", between(&swarm));
    swarm.run_until(cut_at + seconds(36));
    assert_eq!(between(&swarm), 0);
}

/// What a process does it does when it goes on: leave, take a hint, hear of another path.
#[test]
fn a_sleeper_does_nothing_before_it_wakes() {
    let (sleeps_at, slept) = (seconds(60), seconds(20));
    let mut scenario = Scenario::calm(4).at(sleeps_at, Incident::Pause(3, slept));
    scenario = scenario.at(sleeps_at + seconds(1), Incident::Leave(3));
    let mut swarm = Swarm::new(scenario, 1);
    swarm.run_until(sleeps_at + slept - seconds(1));
    let phase = |swarm: &Swarm| swarm.status(3).map(|status| status.phase);
    assert_eq!(phase(&swarm), Some(Phase::Training));
    swarm.run_until(sleeps_at + slept + seconds(30));
    assert!(phase(&swarm).is_none_or(|phase| phase == Phase::Left), "{:?}", phase(&swarm));
}

/// What the process was to do that was killed in its sleep the next one does not do.
#[test]
fn a_sleeper_that_is_killed_takes_with_it_what_it_was_to_do() {
    let sleeps_at = seconds(60);
    let restart = Incident::Restart { host: 3, same_identity: true, disk: Disk::Lost };
    let scenario = Scenario::calm(4).at(sleeps_at, Incident::Pause(3, seconds(20)));
    let rests = Incident::Tell(3, Box::new(Event::RestBegan));
    let scenario = scenario.at(sleeps_at + seconds(1), rests).at(sleeps_at + seconds(2), restart);
    let mut swarm = Swarm::new(scenario, 1);
    swarm.run_until(sleeps_at + seconds(40));
    assert!(!swarm.status(3).expect("it runs").is_resting);
    assert!(!connected(&swarm, 3).is_empty());
}

#[test]
fn a_sleeper_is_given_up_by_all_and_finds_them_again_when_it_wakes() {
    let (sleeps_at, slept) = (seconds(60), seconds(120));
    let scenario = Scenario::calm(6).at(sleeps_at, Incident::Pause(3, slept));
    let parameters = scenario.parameters;
    let mut swarm = Swarm::new(scenario, 1);
    let with_sleeper = |swarm: &Swarm| (0..6).filter(|host| connected(swarm, *host).contains(&3)).count();
    swarm.run_until(sleeps_at + seconds(4));
    assert!(with_sleeper(&swarm) > 1, "nobody can know yet");
    swarm.run_until(sleeps_at + seconds(40));
    assert_eq!(with_sleeper(&swarm), 0, "its peers have given it up");
    assert!(!connected(&swarm, 3).is_empty(), "it knows of nothing");
    swarm.run_until(sleeps_at + slept + seconds(60));
    let record = swarm.record();
    let lost =
        notices(&record, 3, sleeps_at + slept).filter(|notice| matches!(notice, Notice::PeerLeft { .. })).count();
    assert!(lost > 0, "all connections were dead when it woke");
    assert!(with_sleeper(&swarm) > 1 && !connected(&swarm, 3).is_empty(), "they have met again");
    assert_safe(&mut swarm, parameters);
}

/// As the contract of the daemon's network has it: `PeerConnected` first, `PeerDisconnected` last, nothing of what is between.
#[test]
fn a_node_hears_once_that_a_peer_is_connected_however_many_connections_there_are() {
    let mut scenario = Scenario::calm(2);
    // Both dial an address behind which they know nobody, at the same moment.
    scenario.nodes[0].bootstrap = vec![1];
    let mut twice = 0;
    for seed in 0..20 {
        let mut swarm = Swarm::new(scenario.clone(), seed);
        swarm.keep_lines(10_000);
        swarm.run_until(seconds(20));
        for host in [0, 1] {
            let told = |what: &str| {
                let begins = format!(" {host} < {what}");
                swarm.last_lines().filter(|line| line.contains(&begins)).count()
            };
            assert_eq!((told("PeerConnected"), told("PeerDisconnected")), (1, 0), "seed {seed}, host {host}");
            twice += told("DialFailed");
        }
    }
    assert!(twice > 0, "somebody dialed who was connected already");
}

/// A data directory was copied, and the copy takes part while its original is cut off. It numbers its exchanges from its later
/// beginning on, so that what the elder proposes then is over for those who met the copy: it leaves numbers out until they are new
/// again.
#[test]
fn the_younger_of_two_nodes_with_one_identity_ends_and_the_elder_goes_on() {
    let (cut_at, begins_at, healed_at) = (seconds(60), seconds(110), seconds(170));
    for seed in 0..5 {
        let mut scenario = Scenario::calm(6).at(cut_at, Incident::Split(vec![3])).at(healed_at, Incident::Heal);
        let parameters = scenario.parameters;
        let double = scenario.nodes.len();
        let plan = NodePlan { double_of: Some(3), ..NodePlan::joiner(begins_at, vec![0]) };
        scenario.nodes.push(plan);
        let mut swarm = after(healed_at, scenario, seed);
        assert!(swarm.is_running(double) && !swarm.kinds_of_events().contains("IdentityDoubled"), "seed {seed}");
        let begun = |swarm: &Swarm, host| swarm.status(host).map(|status| status.exchanges.completed_as_starter);
        let before = begun(&swarm, 3).expect("it runs");
        assert!(begun(&swarm, double) > Some(10), "seed {seed}");
        swarm.run_until(healed_at + seconds(60));
        assert!(swarm.kinds_of_events().contains("IdentityDoubled"), "seed {seed}");
        assert!(!swarm.is_running(double) && swarm.is_running(3), "seed {seed}");
        let after = begun(&swarm, 3).expect("it runs");
        assert!(after >= before + 20, "seed {seed}: from {before} to {after} exchanges of its own in a minute");
        assert_safe(&mut swarm, parameters);
    }
}
