//! A node that holds other fragments than before: what is under way, what it gives, copies and says.

use std::time::Duration;

use murmur_protocol::bounds::{STATE_PARTS_SENT_MAX, STATE_RETRY};

use super::*;

use crate::driven::{self, each, first, said};

fn changed(holding: Holding) -> Event {
    Event::HoldingChanged { holding }
}

fn whole() -> (Driven, Vec<Effect>) {
    Driven::with(config(Start::WithModel, Holding::ALL), PARAMETERS, 0)
}

fn proposal(exchange: u64, index: u16) -> Message {
    Message::Propose(Propose { part: fragment(index), nonce: exchange, ..driven::proposal(exchange, standing()) })
}

fn accept(propose: &Propose) -> Message {
    let standing = standing();
    Message::Accept(Accept { exchange: propose.exchange, starter_share: 0.5, reference: 0, standing })
}

/// The snapshots that it has ordered.
fn snapshots(effects: &[Effect]) -> Vec<(RequestId, Selection)> {
    each!(
        effects.iter(),
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection }) => (*request, *selection)
    )
    .collect()
}

/// With whom exchanges have failed, and why.
fn failures(effects: &[Effect]) -> Vec<(PeerId, ExchangeFailure)> {
    each!(
        effects.iter(),
        Effect::Notice(Notice::ExchangeFailed { partner, failure }) => (*partner, *failure)
    )
    .collect()
}

fn rejections(messages: &[Message]) -> Vec<RejectReason> {
    each!(messages.iter(), Message::Reject(reject) => reject.reason).collect()
}

/// The values of some chunks, each its own place in the model.
fn values(chunks: Chunks) -> Vec<f32> {
    let start = |chunk: u32| if chunk < 5 { chunk as usize * CHUNK } else { FIRST + (chunk - 5) as usize * CHUNK };
    let end = |chunk: u32| (start(chunk) + CHUNK).min(if chunk < 5 { FIRST } else { PARAMETERS });
    (chunks.first..chunks.first + chunks.count).flat_map(|chunk| start(chunk)..end(chunk)).map(|at| at as f32).collect()
}

#[test]
fn an_own_exchange_of_what_is_given_up_ends_and_others_of_it_are_refused() {
    let (mut node, _) = whole();
    node.meet(1, Holding::of([0]));
    let (_, propose) = proposed(&node.train()).expect("one is due");
    let ordered = snapshots(&node.tell(Event::MessageReceived { peer: peer(1), message: accept(&propose) }));
    let [(request, Selection::Part(part))] = ordered[..] else { panic!("one snapshot: {ordered:?}") };
    assert_eq!(part, fragment(0));
    let interval = node.node.status().interval_steps;
    let effects = node.tell(changed(Holding::of([1])));
    assert_eq!(failures(&effects), [(peer(1), ExchangeFailure::NotHeld)]);
    assert_eq!(node.node.status().interval_steps, interval, "nothing is wrong with the network");
    let report = TrainingReport::default();
    let effects = node.tell(Event::SnapshotTaken { request, snapshot: vec![1.0; FIRST].into(), report });
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Worker(_))), "{effects:?}");
    assert_eq!(rejections(&node.hear_from(1, proposal(7, 0))), [RejectReason::NotHeld]);
    assert_eq!(rejections(&node.hear_from(1, proposal(8, 1))), []);
    assert!(proposed(&node.train()).is_none(), "nobody is there who holds the other");
}

#[test]
fn an_own_exchange_of_what_is_still_held_goes_on() {
    let (mut node, _) = whole();
    node.meet(1, Holding::of([1]));
    let (_, propose) = proposed(&node.train()).expect("one is due");
    assert_eq!(failures(&node.tell(changed(Holding::of([1])))), []);
    let ordered = snapshots(&node.tell(Event::MessageReceived { peer: peer(1), message: accept(&propose) }));
    assert!(matches!(ordered[..], [(_, Selection::Part(part))] if part == fragment(1)), "{ordered:?}");
}

#[test]
fn of_answered_exchanges_those_of_what_is_given_up_end() {
    let (mut node, _) = whole();
    for (key, index) in [(1, 0), (2, 1)] {
        node.meet(key, Holding::ALL);
        assert_eq!(rejections(&node.hear_from(key, proposal(1, index))), []);
    }
    assert_eq!(failures(&node.tell(changed(Holding::of([1])))), [(peer(1), ExchangeFailure::NotHeld)]);
    let scales = |key| {
        let header = TransferHeader::Scales { exchange: 1 };
        Event::TransferReceived { peer: peer(key), header, payload: Payload::default() }
    };
    assert_eq!(snapshots(&node.tell(scales(1))), []);
    let ordered = snapshots(&node.tell(scales(2)));
    assert!(matches!(ordered[..], [(_, Selection::Part(part))] if part == fragment(1)), "{ordered:?}");
    assert_eq!(node.node.status().misbehaviours.len(), 0);
}

#[test]
fn what_is_taken_back_is_exchanged_again() {
    let (mut node, _) = whole();
    node.meet(1, Holding::of([0]));
    node.tell(changed(Holding::of([1])));
    assert!(proposed(&node.train()).is_none());
    node.tell(changed(Holding::ALL));
    let (partner, propose) = proposed(&node.train()).expect("one is due");
    assert_eq!((partner, propose.part), (peer(1), fragment(0)));
    node.meet(2, Holding::of([0]));
    assert_eq!(rejections(&node.hear_from(2, proposal(1, 0))), []);
}

#[test]
fn who_is_being_served_asks_elsewhere_and_is_given_chunks_of_what_is_held_now() {
    let (mut node, _) = whole();
    (1..=2).for_each(|key| drop(node.meet(key, Holding::ALL)));
    let asks = |key, request, first, count| {
        let message = Message::RequestState { request, chunks: Chunks { first, count } };
        Event::MessageReceived { peer: peer(key), message }
    };
    let taken = |request, chunks| {
        let snapshot = values(chunks).into();
        Event::SnapshotTaken { request, snapshot, report: TrainingReport::default() }
    };
    let parts = |effects: &[Effect]| {
        let sent = effects.iter().filter_map(|effect| match effect {
            Effect::Network(NetworkOrder::StartTransfer { transfer, header, payload, .. }) => {
                let TransferHeader::State { chunk, .. } = header else { return None };
                let count = payload.len() / 4;
                let values = Snapshot::from_chunks(std::slice::from_ref(payload), count).expect("whole");
                Some((*transfer, *chunk, values.values().to_vec()))
            }
            _ => None,
        });
        sent.collect::<Vec<_>>()
    };
    let refused = |effects: &[Effect]| {
        each!(said(effects.iter()), (peer, Message::RefuseState { request, .. }) => (peer, *request))
            .collect::<Vec<_>>()
    };
    let ordered = snapshots(&node.tell(asks(1, 0, 0, 10)));
    let under_way = parts(&node.tell(taken(ordered[0].0, Chunks { first: 0, count: 10 })));
    assert_eq!(under_way.len(), STATE_PARTS_SENT_MAX);
    node.now = node.now + Duration::from_secs(5);
    assert_eq!(snapshots(&node.tell(asks(2, 0, 0, 1))).len(), 1, "the copy is old");
    let effects = node.tell(changed(Holding::of([1])));
    assert_eq!(refused(&effects), [(peer(2), 0)], "to the other, something is on its way");
    // It has asked again meanwhile: what is on its way counts.
    let effects = node.tell(asks(1, 1, 5, 5));
    assert_eq!((parts(&effects).len(), refused(&effects)), (0, vec![]));
    let request = RequestId(ordered[0].0.0 + 1);
    let effects = node.tell(taken(request, Chunks { first: 5, count: 5 }));
    assert_eq!(parts(&effects), [], "no more at a time than for others");
    let mut sent = Vec::new();
    for (transfer, ..) in under_way {
        sent.extend(parts(&node.tell(Event::TransferFinished { transfer })));
    }
    assert!(!sent.is_empty());
    for (_, chunk, bytes) in sent {
        let all = values(Chunks { first: chunk, count: 10 - chunk });
        assert_eq!(bytes, all[..bytes.len()], "from chunk {chunk} on");
    }
    assert_eq!(refused(&node.tell(asks(2, 1, 0, 1))), [(peer(2), 1)], "it is not held any more");
}

#[test]
fn who_is_being_served_hears_that_no_more_comes_with_what_is_on_its_way_at_last() {
    let (mut node, _) = whole();
    node.meet(1, Holding::ALL);
    let chunks = Chunks { first: 0, count: 10 };
    let message = Message::RequestState { request: 3, chunks };
    let ordered = snapshots(&node.tell(Event::MessageReceived { peer: peer(1), message }));
    let snapshot = values(chunks).into();
    let taken = Event::SnapshotTaken { request: ordered[0].0, snapshot, report: TrainingReport::default() };
    let effects = node.tell(taken);
    let transfers: Vec<TransferId> =
        each!(effects.iter(), Effect::Network(NetworkOrder::StartTransfer { transfer, .. }) => *transfer).collect();
    assert_eq!(transfers.len(), STATE_PARTS_SENT_MAX);
    let mut heard = sent(&node.tell(changed(Holding::of([1]))));
    for transfer in transfers {
        assert!(!heard.iter().any(|message| matches!(message, Message::RefuseState { .. })), "{heard:?}");
        heard.extend(sent(&node.tell(Event::TransferFinished { transfer })));
    }
    assert!(heard.iter().any(|message| matches!(message, Message::RefuseState { request: 3, .. })), "{heard:?}");
    let message = Message::RequestState { request: 4, chunks: Chunks { first: 5, count: 5 } };
    let ordered = snapshots(&node.tell(Event::MessageReceived { peer: peer(1), message }));
    assert!(matches!(ordered[..], [(_, Selection::State)]), "the copy is of what was held: {ordered:?}");
}

#[test]
fn who_copies_a_model_copies_what_it_holds_now() {
    let (mut joiner, _) = Driven::with(config(Start::FromPeer, Holding::of([0])), PARAMETERS, 0);
    let layout = *crate::driven::layout(PARAMETERS).digest();
    let send = |joiner: &mut Driven, (from, request, chunks): (PeerId, u64, Chunks)| {
        let header = TransferHeader::State { request, chunk: chunks.first, progress: 7.0, layout };
        joiner.tell(Event::TransferReceived {
            peer: from,
            header,
            payload: Snapshot::from(values(chunks)).to_payload(),
        })
    };
    let load = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Trainer(TrainerOrder::LoadState { request, chunks, .. }) => {
                let length = chunks.iter().map(|chunk| chunk.len() / 4).sum();
                let state = Snapshot::from_chunks(chunks, length).expect("whole");
                Some((*request, state.values().to_vec()))
            }
            _ => None,
        })
    };
    let loaded = |request, accepted| Event::StateLoaded { request, accepted, report: TrainingReport::default() };
    let first = requests(&joiner.meet(1, Holding::ALL))[0];
    let (old, state) = load(&send(&mut joiner, first)).expect("all is there");
    assert_eq!(state, values(Chunks { first: 0, count: 5 }));
    let second = requests(&joiner.tell(changed(Holding::of([1]))))[0];
    assert_eq!((second.0, second.2), (peer(1), Chunks { first: 5, count: 5 }));
    assert!(load(&send(&mut joiner, first)).is_none(), "it is late");
    let (new, state) = load(&send(&mut joiner, second)).expect("all is there");
    assert_eq!(state, values(Chunks { first: 5, count: 5 }));
    let effects = joiner.tell(loaded(old, false));
    let is_blame = |effect: &Effect| matches!(effect, Effect::Notice(Notice::PeerMisbehaved { .. }));
    assert!(!effects.iter().any(is_blame), "the trainer has refused what it does not hold: {effects:?}");
    let effects = joiner.tell(loaded(new, true));
    let is_copied = |effect: &Effect| matches!(effect, Effect::Notice(Notice::StateReceived { .. }));
    assert!(effects.iter().any(is_copied), "{effects:?}");
    // Nobody else is there to check it.
    let begins = |effect: &Effect| matches!(effect, Effect::Trainer(TrainerOrder::Begin));
    let effects: Vec<Effect> = effects.into_iter().chain(joiner.wait(STATE_RETRY)).collect();
    assert!(effects.iter().any(begins), "{effects:?}");
}

/// A joiner of the first fragment that has met the members up to this one. The first has given it a copy, which another is asked to
/// check: who, and with what proposal.
fn with_a_copy_that_is_checked(members: u8) -> (Driven, PeerId, Propose) {
    let (mut joiner, _) = Driven::with(config(Start::FromPeer, Holding::of([0])), PARAMETERS, 0);
    let layout = *crate::driven::layout(PARAMETERS).digest();
    let (from, request, chunks) = requests(&joiner.meet(1, Holding::ALL))[0];
    (2..=members).for_each(|key| drop(joiner.meet(key, Holding::ALL)));
    let header = TransferHeader::State { request, chunk: chunks.first, progress: 7.0, layout };
    let payload = Snapshot::from(values(chunks)).to_payload();
    let effects = joiner.tell(Event::TransferReceived { peer: from, header, payload });
    let load = first!(effects.iter(), Effect::Trainer(TrainerOrder::LoadState { request, .. }) => *request);
    let (request, report) = (load.expect("all is there"), TrainingReport::default());
    let effects = joiner.tell(Event::StateLoaded { request, accepted: true, report });
    let (checker, probe) = proposed(&effects).expect("another member is to check it");
    (joiner, checker, probe)
}

#[test]
fn a_copy_that_is_being_checked_is_made_anew_of_what_is_held_now() {
    let (mut joiner, checker, probe) = with_a_copy_that_is_checked(2);
    assert_eq!((checker, probe.part, probe.standing.gamma), (peer(2), fragment(0), 0.0));
    let effects = joiner.tell(changed(Holding::of([1])));
    assert_eq!(failures(&effects), [(peer(2), ExchangeFailure::NotHeld)]);
    assert_eq!(requests(&effects).first().map(|(.., chunks)| *chunks), Some(Chunks { first: 5, count: 5 }));
}

/// At once: who trains on with it towards the end of a run has no time for another shuffle.
#[test]
fn members_hear_of_it_at_once() {
    let (mut node, _) = whole();
    node.meet(1, Holding::ALL);
    let effects = node.tell(changed(Holding::of([1])));
    let told = sent(&effects).into_iter().find_map(|message| match message {
        Message::Shuffle { peers, wants_reply: false } => Some(peers[0].profile.holding),
        _ => None,
    });
    assert_eq!(told, Some(Holding::of([1])));
}

#[test]
fn what_comes_when_the_run_is_over_is_shared_with_those_who_have_it() {
    let (mut node, _) = Driven::with(config(Start::WithModel, Holding::of([1])), PARAMETERS, 0);
    node.meet(1, Holding::of([0]));
    let is_settling = |effects: &[Effect]| effects.iter().any(|it| matches!(it, Effect::Notice(Notice::Settling)));
    node.tell(Event::TrainingCompleted(TrainingReport { steps: 10, progress: 10.0, ..TrainingReport::default() }));
    assert_eq!(node.node.status().phase, Phase::Completed, "there is nobody to settle with");
    let effects = node.tell(changed(Holding::ALL));
    assert!(is_settling(&effects), "{effects:?}");
    assert_eq!(proposed(&effects).map(|(partner, propose)| (partner, propose.part)), Some((peer(1), fragment(0))));
    assert!(!is_settling(&node.tell(changed(Holding::of([0])))), "nothing has come to it");
}

/// What the joiner has copied is trained on by nobody yet, and must move no other model.
#[test]
fn a_check_that_is_refused_when_its_copy_is_made_anew_or_the_joiner_leaves_is_followed_by_no_exchange() {
    for (event, phase) in [(changed(Holding::ALL), Phase::Joining), (Event::LeaveRequested, Phase::Left)] {
        let (mut joiner, checker, probe) = with_a_copy_that_is_checked(3);
        assert_eq!(failures(&joiner.tell(event)), [], "the probe is of what is still held");
        let reject = Reject { exchange: probe.exchange, reason: RejectReason::Busy, retry_after_ms: 300 };
        let effects = joiner.tell(Event::MessageReceived { peer: checker, message: Message::Reject(reject) });
        assert_eq!(proposed(&effects), None);
        assert_eq!(joiner.node.status().phase, phase);
    }
}

#[test]
fn whoever_comes_at_the_end_and_shares_nothing_is_not_settled_with_each_time() {
    let (mut node, _) = Driven::with(config(Start::WithModel, Holding::of([1])), PARAMETERS, 0);
    node.tell(Event::TrainingCompleted(TrainingReport { steps: 10, progress: 10.0, ..TrainingReport::default() }));
    let is_settling = |effect: &&Effect| matches!(effect, Effect::Notice(Notice::Settling));
    let mut settlings = Vec::new();
    for _ in 0..4 {
        let effects = node.meet(1, Holding::of([0]));
        settlings.push(effects.iter().filter(is_settling).count());
        if let Some((partner, propose)) = proposed(&effects) {
            let reject = Reject { exchange: propose.exchange, reason: RejectReason::NotHeld, retry_after_ms: 0 };
            node.tell(Event::MessageReceived { peer: partner, message: Message::Reject(reject) });
        }
        assert_eq!(node.node.status().phase, Phase::Completed);
        node.tell(Event::PeerDisconnected { peer: peer(1) });
    }
    assert_eq!(settlings, [1, 0, 0, 0], "before it has said what it holds it counts as whole");
}

/// It went on sending what nobody wanted any more, all of a large state at worst.
#[test]
fn whoever_was_asked_for_what_is_given_up_is_told_to_send_no_more_of_it() {
    let (mut joiner, _) = Driven::with(config(Start::FromPeer, Holding::of([0])), PARAMETERS, 0);
    let asked = requests(&joiner.meet(1, Holding::of([0])));
    assert_eq!(asked, [(peer(1), 0, Chunks { first: 0, count: 5 })]);
    let called_off = requests(&joiner.tell(changed(Holding::of([1]))));
    assert_eq!(called_off, [(peer(1), 0, Chunks { first: 0, count: 1 })], "and nobody is there who holds the other");
    // The donor's side of it.
    let (mut donor, _) = whole();
    donor.meet(1, Holding::of([0]));
    let ask = |donor: &mut Driven, (_, request, chunks): (PeerId, u64, Chunks)| {
        donor.tell(Event::MessageReceived { peer: peer(1), message: Message::RequestState { request, chunks } })
    };
    let ordered = snapshots(&ask(&mut donor, asked[0]));
    assert!(snapshots(&ask(&mut donor, called_off[0])).is_empty());
    let snapshot = values(Chunks { first: 0, count: 10 }).into();
    let taken = Event::SnapshotTaken { request: ordered[0].0, snapshot, report: TrainingReport::default() };
    let sent: usize = donor
        .tell(taken)
        .iter()
        .map(|effect| match effect {
            Effect::Network(NetworkOrder::StartTransfer { payload, .. }) => payload.len() / 4,
            _ => 0,
        })
        .sum();
    assert_eq!(sent, CHUNK, "a chunk at the most");
}

#[test]
fn whoever_gives_up_a_fragment_at_the_end_does_not_wait_for_last_exchanges_of_it() {
    let (mut node, _) = whole();
    node.meet(1, Holding::ALL);
    node.tell(Event::TrainingCompleted(TrainingReport { steps: 10, progress: 10.0, ..TrainingReport::default() }));
    assert_eq!(node.node.status().phase, Phase::Settling);
    node.tell(changed(Holding::of([1])));
    node.tell(Event::PeerDisconnected { peer: peer(1) });
    assert_eq!(node.node.status().phase, Phase::Completed, "nobody is there any more");
}
