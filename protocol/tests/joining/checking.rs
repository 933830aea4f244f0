//! What a joiner makes of a copy: others are asked to check it, and it counts for little at first.

use murmur_protocol::Unchecked;
use murmur_protocol::bounds::RAMP_EXCHANGES;
use murmur_protocol::message::{Reject, RejectReason};

use super::*;

use crate::driven::{each, first, said};

impl Driven {
    /// Sends all that was asked for, and has the model loaded.
    fn copy(&mut self, requests: &[(PeerId, u64, Chunks)]) -> Vec<Effect> {
        let effects = self.serve(requests);
        let request = first!(effects.iter(), Effect::Trainer(TrainerOrder::LoadState { request, .. }) => *request);
        self.tell(Event::StateLoaded {
            request: request.expect("the model is whole"),
            accepted: true,
            report: TrainingReport::default(),
        })
    }

    /// Waits for a minute or two, a second at a time, and has every check answered like this.
    fn answer_checks(&mut self, mut effects: Vec<Effect>, answer: Option<RejectReason>) -> Vec<Effect> {
        let mut all = Vec::new();
        for _ in 0..150 {
            let mut checks = proposals(&effects);
            all.append(&mut effects);
            while let (Some((peer, exchange)), Some(reason)) = (checks.pop(), answer) {
                let reject = Message::Reject(Reject { exchange, reason, retry_after_ms: 300 });
                let then = self.tell(Event::MessageReceived { peer, message: reject });
                checks.extend(proposals(&then));
                all.extend(then);
            }
            if unchecked(&all).is_some() {
                return all;
            }
            effects = self.wait(Duration::from_secs(1));
        }
        all
    }
}

fn proposals(effects: &[Effect]) -> Vec<(PeerId, u64)> {
    each!(said(effects.iter()), (peer, Message::Propose(propose)) => (peer, propose.exchange)).collect()
}

fn unchecked(effects: &[Effect]) -> Option<(Unchecked, bool)> {
    first!(
        effects.iter(),
        Effect::Notice(Notice::StateUnchecked { why, is_copied_again, .. }) => (*why, *is_copied_again)
    )
}

fn trains(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::Begin)))
}

#[test]
fn a_model_that_nobody_checks_is_copied_again_and_then_trained_on_with_a_warning() {
    for answer in [None, Some(RejectReason::Busy)] {
        let (mut driven, mut effects) = connected(Start::FromPeer, 4);
        let mut verdicts = Vec::new();
        for _ in 0..2 {
            let asked = requests(&effects);
            let loaded = driven.copy(&asked);
            assert!(!trains(&loaded), "before it is checked");
            effects = driven.answer_checks(loaded, answer);
            verdicts.extend(unchecked(&effects));
            if verdicts.len() < 2 {
                assert!(!trains(&effects), "{answer:?}");
                assert!(proposals(&effects).len() >= 3, "{answer:?}");
                effects = effects.into_iter().chain(driven.wait(Duration::from_secs(1))).collect();
                let others = requests(&effects);
                assert!(others.iter().all(|(donor, ..)| *donor != asked[0].0), "another donor: {others:?}");
            }
        }
        assert_eq!(verdicts, [(Unchecked::Unanswered, true), (Unchecked::Unanswered, false)], "{answer:?}");
        assert!(trains(&effects), "{answer:?}");
    }
}

#[test]
fn members_without_a_model_cannot_check_one_and_that_is_told() {
    let (mut driven, effects) = connected(Start::FromPeer, 3);
    let loaded = driven.copy(&requests(&effects));
    let effects = driven.answer_checks(loaded, Some(RejectReason::Joining));
    assert_eq!((unchecked(&effects), trains(&effects)), (Some((Unchecked::NobodyElse, false)), true));
    assert_eq!(proposals(&effects).len(), 2, "each of the two others was asked once");
}

/// Whatever it has copied, it counts for little at first.
#[test]
fn the_weight_of_a_joiner_begins_small() {
    let (mut driven, effects) = connected(Start::FromPeer, 1);
    let effects = driven.copy(&requests(&effects));
    assert!(trains(&effects), "nobody else is there: {effects:?}");
    let tokens_per_second = 600.0;
    let report = TrainingReport { steps: 1000, progress: 1000.0, tokens_per_second, ..TrainingReport::default() };
    let effects = driven.tell(Event::StepsCompleted(report));
    let weights: Vec<f32> =
        each!(said(effects.iter()), (_, Message::Propose(propose)) => propose.standing.weight).collect();
    assert_eq!(weights, [600.0 / (1.0 + RAMP_EXCHANGES as f32)]);
}

/// It was waited for, for as long as it asked.
#[test]
fn a_member_that_asks_for_a_model_itself_is_no_checker() {
    let (mut driven, effects) = connected(Start::FromPeer, 2);
    let asked = requests(&effects);
    let other = if asked[0].0 == peer(1) { peer(2) } else { peer(1) };
    let mut effects = driven.copy(&asked);
    let exchange = proposals(&effects)[0].1;
    let busy = Message::Reject(Reject { exchange, reason: RejectReason::Busy, retry_after_ms: 300 });
    effects.extend(driven.tell(Event::MessageReceived { peer: other, message: busy }));
    for request in 0..10 {
        effects.extend(driven.tell(asks(other, request, 0)));
        effects.extend(driven.wait(Duration::from_secs(1)));
    }
    assert_eq!(unchecked(&effects), Some((Unchecked::NobodyElse, false)));
    assert!(trains(&effects));
}

/// Through a relay nobody compares models: it was waited for, for as long as it was connected.
#[test]
fn a_member_behind_a_relay_is_no_checker() {
    let (mut driven, effects) = connected(Start::FromPeer, 2);
    let asked = requests(&effects);
    let other = if asked[0].0 == peer(1) { peer(2) } else { peer(1) };
    driven.tell(Event::PathChanged { peer: other, is_direct: false });
    let mut effects = driven.copy(&asked);
    effects.extend(driven.wait(Duration::from_secs(1)));
    assert_eq!((unchecked(&effects), trains(&effects)), (Some((Unchecked::NobodyElse, false)), true));
}

/// Members take what a joiner tells them of its progress for its own fault.
#[test]
fn a_model_of_more_steps_than_a_run_can_have_is_its_donors_fault() {
    let (mut driven, effects) = connected(Start::FromPeer, 1);
    let (peer, request, chunks) = requests(&effects)[0];
    let layout = *layout(PARAMETERS).digest();
    let header = TransferHeader::State { request, chunk: chunks.first, progress: 1e300, layout };
    let effects = driven.tell(Event::TransferReceived { peer, header, payload: part(chunks.first, 1) });
    let is_told = |effect: &Effect| matches!(effect, Effect::Notice(Notice::PeerMisbehaved { .. }));
    assert!(effects.iter().any(is_told), "{effects:?}");
}
