//! What exchanges teach a node that holds some fragments, or other ones than before.

use super::*;
use crate::fragments::Fragments;
use crate::manifest::RunManifest;
use crate::message::{Accept, Propose};
use crate::numerics::{Buffers, EncodeJob, EncodeRole, MergeRole, encode, merge};
use crate::part::Fragment;

fn part(index: u16) -> Part {
    Part { vector: Vector::Model, fragment: Fragment { index, count: 2 } }
}

fn averaging() -> Averaging {
    of_fragments(2, Holding::ALL)
}

/// Of a model with two blocks in each fragment.
fn of_fragments(fragments: u16, holding: Holding) -> Averaging {
    let gossip = GossipSpec { fragments, ..RunManifest::default().gossip };
    let parameters = 512 * usize::from(fragments);
    let turns = Turns::new(&Fragments::equal(parameters, fragments), holding);
    Averaging::new((gossip, turns), parameters, TrainingReport::default(), None)
}

/// Before it knows how far others usually are.
#[test]
fn who_began_with_the_run_lets_in_less_at_first_than_who_has_copied() {
    let limit = |averaging: &mut Averaging| {
        averaging.training.travel += 2.0;
        averaging.clip_norm(part(0))
    };
    let mut averaging = averaging();
    assert_eq!(limit(&mut averaging), FIRST_CLIP * 2.0);
    averaging.begin_ramp(None);
    assert_eq!(limit(&mut averaging), FIRST_CLIP_OF_COPY * 2.0, "its travel before was another model's");
    let turns = Turns::new(&Fragments::equal(1024, 2), Holding::ALL);
    let resumed = TrainingReport { progress: 1.0, ..TrainingReport::default() };
    let mut resumed = Averaging::new((RunManifest::default().gossip, turns), 1024, resumed, None);
    assert_eq!(limit(&mut resumed), FIRST_CLIP_OF_COPY * 2.0, "it is a copy of its own");
}

/// Halves that were apart for twenty seconds, sixty rounds of a fast swarm, lost their trust in each other.
#[test]
fn ten_rounds_apart_are_an_absence_and_thirty_seconds_always() {
    let mut averaging = averaging();
    assert_eq!(averaging.apart_after(), AWAY_COUNTS_AFTER, "it knows of no rounds");
    averaging.step_time = StepTime::of(0.03);
    let ten_rounds = 10.0 * 0.03 * averaging.round_steps();
    assert!(ten_rounds < 15.0 && (averaging.apart_after().as_secs_f64() - ten_rounds).abs() < 1e-6, "{ten_rounds}");
    averaging.step_time = StepTime::of(60.0);
    assert_eq!(averaging.apart_after(), AWAY_COUNTS_AFTER);
}

#[test]
fn who_is_far_off_in_what_it_has_given_up_is_so_no_more() {
    let mut averaging = averaging();
    let partners = (1..=8).map(|key| PeerId::from_public_key([key; 32]));
    let state = averaging.parts.entry(part(0)).or_default();
    for partner in partners {
        let seen = Seen { partner, progress: 7.0, is_rebuff: true, is_behind: false, is_excused: false };
        state.outlier.record(seen);
    }
    assert_eq!(averaging.progress_missed(|| 9), Some(7.0));
    assert!(!averaging.hold(Holding::of([1])), "nothing is new");
    assert_eq!(averaging.progress_missed(|| 9), None);
    assert!(averaging.hold(Holding::ALL));
    assert_eq!(averaging.progress_missed(|| 9), None, "it is another one that has come back");
}

#[test]
fn what_has_come_is_not_let_in_at_any_distance() {
    let mut averaging = averaging();
    averaging.training.travel = 1e6;
    averaging.hold(Holding::of([0]));
    averaging.parts.entry(part(0)).or_default().clip.begin_anew(2.0);
    averaging.parts.entry(part(0)).or_default().travel_before = 1e6;
    averaging.hold(Holding::ALL);
    let usual = (averaging.gossip.clip_factor * 2.0) as f32;
    assert_eq!((averaging.reach(part(0)), averaging.reach(part(1))), (usual, usual));
    assert_eq!(averaging.width(part(1)), CodeWidth::Sixteen);
}

/// Who has copied a model was told of a distance that is large enough to train by.
#[test]
fn what_is_one_model_at_the_end_is_measured_and_never_told() {
    let mut averaging = averaging();
    averaging.parts.entry(part(0)).or_default();
    averaging.parts.entry(part(1)).or_default();
    averaging.begin_ramp(Some(100.0));
    for (index, norm) in [(0, 1.0), (1, 1.1), (0, 0.9), (1, 1.0), (0, 1.0)] {
        averaging.parts.entry(part(index)).or_default().clip.record(norm, 0.0);
    }
    averaging.on_training_over();
    assert_eq!(averaging.settled_distance(), SETTLED_SHARE * 1.0, "of both together");
}

#[test]
fn links_of_what_is_given_up_end() {
    let mut averaging = averaging();
    let job = EncodeJob { role: EncodeRole::Link { reference: None, received: None }, nonce: 1, width: CodeWidth::One };
    let encoded = encode(&Snapshot::from(vec![1.0; 3]), &job, &Buffers::new()).expect("its own reference");
    let reference = encoded.reference.expect("an exchange on a link has one");
    let partner = PeerId::from_public_key([1; 32]);
    averaging.links.keep((partner, Holding::ALL), part(0), reference, (true, true));
    averaging.hold(Holding::of([1]));
    assert_eq!((averaging.links.count(), averaging.links.reference(partner, part(0))), (0, None));
}

/// The terms of an exchange of a fragment between two who stand at this progress, as its starter and its responder hold them.
fn terms(part: Part, starter: f64, responder: f64) -> (Terms, Terms) {
    let standing = |progress| Standing { weight: 1.0, clip: 1.0, gamma: 0.5, progress };
    let standings = (standing(starter), standing(responder));
    let propose = Propose {
        exchange: 1,
        part,
        nonce: 1,
        bits: 16,
        reference: 0,
        standing: standings.0,
        deadline_ms: 1000,
        step_left_max_ms: u32::MAX,
    };
    let accept = Accept { exchange: 1, starter_share: 0.5, reference: 0, standing: standings.1 };
    let width = CodeWidth::Sixteen;
    (Terms::of_starter(&propose, width, &accept), Terms::of_responder(&propose, width, &accept))
}

/// One makes four times as many steps. In each interval they exchange one fragment.
#[test]
fn progress_of_unlike_machines_stays_together_however_many_fragments_there_are() {
    for count in [1, 4, 16, 64] {
        let (fast, slow) = (of_fragments(count, Holding::ALL), of_fragments(count, Holding::ALL));
        let interval = fast.cadence.interval();
        let (mut ahead, mut behind) = (0.0, 0.0);
        for round in 0..100 * count {
            (ahead, behind) = (ahead + 4.0 * interval, behind + interval);
            let part = fast.turns.part(round % count);
            let (starters, responders) = terms(part, ahead, behind);
            let shifts = [(&fast, starters), (&slow, responders)]
                .map(|(one, terms)| one.progress_shift(&terms, Holding::ALL, 1.0));
            assert_eq!(shifts[0], -shifts[1], "they agree");
            (ahead, behind) = (ahead + shifts[0], behind + shifts[1]);
        }
        let apart = (ahead - behind) / interval;
        assert!(apart <= 3.0 * f64::from(count), "{count} fragments: {apart} intervals apart");
    }
}

/// What a merge of two equal models finds out.
fn merged(terms: &(Terms, Terms)) -> Merged {
    let (snapshot, buffers) = (Snapshot::from(vec![1.0; 256]), Buffers::new());
    let starters = encode(&snapshot, &terms.0.starter_encodes(None, None), &buffers).expect("its own scales");
    let job = terms.1.responder_encodes(starters.scales, None);
    let own = encode(&snapshot, &job, &buffers).expect("the starter's scales");
    let job = terms.1.merge_job(MergeRole::Responder, 256, own, starters.codes, (0.2, None));
    merge(&job, &buffers).expect("the starter's codes")
}

/// It made a member settle again and again for a distance that nobody there could lessen.
#[test]
fn a_distance_in_what_nobody_holds_any_more_counts_no_more() {
    let mut averaging = averaging();
    for (index, distance) in [(0, 7.0), (1, 1.0)] {
        let merge = LastMerges { distance, is_told: true, is_held_up: false, partner_progress: 0.0 };
        averaging.parts.entry(part(index)).or_default().last_merges.push_back(merge);
    }
    for (held, distance) in [(Holding::ALL, 7.0), (Holding::of([1]), 1.0)] {
        averaging.last_merge = Some(3.0);
        let last = averaging.take_last_merges(|fragment| held.holds(fragment)).expect("one was merged");
        assert_eq!((last.distance, last.partner_progress), (distance, 3.0));
    }
}

/// A round of one that has one fragment of eight is eight intervals long: that is its usual pace, and excuses nobody.
#[test]
fn who_has_few_fragments_judges_others_as_long_as_it_keeps_its_pace() {
    for (held, rounds) in [(Holding::ALL, 1.0), (Holding::of([0]), 8.0)] {
        let mut averaging = of_fragments(8, held);
        averaging.set_step_seconds(0.25);
        let round = rounds * averaging.cadence.interval();
        assert_eq!(averaging.round_seconds(), 0.25 * round);
        let terms = terms(averaging.turns.part(0), 0.0, 0.0);
        let (merged, partner) = (merged(&terms), PeerId::from_public_key([1; 32]));
        for (rounds, is_excused) in [(3.0, false), (12.0, true)] {
            averaging.training.steps = averaging.last_merge_steps + (rounds * round) as u64;
            let excused = averaging.meet(&merged, &terms.1, partner, &mut Outbox::default());
            assert_eq!(excused, is_excused, "{rounds} rounds of {round} steps");
        }
    }
}
