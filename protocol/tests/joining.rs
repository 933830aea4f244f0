//! Copying a model from several donors: who is asked for what, and what becomes of a donor that leaves, stands still, or
//! is asked for too much.

mod checking;

use std::time::Duration;

use murmur_protocol::bounds::{JOINING_RETRY, STATE_COPY_KEPT, STATE_COPY_STEPS, STATE_PARTS_SENT_MAX};
use murmur_protocol::message::{Chunks, Message, Propose, Standing, TransferHeader};
use murmur_protocol::{
    AddressRange, Config, Effect, Event, NetworkOrder, Notice, Payload, PeerId, RequestId, RunManifest, Selection,
    Snapshot, Start, TrainerOrder, TrainingReport,
};

use crate::driven::{Driven, each, first, layout, peer, proposal, said};

const PARAMETERS: usize = 95;
const CHUNK: usize = 10;
const CHUNKS: u32 = 10;

/// The values of some chunks: each its own place in the model.
fn part(first: u32, chunks: u32) -> Payload {
    let start = first as usize * CHUNK;
    let values: Vec<f32> =
        (start..(start + chunks as usize * CHUNK).min(PARAMETERS)).map(|place| place as f32).collect();
    Snapshot::from(values).to_payload()
}

/// A node that is connected to this many peers.
fn connected(start: Start, peers: u8) -> (Driven, Vec<Effect>) {
    of_life(start, peers, 0)
}

fn of_life(start: Start, peers: u8, first_number: u64) -> (Driven, Vec<Effect>) {
    let manifest = RunManifest::default();
    let config = Config { start, first_number, state_chunk: CHUNK, ..Config::founder(&manifest) };
    Driven::with(config, PARAMETERS, peers)
}

impl Driven {
    fn receive_chunk(&mut self, from: PeerId, request: u64, chunk: u32) -> Vec<Effect> {
        self.receive_part(from, request, chunk, 1)
    }

    fn receive_part(&mut self, from: PeerId, request: u64, chunk: u32, chunks: u32) -> Vec<Effect> {
        let header = TransferHeader::State { request, chunk, progress: 7.0, layout: *layout(PARAMETERS).digest() };
        self.tell(Event::TransferReceived { peer: from, header, payload: part(chunk, chunks) })
    }

    /// Sends all that was asked for.
    fn serve(&mut self, requests: &[(PeerId, u64, Chunks)]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (from, request, chunks) in requests {
            for chunk in chunks.first..chunks.first + chunks.count {
                effects.extend(self.receive_chunk(*from, *request, chunk));
            }
        }
        effects
    }
}

pub(crate) fn requests(effects: &[Effect]) -> Vec<(PeerId, u64, Chunks)> {
    each!(
        said(effects.iter()),
        (peer, Message::RequestState { request, chunks }) => (peer, *request, *chunks)
    )
    .collect()
}

fn chunks_of(requests: &[(PeerId, u64, Chunks)]) -> Vec<u32> {
    let chunks = requests.iter().flat_map(|(_, _, chunks)| chunks.first..chunks.first + chunks.count);
    let mut all: Vec<u32> = chunks.collect();
    all.sort_unstable();
    all
}

fn loaded(effects: &[Effect]) -> Option<Vec<f32>> {
    first!(
        effects.iter(),
        Effect::Trainer(TrainerOrder::LoadState { chunks, .. })
            => Snapshot::from_chunks(chunks, PARAMETERS).expect("whole and finite").values().to_vec()
    )
}

/// Whose reply with a snapshot is awaited.
fn snapshot_wanted(effects: &[Effect]) -> Option<RequestId> {
    first!(
        effects.iter(),
        Effect::Trainer(TrainerOrder::TakeSnapshot { request, selection: Selection::State }) => *request
    )
}

fn chunks_sent(effects: &[Effect]) -> Vec<(PeerId, u32, f64)> {
    each!(
        effects.iter(),
        Effect::Network(NetworkOrder::StartTransfer { peer, header: TransferHeader::State { chunk, progress, .. }, .. })
            => (*peer, *chunk, *progress)
    )
    .collect()
}

fn asks(joiner: PeerId, request: u64, first: u32) -> Event {
    let message = Message::RequestState { request, chunks: Chunks { first, count: 1 } };
    Event::MessageReceived { peer: joiner, message }
}

fn whole_model() -> Vec<f32> {
    (0..PARAMETERS).map(|place| place as f32).collect()
}

#[test]
fn a_model_comes_from_several_donors_each_sending_its_share() {
    let (mut driven, _) = connected(Start::FromPeer, 8);
    // The first peer was asked for all of it, before anybody else was there.
    let lost = driven.tell(Event::PeerDisconnected { peer: peer(1) });
    let requests = requests(&lost);
    assert_eq!(requests.len(), 3, "half of seven, so that others are left to compare the copy with: {requests:?}");
    assert_eq!(chunks_of(&requests), (0..CHUNKS).collect::<Vec<_>>(), "every chunk once");
    let mut donors: Vec<PeerId> = requests.iter().map(|(donor, ..)| *donor).collect();
    donors.sort();
    donors.dedup();
    assert_eq!(donors.len(), 3);
    assert_eq!(loaded(&driven.serve(&requests)), Some(whole_model()));
}

#[test]
fn what_a_donor_has_sent_stays_when_it_leaves() {
    let (mut driven, first) = connected(Start::FromPeer, 2);
    let [(donor, request, chunks)] = requests(&first)[..] else { panic!("one of two peers: {first:?}") };
    assert_eq!(chunks, Chunks { first: 0, count: CHUNKS });
    (0..4).for_each(|chunk| assert!(loaded(&driven.receive_chunk(donor, request, chunk)).is_none()));
    let status = driven.node.status().copying.expect("a copy is under way");
    assert_eq!((status.chunks, status.of, &status.donors[..]), (4, 10, &[donor][..]));
    let effects = driven.tell(Event::PeerDisconnected { peer: donor });
    let rest = requests(&effects);
    assert_eq!(chunks_of(&rest), (4..CHUNKS).collect::<Vec<_>>());
    assert!(rest.iter().all(|(other, ..)| *other != donor));
    assert_eq!(loaded(&driven.serve(&rest)), Some(whole_model()));
}

#[test]
fn a_donor_that_stands_still_is_helped_out_by_another() {
    let (mut driven, first) = connected(Start::FromPeer, 2);
    let [(slow, request, _)] = requests(&first)[..] else { panic!("one of two peers: {first:?}") };
    driven.receive_chunk(slow, request, 0);
    let early = driven.wait(Duration::from_millis(100));
    assert!(requests(&early).is_empty(), "{early:?}");
    let effects: Vec<Effect> = (0..11).flat_map(|_| driven.wait(Duration::from_secs(1))).collect();
    let told: Vec<_> = requests(&effects).into_iter().filter(|(peer, ..)| *peer == slow).collect();
    assert_eq!(told, [(slow, request, Chunks { first: 1, count: 5 })], "it need not send the rest, nor what is there");
    // Repeated while it is not answered.
    let mut helper: Vec<_> = requests(&effects).into_iter().filter(|(peer, ..)| *peer != slow).collect();
    helper.dedup();
    assert_eq!(chunks_of(&helper), [6, 7, 8, 9], "half of what is not there yet");
    // Nothing comes any more; the helper has half of the rest again and again, and at last the last one.
    let (mut asked, mut model) = (chunks_of(&helper), None);
    while model.is_none() {
        let mut effects = driven.serve(&helper);
        model = loaded(&effects);
        effects.extend((0..20).flat_map(|_| driven.wait(Duration::from_secs(1))));
        helper = requests(&effects).into_iter().filter(|(peer, ..)| *peer != slow).collect();
        helper.dedup();
        asked.extend(chunks_of(&helper));
        assert!(model.is_some() || !helper.is_empty(), "nobody is asked for what is missing: {asked:?}");
    }
    asked.sort_unstable();
    assert_eq!((asked, model), ((1..CHUNKS).collect(), Some(whole_model())), "nothing twice");
}

/// On a slow and busy line all of it came twice, for both began with the first chunk.
#[test]
fn a_donor_that_is_late_to_begin_is_left_the_first_half() {
    let (mut driven, first) = connected(Start::FromPeer, 2);
    let [(slow, request, _)] = requests(&first)[..] else { panic!("one of two peers: {first:?}") };
    let effects: Vec<Effect> = (0..11).flat_map(|_| driven.wait(Duration::from_secs(1))).collect();
    let mut asked = requests(&effects);
    asked.retain(|(peer, ..)| *peer != slow);
    assert_eq!(chunks_of(&asked[..1]), [5, 6, 7, 8, 9]);
    assert!(loaded(&driven.serve(&asked[..1])).is_none());
    assert_eq!(loaded(&driven.serve(&[(slow, request, Chunks { first: 0, count: 5 })])), Some(whole_model()));
}

/// Two donors with two chunks of 4 MiB each could not be in time on a slow line, and all of it was thrown away.
#[test]
fn what_comes_after_its_donor_was_given_up_is_kept() {
    let (mut driven, first) = connected(Start::FromPeer, 2);
    let [(slow, request, _)] = requests(&first)[..] else { panic!("one of two peers: {first:?}") };
    for key in 1..=2 {
        // Nobody else has a model.
        driven.wait(Duration::from_secs(1));
        if peer(key) != slow {
            driven.tell(Event::PeerDisconnected { peer: peer(key) });
        }
    }
    (0..130).for_each(|_| drop(driven.wait(Duration::from_secs(1))));
    driven.receive_part(slow, request, 2, 7);
    let status = driven.node.status();
    assert_eq!(status.copying.expect("a copy is under way").chunks, 7);
    assert!(status.misbehaviours.is_empty());
    // The last one is half as long as the others.
    driven.receive_chunk(slow, request, 9);
    assert_eq!(loaded(&driven.receive_part(slow, request, 0, 3)), Some(whole_model()));
}

#[test]
fn who_has_nothing_to_do_sends_half_of_what_keeps_somebody_busy_for_long() {
    let (mut driven, first) = connected(Start::FromPeer, 1);
    let [(donor, request, _)] = requests(&first)[..] else { panic!("the only peer: {first:?}") };
    // 2 s a chunk: eight of them take longer than is worth a second donor.
    let busy: Vec<Effect> = (0..2)
        .flat_map(|chunk| {
            driven.wait(Duration::from_secs(2));
            driven.receive_chunk(donor, request, chunk)
        })
        .collect();
    assert!(requests(&busy).is_empty(), "{busy:?}");
    for key in 2..=4 {
        driven.tell(Event::PeerConnected { peer: peer(key), addresses: vec![] });
    }
    let asked = requests(&driven.wait(Duration::from_secs(1)));
    let [told, helper] = asked[..] else { panic!("one more donor, half of four: {asked:?}") };
    assert_eq!(told, (donor, request, Chunks { first: 2, count: 4 }));
    assert_eq!(helper.2, Chunks { first: 6, count: 4 });
    assert!(loaded(&driven.serve(&[(donor, request, Chunks { first: 2, count: 4 })])).is_none());
    assert_eq!(loaded(&driven.serve(&[helper])), Some(whole_model()));
}

#[test]
fn a_helper_that_refuses_is_not_the_last() {
    let (mut driven, first) = connected(Start::FromPeer, 2);
    let [(slow, request, _)] = requests(&first)[..] else { panic!("one of two peers: {first:?}") };
    driven.receive_chunk(slow, request, 0);
    let mut asked = Vec::new();
    // Less than the minute after which the slow one is given up.
    for _ in 0..50 {
        let effects = driven.wait(Duration::from_secs(1));
        for (helper, request, _) in requests(&effects).into_iter().filter(|(helper, ..)| *helper != slow) {
            asked.push(request);
            let refusal = Message::RefuseState { request, retry_after_ms: 500 };
            driven.tell(Event::MessageReceived { peer: helper, message: refusal });
        }
    }
    asked.dedup();
    assert!(asked.len() > 3, "{asked:?}");
}

/// What a donor sends to a joiner that takes so long for each chunk, as lengths in chunks.
fn parts_sent(seconds_per_chunk: f64) -> Vec<u32> {
    let (mut driven, _) = connected(Start::WithModel, 1);
    let ask = |request, first, count| Event::MessageReceived {
        peer: peer(1),
        message: Message::RequestState { request, chunks: Chunks { first, count } },
    };
    let effects = driven.tell(ask(0, 1, 9));
    let request = snapshot_wanted(&effects).expect("a snapshot");
    let snapshot = Snapshot::from(whole_model());
    let mut effects = driven.tell(Event::SnapshotTaken { request, snapshot, report: TrainingReport::default() });
    let (mut sent, mut lengths) = (Vec::new(), Vec::new());
    loop {
        let started = each!(
            effects.iter(),
            Effect::Network(NetworkOrder::StartTransfer { transfer, header: TransferHeader::State { chunk, .. }, payload, .. })
                => (*transfer, *chunk, payload.clone())
        );
        sent.extend(started);
        assert!(sent.len() <= STATE_PARTS_SENT_MAX, "{sent:?}");
        if sent.is_empty() {
            break;
        }
        let (transfer, chunk, bytes) = sent.remove(0);
        let chunks = (bytes.len() as u32).div_ceil(4 * CHUNK as u32);
        assert_eq!(bytes, part(chunk, chunks));
        lengths.push(chunks);
        driven.wait(Duration::from_secs_f64(seconds_per_chunk * f64::from(chunks)));
        effects = driven.tell(Event::TransferFinished { transfer });
    }
    let told = |effect: &Effect| matches!(effect, Effect::Notice(Notice::StateSent { chunks: 9, of: 10, .. }));
    assert!(effects.iter().any(told), "{effects:?}");
    lengths
}

#[test]
fn a_donor_sends_three_parts_at_a_time_each_of_about_two_seconds() {
    assert_eq!(parts_sent(2.0), [1; 9], "a slow line");
    assert_eq!(parts_sent(0.0), [1, 1, 1, 2, 4], "a fast line, of which it knows nothing at first");
}

#[test]
fn a_donor_leaves_out_what_another_sends() {
    let (mut driven, _) = connected(Start::WithModel, 1);
    let ask = |count| Event::MessageReceived {
        peer: peer(1),
        message: Message::RequestState { request: 3, chunks: Chunks { first: 0, count } },
    };
    let request = snapshot_wanted(&driven.tell(ask(10))).expect("a snapshot");
    let snapshot = Snapshot::from(whole_model());
    let effects = driven.tell(Event::SnapshotTaken { request, snapshot, report: TrainingReport::default() });
    assert_eq!(chunks_sent(&effects).len(), 3);
    driven.tell(ask(4));
    let finished = |transfer| Event::TransferFinished { transfer: murmur_protocol::TransferId(transfer) };
    assert_eq!(chunks_sent(&driven.tell(finished(0))).iter().map(|sent| sent.1).collect::<Vec<_>>(), [3]);
    assert!(chunks_sent(&driven.tell(finished(1))).is_empty());
    driven.tell(finished(2));
    let effects = driven.tell(finished(3));
    let told = |effect: &Effect| matches!(effect, Effect::Notice(Notice::StateSent { chunks: 4, of: 10, .. }));
    assert!(effects.iter().any(told), "what it has sent: {effects:?}");
}

/// The joiner waited until the donor was late, and what that one was then told had it begin anew.
#[test]
fn a_donor_that_gives_up_says_so_once_nothing_is_on_its_way() {
    let (mut driven, _) = connected(Start::WithModel, 1);
    let message = Message::RequestState { request: 3, chunks: Chunks { first: 0, count: 10 } };
    let request = snapshot_wanted(&driven.tell(Event::MessageReceived { peer: peer(1), message })).expect("a snapshot");
    let snapshot = Snapshot::from(whole_model());
    driven.tell(Event::SnapshotTaken { request, snapshot, report: TrainingReport::default() });
    let is_refused = |effects: &[Effect]| {
        effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Network(NetworkOrder::Send { message: Message::RefuseState { request: 3, .. }, .. })
            )
        })
    };
    let transfer = murmur_protocol::TransferId;
    let failed = driven.tell(Event::TransferFailed { transfer: transfer(1), reason: String::new() });
    assert!(chunks_sent(&failed).is_empty() && !is_refused(&failed), "two are on their way: {failed:?}");
    assert!(!is_refused(&driven.tell(Event::TransferFinished { transfer: transfer(0) })));
    let ended = driven.tell(Event::TransferFinished { transfer: transfer(2) });
    assert!(is_refused(&ended), "{ended:?}");
    assert!(!ended.iter().any(|effect| matches!(effect, Effect::Notice(Notice::StateSent { .. }))), "{ended:?}");
}

/// Proposals took a twentieth of a line of 64 kbit/s.
#[test]
fn who_wants_to_exchange_with_a_joiner_waits_for_half_of_its_copy() {
    let (mut driven, first) = connected(Start::FromPeer, 1);
    let [(donor, request, _)] = requests(&first)[..] else { panic!("the only peer: {first:?}") };
    let retry_after_ms = |driven: &mut Driven, exchange| {
        let standing = Standing { weight: 1.0, clip: 1.0, gamma: 0.5, progress: 7.0 };
        let propose = Propose { bits: 8, deadline_ms: 60_000, ..proposal(exchange, standing) };
        let effects = driven.tell(Event::MessageReceived { peer: donor, message: Message::Propose(propose) });
        first!(said(effects.iter()), (_, Message::Reject(reject)) => reject.retry_after_ms)
    };
    assert_eq!(retry_after_ms(&mut driven, 1), Some(JOINING_RETRY.as_millis() as u32), "nothing is known yet");
    for (chunk, seconds) in [(0, 2), (1, 2), (2, 2), (3, 2), (4, 0), (5, 0), (6, 0), (7, 0)] {
        driven.wait(Duration::from_secs(seconds));
        driven.receive_chunk(donor, request, chunk);
        if chunk == 1 {
            assert_eq!(retry_after_ms(&mut driven, 2), Some(8000), "half of eight chunks of two seconds");
        }
    }
    assert_eq!(retry_after_ms(&mut driven, 3), Some(JOINING_RETRY.as_millis() as u32), "two chunks of a second");
}

/// The donor does not know yet that the joiner was killed, and comes back with what that one had asked for.
#[test]
fn chunks_for_an_earlier_life_are_nobodys_fault() {
    let (mut driven, effects) = of_life(Start::FromPeer, 1, 1000);
    let is_accused = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::PeerMisbehaved { .. })))
    };
    let asked = requests(&effects);
    let (_, request, chunks) = asked.first().expect("it asks at once");
    assert!(!is_accused(&driven.receive_chunk(peer(1), 7, 0)), "an old request");
    assert!(is_accused(&driven.receive_chunk(peer(1), request + 1, 0)), "no request at all");
    assert!(chunks.count > 0 && !is_accused(&driven.receive_chunk(peer(1), *request, chunks.first)));
}

#[test]
fn joiners_share_one_copy_of_the_state_for_a_while() {
    let (mut driven, _) = connected(Start::WithModel, 3);
    let taken = |request, progress| Event::SnapshotTaken {
        request,
        snapshot: Snapshot::from(whole_model()),
        report: TrainingReport { progress, ..TrainingReport::default() },
    };
    let wanted = snapshot_wanted(&driven.tell(asks(peer(1), 0, 0))).expect("the first copy");
    assert_eq!(snapshot_wanted(&driven.tell(asks(peer(2), 0, 4))), None, "it is on its way");
    let sent = chunks_sent(&driven.tell(taken(wanted, 1.0)));
    assert_eq!(sent, [(peer(1), 0, 1.0), (peer(2), 4, 1.0)]);
    driven.wait(STATE_COPY_KEPT / 2);
    let effects = driven.tell(asks(peer(3), 0, 9));
    assert_eq!((snapshot_wanted(&effects), chunks_sent(&effects)), (None, vec![(peer(3), 9, 1.0)]));
    driven.wait(STATE_COPY_KEPT / 2);
    let effects = driven.tell(asks(peer(3), 1, 8));
    assert!(chunks_sent(&effects).is_empty(), "the copy is too old: {effects:?}");
    let wanted = snapshot_wanted(&effects).expect("a new copy");
    assert_eq!(chunks_sent(&driven.tell(taken(wanted, 2.0))), [(peer(3), 8, 2.0)]);
}

/// A tiny model takes thousands of steps while the copy of a large one is still fresh.
#[test]
fn a_copy_that_is_many_steps_old_is_not_given() {
    for (steps, is_fresh) in [(STATE_COPY_STEPS, true), (STATE_COPY_STEPS + 1, false)] {
        let (mut driven, _) = connected(Start::WithModel, 2);
        let request = snapshot_wanted(&driven.tell(asks(peer(1), 0, 0))).expect("a copy");
        let (snapshot, report) = (Snapshot::from(whole_model()), TrainingReport::default());
        driven.tell(Event::SnapshotTaken { request, snapshot, report });
        driven.tell(Event::StepsCompleted(TrainingReport { steps, ..report }));
        let effects = driven.tell(asks(peer(2), 0, 4));
        assert_eq!((chunks_sent(&effects).len(), snapshot_wanted(&effects).is_none()), (is_fresh.into(), is_fresh));
    }
}

#[test]
fn who_waits_for_a_copy_that_failed_may_ask_again() {
    let (mut driven, _) = connected(Start::WithModel, 1);
    let request = snapshot_wanted(&driven.tell(asks(peer(1), 0, 0))).expect("a copy");
    driven.tell(Event::RequestFailed { request });
    assert!(snapshot_wanted(&driven.tell(asks(peer(1), 0, 0))).is_some());
}

#[test]
fn chunks_that_no_state_has_are_misbehaviour() {
    for chunks in [(0, 0), (9, 2), (0, 33), (u32::MAX, 1), (3, u32::MAX)] {
        let (mut driven, _) = connected(Start::WithModel, 1);
        let chunks = Chunks { first: chunks.0, count: chunks.1 };
        let message = Message::RequestState { request: 0, chunks };
        let effects = driven.tell(Event::MessageReceived { peer: peer(1), message });
        assert!(
            !effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. }))),
            "{chunks:?}"
        );
        assert_eq!(driven.node.status().misbehaviours.values().sum::<u64>(), 1, "{chunks:?}");
    }
}

/// By the ranges of addresses in which they are reached.
#[test]
fn four_joiners_of_one_range_make_room_for_one_of_another() {
    let (mut driven, _) = connected(Start::WithModel, 6);
    (1..=6).for_each(|key| {
        drop(driven.tell(Event::RangeFound { peer: peer(key), range: AddressRange((key / 5).into()) }))
    });
    (1..=4).for_each(|key| drop(driven.tell(asks(peer(key), 0, 0))));
    let effects = driven.tell(asks(peer(5), 0, 0));
    let refused = |effects: &[Effect]| -> Vec<PeerId> {
        each!(said(effects.iter()), (peer, Message::RefuseState { .. }) => peer).collect()
    };
    assert_eq!(refused(&effects), [peer(1)], "it asks elsewhere");
    assert_eq!(refused(&driven.tell(asks(peer(6), 0, 0))), [peer(2)]);
    assert_eq!(refused(&driven.tell(asks(peer(1), 1, 0))), [peer(1)], "there are as many of each");
}

#[test]
fn who_has_no_model_yet_gives_none() {
    let (mut driven, _) = connected(Start::FromPeer, 2);
    let effects = driven.tell(asks(peer(2), 0, 0));
    let refuses = |effect: &Effect| {
        matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::RefuseState { .. }, .. }))
    };
    assert!(effects.iter().any(refuses) && snapshot_wanted(&effects).is_none(), "{effects:?}");
}
