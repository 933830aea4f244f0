//! A node that is so far from its swarm that it copies the model anew: what was under way with its old model is void.

use std::time::Duration;

use murmur_protocol::bounds::state_bytes;
use murmur_protocol::message::{Accept, Propose, Reject, RejectReason, Standing};
use murmur_protocol::status::Phase;
use murmur_protocol::*;

use crate::driven::{PARAMETERS, each, first, layout, said};
use crate::responding::{PATIENCE, Responder, encoded, merged, reply, starter};

/// Where everybody else stands: further than any honest pace explains.
const ELSEWHERE: f64 = 1e6;

/// Connected from the beginning, and in the middle of an exchange with the node.
const LONG: usize = 1;

/// Has the node find out that all others are elsewhere, and ask one of them for its model.
fn ask_anew(node: &mut Responder) -> (PeerId, u64) {
    node.progress_told = ELSEWHERE;
    let mut effects = Vec::new();
    for key in 10..16 {
        node.meet(starter(key), PATIENCE);
        effects.extend(node.receive_steps(starter(key)));
        let transfer = reply(&effects).expect("our codes leave");
        effects = node.tell(Event::TransferFinished { transfer });
        effects.extend(node.receive_codes(starter(key)));
    }
    effects.extend(node.tell(Event::TimePassed));
    asked(&effects).expect("it asks somebody for the model")
}

fn asked(effects: &[Effect]) -> Option<(PeerId, u64)> {
    first!(said(effects.iter()), (peer, Message::RequestState { request, .. }) => (peer, *request))
}

/// Has the node copy the model of one of the others, and want it checked.
fn copy_anew(node: &mut Responder) -> Vec<Effect> {
    let (peer, request) = ask_anew(node);
    let values = state_bytes(PARAMETERS) / 4;
    let layout = *layout(PARAMETERS).digest();
    let header = TransferHeader::State { request, chunk: 0, progress: ELSEWHERE, layout };
    let payload = Snapshot::from(vec![2.0; values]).to_payload();
    let effects = node.tell(Event::TransferReceived { peer, header, payload });
    let load = first!(effects.iter(), Effect::Trainer(TrainerOrder::LoadState { request, .. }) => *request);
    let report = TrainingReport { progress: ELSEWHERE, ..TrainingReport::default() };
    node.tell(Event::StateLoaded { request: load.expect("the model is whole"), accepted: true, report })
}

pub(crate) fn proposals(effects: &[Effect]) -> Vec<&Propose> {
    each!(said(effects.iter()), (_, Message::Propose(propose)) => propose).collect()
}

fn applies(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::ApplyCorrection { .. })))
}

#[test]
fn the_copy_is_checked_by_an_exchange_that_moves_nothing_on_a_grid_of_its_own() {
    let effects = copy_anew(&mut Responder::new());
    let checks = proposals(&effects);
    assert!(!checks.is_empty(), "{effects:?}");
    // The grid that the exchanges before have left belongs to the model that is gone.
    assert!(checks.iter().all(|check| check.standing.gamma == 0.0 && check.bits == 16), "{checks:?}");
}

/// The checker kept a place for it through all of the step.
#[test]
fn the_check_of_a_copy_is_asked_for_near_the_end_of_a_long_step() {
    let (mut node, step) = (Responder::new(), Duration::from_secs(30));
    for steps in 1..=3 {
        node.now = node.now + step;
        node.tell(Event::StepsCompleted(TrainingReport { steps, ..TrainingReport::default() }));
    }
    let effects = copy_anew(&mut node);
    assert!(proposals(&effects).is_empty(), "{effects:?}");
    node.now = node.now + (step - bounds::PROPOSED_BEFORE_STEP_ENDS);
    assert!(node.node.next_deadline().is_some_and(|deadline| deadline <= node.now));
    let effects = node.tell(Event::TimePassed);
    assert!(proposals(&effects).iter().any(|check| check.standing.gamma == 0.0), "{effects:?}");
}

#[test]
fn codes_for_the_old_model_are_not_merged_into_the_new_one() {
    let mut node = Responder::new();
    node.meet(starter(LONG), PATIENCE);
    assert!(reply(&node.receive_steps(starter(LONG))).is_some(), "our codes are on their way");
    copy_anew(&mut node);
    let effects = node.receive_codes(starter(LONG));
    assert!(merged(&effects).is_none() && !applies(&effects), "{effects:?}");
    assert_eq!(node.node.status().exchanges.failed[&ExchangeFailure::ModelReplaced], 1);
}

#[test]
fn an_own_exchange_of_the_old_model_ends_with_it() {
    let mut node = Responder::new();
    let partner = starter(LONG);
    node.tell(Event::PeerConnected { peer: partner, addresses: vec![] });
    let report = TrainingReport { steps: 1000, progress: 1000.0, tokens_per_second: 1.0, ..TrainingReport::default() };
    let effects = node.tell(Event::StepsCompleted(report));
    let [propose] = proposals(&effects)[..] else { panic!("it starts an exchange: {effects:?}") };
    let (exchange, gamma) = (propose.exchange, propose.standing.gamma);
    let standing = Standing { weight: 1.0, clip: 100.0, gamma, progress: 1000.0 };
    let accept = Message::Accept(Accept { exchange, starter_share: 0.5, reference: 0, standing });
    node.tell(Event::MessageReceived { peer: partner, message: accept });
    copy_anew(&mut node);
    assert_eq!(node.node.status().exchanges.failed[&ExchangeFailure::ModelReplaced], 1);
    let header = TransferHeader::ReplyCodes { exchange };
    let mut effects = node.tell(Event::TransferReceived { peer: partner, header, payload: encoded().codes });
    let header = TransferHeader::Merged { exchange, digest: 0 };
    effects.extend(node.tell(Event::TransferReceived { peer: partner, header, payload: Payload::default() }));
    assert!(!applies(&effects), "{effects:?}");
}

/// Waits while this is so, which takes more than two minutes and at most ten.
fn wait_some_minutes(node: &mut Responder, is_so: impl Fn(&Node) -> bool) {
    let mut minutes = 0;
    while is_so(&node.node) {
        assert!(minutes < 10, "it waits for ever");
        for _ in 0..60 {
            node.now = node.now + Duration::from_secs(1);
            node.tell(Event::TimePassed);
        }
        minutes += 1;
    }
    assert!(minutes > 2, "a donor on a slow link has time");
}

/// Members that are connected and send no model held a node in its last exchanges for ever.
#[test]
fn when_the_run_is_over_silent_donors_are_given_up_within_ten_minutes() {
    let mut node = Responder::new();
    node.tell(Event::PeerConnected { peer: starter(LONG), addresses: vec![] });
    node.tell(Event::TrainingCompleted(TrainingReport::default()));
    assert_eq!(node.node.status().phase, Phase::Settling);
    ask_anew(&mut node);
    wait_some_minutes(&mut node, |node| node.status().phase == Phase::Settling);
    assert_eq!(node.node.status().phase, Phase::Completed);
    // Nothing of the copy is left to do.
    node.now = node.now + Duration::from_secs(60);
    assert_eq!(asked(&node.tell(Event::TimePassed)), None);
    assert!(node.node.next_deadline().is_none_or(|deadline| deadline > node.now));
}

#[test]
fn a_model_that_is_older_than_what_was_exchanged_is_copied_anew_from_whoever_comes_soon() {
    let comes = |node: &mut Responder| asked(&node.tell(Event::PeerConnected { peer: starter(10), addresses: vec![] }));
    let mut among_others = Responder::new();
    assert!(comes(&mut among_others).is_none(), "it has a model");
    assert!(asked(&among_others.tell(Event::ModelOutdated)).is_some(), "somebody is there");
    for (after, is_copied) in [(bounds::OUTDATED_FOR / 2, true), (bounds::OUTDATED_FOR, false)] {
        let mut alone = Responder::new();
        assert!(asked(&alone.tell(Event::ModelOutdated)).is_none(), "nobody is there");
        alone.now = Time::ZERO + after;
        assert_eq!(comes(&mut alone).is_some(), is_copied, "whoever comes much later has this node's own model");
        assert_eq!(alone.node.status().phase, Phase::Training);
    }
}

#[test]
fn a_model_of_which_nobody_gives_a_newer_one_is_good_enough_again() {
    let mut node = Responder::new();
    node.tell(Event::ModelOutdated);
    let peer = starter(10);
    let mut request = asked(&node.tell(Event::PeerConnected { peer, addresses: vec![] }));
    assert!(request.is_some() && node.node.status().copying.is_some());
    while node.now < Time::ZERO + bounds::OUTDATED_FOR + Duration::from_secs(30) {
        if let Some((peer, request)) = request.take() {
            let message = Message::RefuseState { request, retry_after_ms: 1000 };
            node.tell(Event::MessageReceived { peer, message });
        }
        node.now = node.now + Duration::from_secs(1);
        request = asked(&node.tell(Event::TimePassed));
    }
    assert!(node.node.status().copying.is_none(), "it goes on with what it has");
    node.meet(starter(11), PATIENCE);
}

/// Were all members such outliers, each would wait for the others' models for ever.
#[test]
fn who_gets_no_model_while_it_trains_exchanges_again() {
    let mut node = Responder::new();
    ask_anew(&mut node);
    node.tell(Event::PeerConnected { peer: starter(20), addresses: vec![] });
    wait_some_minutes(&mut node, |node| node.status().copying.is_some());
    assert_eq!(node.node.status().phase, Phase::Training);
    node.progress_told = 0.0;
    node.meet(starter(21), PATIENCE);
}

#[test]
fn who_leaves_before_its_copy_is_checked_gives_it_to_nobody() {
    let mut node = Responder::new();
    let mut effects = copy_anew(&mut node);
    loop {
        let asked = proposals(&effects).len();
        let checks: Vec<(PeerId, u64)> = each!(
            said(effects.iter()),
            (peer, Message::Propose(propose)) => (peer, propose.exchange)
        )
        .collect();
        effects.clear();
        for (peer, exchange) in checks {
            let reject = Reject { exchange, reason: RejectReason::Busy, retry_after_ms: 10_000 };
            effects.extend(node.tell(Event::MessageReceived { peer, message: Message::Reject(reject) }));
        }
        if asked == 0 {
            break;
        }
    }
    let effects = node.tell(Event::LeaveRequested);
    assert!(proposals(&effects).is_empty(), "{effects:?}");
}
