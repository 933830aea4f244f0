//! Every check can fail: for each law, a core that breaks it, and the checks that find it.
//!
//! A broken core runs in a swarm that a sound one passes without a finding; then exactly the checks named here must find
//! the mistake: first the one whose law it breaks, then those that see what follows from it. A correction that is added
//! twice, say, is one too many, moves a model by more than was ordered, and keeps the models apart.

use std::time::Duration;

use murmur_protocol::manifest::{GossipKind, GossipSpec};
use murmur_protocol::{Holding, Time};
use murmur_sim::checks::*;
use murmur_sim::record::Record;
use murmur_sim::{Disk, Incident, Lie, NetworkSpec, Sabotage, Scenario, Swarm};

use crate::seconds;

const LEARNING_SECONDS: u64 = 60;
const AVERAGING_SECONDS: u64 = 150;
const END_SECONDS: u64 = 175;

fn pairs() -> GossipSpec {
    GossipSpec { kind: GossipKind::Pairs, ..GossipSpec::default() }
}

/// Six nodes on a good network that average as pairs, then calm.
fn calm() -> Scenario {
    let mut scenario = Scenario { gossip: pairs(), ..Scenario::calm(6) };
    scenario.parameters = 100;
    scenario.then_calm(seconds(LEARNING_SECONDS), seconds(AVERAGING_SECONDS))
}

/// The same on a network that loses, with crashes.
fn lossy() -> Scenario {
    let mut scenario = Scenario { gossip: pairs(), ..Scenario::calm(6) };
    scenario.parameters = 100;
    scenario.network = NetworkSpec { loss: 0.1, transfer_failure: 0.1, ..NetworkSpec::calm() };
    for (time, host) in [(20, 1), (30, 2), (40, 3)] {
        let anew = Incident::Restart { host, same_identity: false, disk: Disk::Lost };
        scenario = scenario.at(seconds(time), anew);
    }
    scenario.then_calm(seconds(LEARNING_SECONDS), seconds(AVERAGING_SECONDS))
}

/// Six nodes on a good network with links of one bit, then calm.
fn linked() -> Scenario {
    Scenario { gossip: GossipSpec { kind: GossipKind::Links, ..GossipSpec::default() }, ..calm() }
}

/// The same in four fragments, of which four of the nodes hold some alone.
fn partial() -> Scenario {
    let mut scenario = calm();
    (scenario.parameters, scenario.gossip.fragments) = (1000, 4);
    for (host, held) in [(1, 0..2), (2, 2..4), (4, 1..2), (5, 0..3)] {
        scenario.nodes[host].holding = Holding::of(held);
    }
    scenario
}

/// The same, and three of them hold others after a while.
fn changing() -> Scenario {
    let mut scenario = partial();
    for (time, host, held) in [(15, 1, 2..4), (20, 2, 0..2), (25, 5, 2..3), (40, 1, 0..3)] {
        scenario = scenario.at(seconds(time), Incident::Holds(host, Holding::of(held)));
    }
    scenario
}

/// Six honest nodes and two liars.
fn with_liars() -> Scenario {
    let mut scenario = Scenario { gossip: pairs(), ..Scenario::calm(8) };
    scenario.parameters = 100;
    (scenario.nodes[3].lie, scenario.nodes[6].lie) = (Some(Lie::WrongNorm), Some(Lie::SignFlip));
    scenario
}

/// The same on links.
fn linked_with_liars() -> Scenario {
    Scenario { gossip: GossipSpec::default(), ..with_liars() }
}

/// Names of all checks that find something, in the order of asking.
fn findings(mut swarm: Swarm, honest: Option<usize>, parameters: usize) -> Vec<String> {
    swarm.run_until(seconds(END_SECONDS));
    let record = swarm.record();
    let mut found = safety(&record, parameters);
    match honest {
        Some(present) => found.extend(liveness(&record, present, 0.01)),
        None => found.extend(clear_of_liars(&record).err()),
    }
    found.iter().map(|violation| violation.check.to_owned()).collect()
}

fn assert_found(scenario: fn() -> Scenario, sabotage: Sabotage, expected: &[&str]) {
    // Among liars, and with so many nodes in so short a time, nobody can ask for convergence.
    let is_small_and_honest = scenario().honest().count() == 6;
    let present = (is_small_and_honest && scenario().nodes.len() == 6).then_some(6);
    let parameters = scenario().parameters;
    let sound = findings(Swarm::new(scenario(), 1), present, parameters);
    assert_eq!(sound, Vec::<String>::new(), "the sound core");
    let mut found = findings(Swarm::sabotaged(scenario(), 1, sabotage), present, parameters);
    let mut expected: Vec<String> = expected.iter().map(|check| (*check).to_owned()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{sabotage:?}");
}

#[test]
fn a_node_that_exchanges_what_it_lacks_is_found() {
    assert_found(partial, Sabotage::ExchangesAll, &["only held"]);
    // Laws hold of each fragment as of a whole model.
    assert_found(partial, Sabotage::AppliesTwice, &["exactly once", "mean preserved", "converged"]);
    assert_found(partial, Sabotage::LopsidedCorrections, &["antisymmetric", "mean preserved"]);
}

#[test]
fn a_node_that_does_not_hear_what_it_holds_is_found() {
    assert_found(changing, Sabotage::KeepsHolding, &["only held", "converged"]);
}

#[test]
fn a_correction_applied_twice_is_found() {
    assert_found(calm, Sabotage::AppliesTwice, &["exactly once", "mean preserved", "converged", "clear of liars"]);
}

#[test]
fn a_model_overwritten_instead_of_corrected_is_found() {
    assert_found(calm, Sabotage::Overwrites, &["mean preserved"]);
}

#[test]
fn a_wrong_sign_after_a_wrap_is_found() {
    // Soon the models are so far apart that nothing holds any more; the first seconds show what is to blame.
    let found = |mut swarm: Swarm| {
        swarm.run_until(seconds(3));
        let found = safety(&swarm.record(), 100);
        found.iter().map(|violation| violation.check).collect::<Vec<_>>()
    };
    // On a link what was turned around has other steps, with which it is longer as well.
    let on_link = ["toward the partner", "step bounded"];
    for (scenario, laws) in [(calm(), &["pair distance"][..]), (linked(), &on_link[..])] {
        assert_eq!(found(Swarm::new(scenario.clone(), 1)), [""; 0]);
        assert_eq!(found(Swarm::sabotaged(scenario, 1, Sabotage::WrongSignAfterWrap)), laws);
    }
}

#[test]
fn corrections_that_are_never_clipped_are_found() {
    assert_found(with_liars, Sabotage::NeverClips, &["step bounded", "clear of liars"]);
    assert_found(linked_with_liars, Sabotage::NeverClips, &["step bounded", "clear of liars"]);
}

#[test]
fn a_forgotten_deadline_is_found() {
    assert_found(lossy, Sabotage::ForgetsDeadlines, &["everybody exchanges", "converged"]);
}

#[test]
fn a_second_answer_to_one_request_is_found() {
    assert_found(calm, Sabotage::AnswersTwice, &["answered once", "everybody exchanges", "converged"]);
    assert_found(calm, Sabotage::ChangesGamma, &["answered once", "everybody exchanges", "converged"]);
}

#[test]
fn a_trainer_that_waits_for_the_network_is_found() {
    assert_found(calm, Sabotage::TrainerWaits, &["training never waits"]);
    // By its orders alone.
    assert_found(calm, Sabotage::EndsToExchange, &["training never waits"]);
}

#[test]
fn a_view_without_bound_is_found() {
    assert_found(crowd, Sabotage::UnboundedView, &["bounded views"]);
}

/// More strangers come and go than a view holds.
fn crowd() -> Scenario {
    let mut scenario = Scenario::calm(7);
    scenario.parameters = 4;
    for stranger in 0..350 {
        let time = seconds(5) + Duration::from_millis(400) * stranger;
        let host = 1 + stranger as usize % 6;
        scenario = scenario.at(time, Incident::Restart { host, same_identity: false, disk: Disk::Lost });
    }
    scenario
}

#[test]
fn sides_that_round_differently_are_found() {
    assert_found(calm, Sabotage::LopsidedCorrections, &["antisymmetric", "mean preserved"]);
}

#[test]
fn corrections_that_are_too_long_are_found() {
    // Only a crash in the middle of an exchange shows it, which not every seed has.
    let present = Some(6);
    let mut found = Vec::new();
    for seed in 0..10 {
        assert_eq!(findings(Swarm::new(lossy(), seed), present, 100), [""; 0], "the sound core, seed {seed}");
        found.extend(findings(Swarm::sabotaged(lossy(), seed, Sabotage::Overreaches), present, 100));
    }
    found.sort();
    found.dedup();
    assert_eq!(found, ["crash shift"]);
}

#[test]
fn ends_of_a_link_with_unlike_references_are_found() {
    assert_found(linked, Sabotage::KeepsOldReferences, &["links last"]);
}

#[test]
fn what_is_wrong_with_an_exchange_is_found_on_a_link() {
    assert_found(linked, Sabotage::AppliesTwice, &["exactly once", "mean preserved", "converged", "clear of liars"]);
    assert_found(linked, Sabotage::LopsidedCorrections, &["antisymmetric", "mean preserved"]);
    assert_found(linked, Sabotage::AnswersTwice, &["answered once", "everybody exchanges", "converged"]);
}

#[test]
fn corrections_that_are_thrown_away_are_found() {
    assert_found(calm, Sabotage::NeverCorrects, &["converged"]);
}

#[test]
fn a_partner_that_is_taken_for_a_liar_is_found() {
    assert_found(calm, Sabotage::Accuses, &["nobody accused"]);
}

/// A swarm whose fourth node is gone after 20 s, at the end of a run of so many.
fn without_one(gone: Incident, sabotage: Option<Sabotage>, end: u64) -> Record {
    let scenario = calm().at(seconds(20), gone);
    let mut swarm = Swarm::sabotaged(scenario, 1, sabotage);
    swarm.run_until(seconds(end));
    swarm.record()
}

#[test]
fn a_node_that_pursues_who_has_left_is_found() {
    let found = |sabotage| {
        let found = safety(&without_one(Incident::Leave(3), sabotage, 60), 100);
        found.iter().map(|violation| violation.check).collect::<Vec<_>>()
    };
    assert_eq!(found(None), [""; 0]);
    assert_eq!(found(Some(Sabotage::PursuesLeavers)), ["left alone"]);
}

/// Six honest nodes that average as pairs, and one that does this.
fn with_one(lie: Lie) -> Scenario {
    let mut scenario = Scenario { gossip: pairs(), ..Scenario::calm(7) };
    scenario.parameters = 100;
    scenario.nodes[4].lie = Some(lie);
    scenario
}

#[test]
fn a_node_that_pursues_whom_it_has_banned_is_found() {
    assert_found(|| with_one(Lie::Garbage), Sabotage::PursuesBanned, &["left alone"]);
}

#[test]
fn payloads_that_were_corrupted_on_their_way_and_are_merged_all_the_same_are_found() {
    assert_found(|| with_one(Lie::BitFlips), Sabotage::IgnoresDigests, &["antisymmetric", "mean preserved"]);
}

#[test]
fn a_run_that_goes_on_beyond_its_end_is_found() {
    let found = |sabotage: Option<Sabotage>| {
        let scenario = calm().at(seconds(20), Incident::Finish { at: 2, steps: 100.0 });
        let mut swarm = Swarm::sabotaged(scenario, 1, sabotage);
        swarm.run_until(seconds(60));
        completed(&swarm.record())
    };
    assert_eq!(found(None), Ok(()));
    assert!(found(Some(Sabotage::IgnoresEnd)).is_err());
}

#[test]
fn a_view_that_forgets_nobody_is_found() {
    let found = |sabotage| forgotten(&without_one(Incident::Crash(3), sabotage, 1200));
    assert_eq!(found(None), Ok(()));
    assert!(found(Some(Sabotage::UnboundedView)).is_err());
}

#[test]
fn a_node_that_never_sleeps_is_found() {
    assert_found(calm, Sabotage::NeverSleeps, &["bounded"]);
}

#[test]
fn nodes_that_never_dial_are_found() {
    assert_found(calm, Sabotage::NeverDials, &["nobody isolated", "everybody exchanges", "converged"]);
}

#[test]
fn late_corrections_at_full_gain_are_found() {
    assert_found(calm, Sabotage::CorrectsLate, &["loop gain", "clear of liars"]);
}

#[test]
fn replies_that_get_lost_for_good_are_one_sided() {
    let mut swarm = Swarm::sabotaged(calm(), 1, Sabotage::LosesReplies);
    swarm.run_until(seconds(END_SECONDS));
    assert!(nothing_one_sided(&swarm.record(), Time::ZERO, 0.0).is_err());
}

#[test]
fn a_run_that_the_seed_does_not_decide_is_found() {
    let fingerprint = |swarm: &mut Swarm| {
        swarm.run_until(seconds(20));
        swarm.fingerprint()
    };
    let sound = || fingerprint(&mut Swarm::new(calm(), 1));
    let broken = || fingerprint(&mut Swarm::sabotaged(calm(), 1, Sabotage::AmbientRandomness));
    assert_eq!(repeatable(sound(), sound()), Ok(()));
    assert!(repeatable(broken(), broken()).is_err());
}

/// Plain local training is that of a node whose exchanges never become due.
#[test]
fn a_node_alone_that_moves_its_model_is_found() {
    let alone = |gossips: bool| {
        let mut scenario = Scenario::calm(1);
        if !gossips {
            (scenario.gossip.interval_steps, scenario.gossip.interval_steps_max) = (10_000, 10_000);
            scenario.gossip.interval_steps_min = 10_000;
        }
        scenario
    };
    let record = |mut swarm: Swarm| {
        swarm.run_until(seconds(60));
        swarm.record()
    };
    let trained_locally = record(Swarm::new(alone(false), 1)).lives[0].model.clone();
    assert_eq!(local_alone(&record(Swarm::new(alone(true), 1)), &trained_locally), Ok(()));
    let broken = Swarm::sabotaged(alone(true), 1, Sabotage::DecaysByItself);
    assert!(local_alone(&record(broken), &trained_locally).is_err());
}
