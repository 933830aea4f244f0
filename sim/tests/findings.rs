//! What the simulator has found wrong in the core, one test each: mended since, and kept as regressions.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::manifest::GossipKind;
use murmur_protocol::message::{Propose, Standing};
use murmur_protocol::numerics::{Buffers, CodeWidth, EncodeJob, EncodeRole, codes_bytes, scales_bytes};
use murmur_protocol::status::Phase;
use murmur_protocol::*;
use murmur_sim::checks::*;
use murmur_sim::{Disk, Incident, Lie, NetworkSpec, NodePlan, Scenario};

use crate::{after, seconds};

/// A node with one connected peer, which then proposes exchanges with these declared speeds.
fn node_after_proposals(weights: &[f32]) -> Node {
    let manifest = RunManifest::default();
    let [me, hostile] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let layout = Arc::new(ModelLayout::new([("model".to_owned(), vec![8])]));
    let mut node = Node::new(Config::founder(&manifest), me, layout, 1, Time::ZERO);
    let propose = |(number, weight): (usize, &f32)| Propose {
        exchange: number as u64,
        part: murmur_protocol::Part::MODEL,
        nonce: 1,
        bits: 16,
        reference: 0,
        standing: Standing { weight: *weight, clip: 1.0, gamma: 0.5, progress: 0.0 },
        deadline_ms: 1000,
        step_left_max_ms: u32::MAX,
    };
    let proposals = weights.iter().enumerate().map(propose).map(Message::Propose);
    let connected = Event::PeerConnected { peer: hostile, addresses: vec![] };
    let received = proposals.map(|message| Event::MessageReceived { peer: hostile, message });
    for event in std::iter::once(connected).chain(received) {
        while node.poll_effect().is_some() {}
        node.handle(Time::ZERO, event);
    }
    node
}

#[test]
fn a_speed_that_is_no_number_is_a_misbehaviour() {
    assert_eq!(node_after_proposals(&[f32::NAN]).status().misbehaviours.len(), 1);
}

#[test]
fn an_endless_speed_does_not_spoil_later_proposals() {
    let mut node = node_after_proposals(&[f32::INFINITY, 1000.0]);
    let accepted = std::iter::from_fn(|| node.poll_effect()).any(
        |effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Accept(accept), .. }) if accept.starter_share < 0.95),
    );
    assert!(accepted);
}

#[test]
fn a_fast_and_a_slow_node_average() {
    let mut scenario = Scenario::calm(2);
    scenario.nodes[1].tokens_per_second = 50.0 * scenario.nodes[0].tokens_per_second;
    let record = after(seconds(60), scenario, 1).record();
    assert_eq!(nobody_accused(&record), Ok(()));
    assert!(record.exchanges.merges > 50, "{} corrections", record.exchanges.merges);
}

#[test]
fn two_halves_meet_again_after_a_long_split() {
    for seed in 0..3 {
        let mut scenario = Scenario::calm(6);
        scenario.parameters = 10;
        scenario.nodes.iter_mut().for_each(|plan| plan.step_time = seconds(1));
        let scenario = scenario
            .at(seconds(30), Incident::Split(vec![0, 1, 2]))
            .at(seconds(3600), Incident::Heal)
            .then_calm(seconds(4000), seconds(4500));
        let mut swarm = after(seconds(4600), scenario, seed);
        assert_eq!(converged(&swarm.record(), 6, 0.01), Ok(()), "seed {seed}");
    }
}

/// A donor whose memory fails. One flipped bit of an exponent makes a value of 10³⁵, which no grid reaches: checks left its
/// block out of the distance, and nobody looked at the outer momentum, which a joiner copied too.
#[test]
fn a_value_beyond_all_grids_is_not_copied() {
    for (seed, outer_learning_rate) in (0..20).map(|seed| (seed, [0.0, 0.7][seed as usize % 2])) {
        let mut scenario = Scenario::calm(4);
        scenario.nodes[3].lie = Some(Lie::BitFlips);
        scenario
            .nodes
            .extend((0..24).map(|number| NodePlan::joiner(Duration::from_millis(2000 + 500 * number), vec![3])));
        scenario.gossip.outer_learning_rate = outer_learning_rate;
        let mut swarm = after(seconds(30), scenario, seed);
        for life in swarm.record().lives.iter().filter(|life| life.is_honest && life.active) {
            let largest = life.model.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            assert!(largest < 1e3, "seed {seed}: host {} has a value of {largest:e}", life.host);
        }
    }
}

#[test]
fn machines_that_were_set_up_anew_during_a_split_find_the_others() {
    let anew = |host| Incident::Restart { host, same_identity: false, disk: Disk::Lost };
    let scenario = Scenario::calm(4)
        .at(seconds(30), Incident::Split(vec![0, 1]))
        .at(seconds(40), anew(0))
        .at(seconds(40), anew(1))
        .at(seconds(60), Incident::Heal);
    let swarm = after(seconds(300), scenario, 1);
    let phases = [0, 1, 2, 3].map(|host| swarm.status(host).map(|status| status.phase));
    assert_eq!(phases, [Some(Phase::Training); 4]);
}

#[test]
fn the_dead_are_forgotten() {
    let mut scenario = Scenario::calm(6).at(seconds(60), Incident::Crash(3));
    scenario.parameters = 10;
    scenario.nodes.iter_mut().for_each(|plan| plan.step_time = seconds(1));
    let swarm = after(seconds(3 * 3600), scenario, 1);
    let still_known = [0, 1, 2, 4, 5].into_iter().filter(|host| {
        let known = swarm.status(*host).map(|status| status.known).unwrap_or_default();
        known.iter().any(|known| swarm.host_of(known.peer) == Some(3))
    });
    assert_eq!(still_known.collect::<Vec<_>>(), Vec::<usize>::new());
}

#[test]
fn a_leaver_takes_no_reply_with_it() {
    for seed in 0..40 {
        let mut scenario = Scenario::calm(4).at(seconds(30), Incident::Leave(1)).then_calm(seconds(40), seconds(50));
        scenario.gossip.interval_steps = 3;
        // A side's codes take a third of a second.
        scenario = scenario.with_bandwidth(1000.0);
        let mut swarm = after(seconds(80), scenario, seed);
        assert_eq!(nothing_one_sided(&swarm.record(), Time::ZERO, 0.0), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_slow_reply_is_sent_once() {
    let mut scenario = Scenario::calm(2);
    (scenario.parameters, scenario.gossip.kind) = (50_000, GossipKind::Pairs);
    scenario.gossip.interval_steps = 10;
    // The 100 kB of a first exchange take over six seconds each way; a proposal is repeated after four.
    let scenario = scenario.with_bandwidth(16_000.0).at(Duration::from_millis(1500), Incident::StopReporting);
    let mut swarm = after(seconds(60), scenario, 1);
    let once = scales_bytes(50_000) + 2 * codes_bytes(50_000, CodeWidth::Sixteen);
    let record = swarm.record();
    assert_eq!(
        record.exchanges.merges, 2,
        "both sides of the one exchange: of two crossing proposals one goes through"
    );
    assert_eq!(record.payload_bytes(), once as u64);
}

#[test]
fn a_joiner_soon_repeats_a_lost_request() {
    for seed in 0..20 {
        let mut scenario = Scenario::calm(3);
        scenario.nodes.push(NodePlan::joiner(seconds(5), vec![0]));
        scenario.network = NetworkSpec { loss: 0.3, ..NetworkSpec::calm() };
        let mut swarm = after(seconds(35), scenario, seed);
        // Its spot check, on top, may lose as many words again.
        let has_model =
            |(_, host, notice): &(Time, usize, Notice)| *host == 3 && matches!(notice, Notice::StateReceived { .. });
        assert!(swarm.record().notices.iter().any(has_model), "seed {seed}, 30 s after joining");
    }
}

#[test]
fn a_newer_proposal_takes_the_place_of_an_older_one() {
    let mut node = node_after_proposals(&[1000.0; 3]);
    let answer = std::iter::from_fn(|| node.poll_effect())
        .find(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { .. })));
    let is_accept = matches!(answer, Some(Effect::Network(NetworkOrder::Send { message: Message::Accept(_), .. })));
    assert!(is_accept, "a starter has one exchange at a time, so its earlier ones are void: {answer:?}");
}

#[test]
fn a_refusal_after_the_reply_changes_nothing() {
    let [me, partner] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
    let layout = Arc::new(ModelLayout::new([("model".to_owned(), vec![8])]));
    let mut manifest = RunManifest::default();
    manifest.gossip.kind = GossipKind::Pairs;
    let mut node = Node::new(Config::founder(&manifest), me, layout, 1, Time::ZERO);
    let mut tell = |event| {
        while node.poll_effect().is_some() {}
        node.handle(Time::ZERO, event);
        std::iter::from_fn(|| node.poll_effect()).collect::<Vec<Effect>>()
    };
    let report =
        TrainingReport { steps: 100, progress: 100.0, tokens_per_second: 1000.0, travel: 10.0, local_progress: 1.0 };
    tell(Event::PeerConnected { peer: partner, addresses: vec![] });
    let proposed = tell(Event::StepsCompleted(report));
    let propose = proposed.into_iter().find_map(|effect| match effect {
        Effect::Network(NetworkOrder::Send { message: Message::Propose(propose), .. }) => Some(propose),
        _ => None,
    });
    let Propose { exchange, nonce, standing, .. } = propose.expect("one is due");
    let accept = message::Accept { exchange, starter_share: 0.5, reference: 0, standing };
    tell(Event::MessageReceived { peer: partner, message: Message::Accept(accept) });
    let snapshot = Snapshot::from(vec![1.0; 8]);
    tell(Event::SnapshotTaken { request: RequestId(0), snapshot, report });
    let encode = |values: Vec<f32>, role| {
        let job = EncodeJob { role, nonce, width: CodeWidth::Sixteen };
        numerics::encode(&values.into(), &job, &Buffers::new()).expect("honest")
    };
    let ours = encode(vec![1.0; 8], EncodeRole::Starter { scales: None });
    let theirs = encode(vec![1.1; 8], EncodeRole::Responder { scales: ours.scales.clone() });
    tell(Event::Encoded { request: RequestId(1), result: Ok(ours.clone()) });
    let job = numerics::MergeJob {
        role: numerics::MergeRole::Responder,
        parameters: 8,
        own: theirs.clone(),
        received: ours.codes,
        width: CodeWidth::Sixteen,
        nonce,
        gamma: 0.5,
        starter_share: 0.5,
        clip: f64::from(standing.clip),
        step_fraction: 0.2,
        scales: None,
        reference: None,
    };
    let digest = numerics::merge(&job, &Buffers::new()).expect("honest").digest;
    let header = TransferHeader::ReplyCodes { exchange };
    tell(Event::TransferReceived { peer: partner, header, payload: theirs.codes });
    let header = TransferHeader::Merged { exchange, digest };
    let effects = tell(Event::TransferReceived { peer: partner, header, payload: Payload::default() });
    let merge = effects.into_iter().find_map(|effect| match effect {
        Effect::Worker(WorkerOrder::Merge { request, job }) => Some((request, numerics::merge(&job, &Buffers::new()))),
        _ => None,
    });
    let (request, result) = merge.expect("the reply is merged");
    // The answer to a repeated proposal, after the partner has dropped its cached reply.
    let reject = message::Reject { exchange, reason: message::RejectReason::Over, retry_after_ms: 1 };
    tell(Event::MessageReceived { peer: partner, message: Message::Reject(reject) });
    let effects = tell(Event::Merged { request, result });
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::ApplyCorrection { .. }))),
        "{effects:?}"
    );
}

/// A node that stood still while the others moved on finds every code wrapped, and so no distance at all.
#[test]
fn a_node_whose_model_is_beyond_the_grid_comes_back() {
    for seed in 0..5 {
        let mut scenario = Scenario::calm(8);
        scenario.parameters = 40;
        let scenario = scenario
            .at(seconds(20), Incident::Split(vec![3]))
            .at(seconds(25), Incident::Pause(3, seconds(30)))
            .then_calm(seconds(60), seconds(150));
        let mut swarm = after(seconds(175), scenario, seed);
        assert_eq!(converged(&swarm.record(), 8, 0.01), Ok(()), "seed {seed}");
    }
}

/// One of two members stood still, or began again from its last checkpoint: no third one can say which of the two is odd.
#[test]
fn one_of_two_comes_back_from_a_long_absence() {
    let absences = [
        vec![(seconds(20), Incident::Pause(1, seconds(200)))],
        vec![
            (seconds(20), Incident::Crash(1)),
            (seconds(220), Incident::Restart { host: 1, same_identity: true, disk: Disk::Kept }),
        ],
    ];
    for (absence, seed) in absences.into_iter().flat_map(|absence| [(absence.clone(), 1), (absence, 2)]) {
        let mut scenario = Scenario::calm(2);
        scenario.incidents = absence;
        let scenario = scenario.then_calm(seconds(300), seconds(360));
        let mut swarm = after(seconds(400), scenario, seed);
        let progress = [0, 1].map(|host| swarm.status(host).expect("it runs").training.progress);
        println!("seed {seed}: progress {progress:?}");
        assert_eq!(converged(&swarm.record(), 2, 0.01), Ok(()), "seed {seed}");
        assert!((progress[0] - progress[1]).abs() < 100.0, "seed {seed}: {progress:?}");
    }
}

/// How old a copied model is, it tells itself: the spot check must not believe that it is a million rounds.
#[test]
fn a_forged_progress_is_not_copied() {
    for seed in 0..20 {
        let mut scenario = Scenario::calm(6);
        scenario.parameters = 40;
        scenario.nodes[2].lie = Some(Lie::ForgedProgress);
        scenario.nodes.push(NodePlan::joiner(seconds(30), vec![2]));
        let mut swarm = after(seconds(90), scenario, seed);
        assert_eq!(clear_of_liars(&swarm.record()), Ok(()), "seed {seed}");
    }
}
