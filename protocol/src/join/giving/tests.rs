//! What a donor sends whom, copy by copy.

use std::time::Duration;

use super::*;
use crate::effect::{Effect, NetworkOrder};
use crate::fragments::Fragments;

fn chunking(values: usize, chunk: usize) -> Chunking {
    Chunking::new(&Fragments::equal(values, 1), Holding::ALL, chunk)
}

#[test]
fn a_joiner_gets_the_rest_from_a_model_that_took_the_others_place() {
    let (mut giving, mut out) = (Giving::new(chunking(8, 2), [0; 32]), Outbox::default());
    let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    giving.on_request(now, (joiner, None), (0, Chunks { first: 0, count: 4 }), Some(0), &mut out).expect("sound");
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; 8]), &TrainingReport::default(), &mut out);
    giving.on_model_replaced(&mut out);
    while out.pop().is_some() {}
    giving.on_transfer_ended(now, TransferId(0), true, &mut out);
    assert!(out.is_empty() && giving.copying.is_some(), "a copy of the new model is awaited");
    giving.on_snapshot(now, &Snapshot::from(vec![1.0; 8]), &TrainingReport::default(), &mut out);
    assert!(matches!(out.pop(), Some(Effect::Network(NetworkOrder::StartTransfer { .. }))));
}

/// The share of its time for which a line carries chunks, where the first byte of a part arrives `way` after the part was
/// ordered at the earliest, and a part is confirmed `wait` after its last one.
fn share_of_the_line(way: Duration, wait: Duration) -> f64 {
    const CHUNKS: u32 = 400;
    let carry = |chunks: f64| Duration::from_secs_f64(chunks / 2.5); // 16 KiB each on 320 kbit/s
    let (mut giving, mut out) = (Giving::new(chunking(CHUNKS as usize, 1), [0; 32]), Outbox::default());
    let (joiner, mut now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    let chunks = Chunks { first: 0, count: CHUNKS };
    giving.on_request(now, (joiner, None), (0, chunks), Some(0), &mut out).expect("sound");
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; CHUNKS as usize]), &TrainingReport::default(), &mut out);
    let (mut free_at, mut confirmed) = (now, VecDeque::new());
    loop {
        while let Some(effect) = out.pop() {
            if let Effect::Network(NetworkOrder::StartTransfer { transfer, payload, .. }) = effect {
                free_at = free_at.max(now + way) + carry(payload.len() as f64 / 4.0);
                confirmed.push_back((free_at + wait, transfer));
            }
        }
        let Some((at, transfer)) = confirmed.pop_front() else { break };
        now = at;
        giving.on_transfer_ended(now, transfer, true, &mut out);
    }
    assert!(giving.joiners.is_empty(), "all was sent");
    carry(f64::from(CHUNKS)).as_secs_f64() / free_at.since_start().as_secs_f64()
}

/// Behind what is on its way a new stream is agreed on within a second or two where machines are busy: with two parts at a
/// time the line was idle for more than half of its time, as parts became small where they took long.
#[test]
fn a_line_is_not_idle_although_streams_and_confirmations_wait_for_busy_machines() {
    let milliseconds = Duration::from_millis;
    let quick = share_of_the_line(milliseconds(100), milliseconds(50));
    let busy = share_of_the_line(milliseconds(2000), milliseconds(500));
    assert!(quick > 0.98 && busy > 0.95, "{quick} where nobody waits, {busy} on busy machines");
}

/// The last chunk of a state is short: taken for a whole one it made the next part, on a slow line, twice as long.
#[test]
fn a_short_chunk_tells_of_the_line_what_a_whole_one_tells() {
    let (mut giving, mut out) = (Giving::new(chunking(9, 4), [0; 32]), Outbox::default());
    let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    giving.on_request(now, (joiner, None), (0, Chunks { first: 2, count: 1 }), Some(0), &mut out).expect("sound");
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; 9]), &TrainingReport::default(), &mut out);
    giving.on_request(now, (joiner, None), (1, Chunks { first: 0, count: 2 }), Some(0), &mut out).expect("sound");
    let parts = |out: &mut Outbox| {
        let started = |effect: &Effect| matches!(effect, Effect::Network(NetworkOrder::StartTransfer { .. }));
        std::iter::from_fn(|| out.pop()).filter(started).count()
    };
    assert_eq!(parts(&mut out), 3, "nothing is known of the line");
    giving.on_transfer_ended(now + Duration::from_millis(600), TransferId(0), true, &mut out);
    giving.on_request(now, (joiner, None), (2, Chunks { first: 0, count: 2 }), Some(0), &mut out).expect("sound");
    assert_eq!(giving.joiners[&joiner].sent.size.chunks(), 1);
}

#[test]
fn a_copy_that_nobody_wants_any_more_is_dropped() {
    let (mut giving, mut out) = (Giving::new(chunking(8, 4), [0; 32]), Outbox::default());
    let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    let chunks = Chunks { first: 0, count: 1 };
    giving.on_request(now, (joiner, None), (0, chunks), Some(0), &mut out).expect("sound");
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; 8]), &TrainingReport::default(), &mut out);
    giving.on_deadline(now + STATE_COPY_KEPT, &mut out);
    assert!(giving.copy.is_some() && giving.next_deadline().is_none(), "it is being sent");
    giving.on_transfer_ended(now, TransferId(0), true, &mut out);
    giving.on_deadline(giving.next_deadline().expect("nobody is served"), &mut out);
    assert!(giving.copy.is_none() && giving.next_deadline().is_none());
}

/// A joiner may ask for less and less, and the trainer may hand over too little.
#[test]
fn whom_nothing_is_to_be_sent_any_more_holds_no_place() {
    let (mut giving, mut out) = (Giving::new(chunking(16, 2), [0; 32]), Outbox::default());
    let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    let ask = |giving: &mut Giving, out: &mut Outbox, request, first, count| {
        giving.on_request(now, (joiner, None), (request, Chunks { first, count }), Some(0), out).expect("sound");
    };
    ask(&mut giving, &mut out, 0, 5, 1);
    ask(&mut giving, &mut out, 0, 0, 1);
    assert!(!giving.is_busy_with(joiner), "nothing is left of what it waits for");
    ask(&mut giving, &mut out, 1, 0, 8);
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; 16]), &TrainingReport::default(), &mut out);
    giving.on_model_replaced(&mut out);
    let sent = giving.joiners[&joiner].sent.parts.clone();
    sent.iter().for_each(|(transfer, ..)| giving.on_transfer_ended(now, *transfer, true, &mut out));
    assert!(giving.is_busy_with(joiner), "it waits for a copy of the new model");
    ask(&mut giving, &mut out, 1, 0, 1);
    assert!(!giving.is_busy_with(joiner), "somebody else sends the rest");
    let refusals = |out: &mut Outbox| {
        let told = |effect: &Effect| {
            matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::RefuseState { .. }, .. }))
        };
        std::iter::from_fn(|| out.pop()).filter(told).count()
    };
    assert_eq!(refusals(&mut out), 0);
    ask(&mut giving, &mut out, 2, 5, 2);
    giving.on_snapshot(now, &Snapshot::from(vec![0.0; 4]), &TrainingReport::default(), &mut out);
    assert_eq!((giving.is_busy_with(joiner), refusals(&mut out)), (false, 1), "the copy is too short");
    ask(&mut giving, &mut out, 3, 5, 2);
    assert_eq!((giving.is_busy_with(joiner), refusals(&mut out)), (false, 1), "it still is");
}

/// Of a large state each joiner is sent a copy of what it asks for.
#[test]
fn of_a_large_state_as_much_is_copied_as_is_asked_for() {
    let (mut giving, mut out) = (Giving::new(chunking(16, 2), [0; 32]), Outbox::default());
    giving.copy_values = 6;
    let (joiner, other) = (PeerId::from_public_key([1; 32]), PeerId::from_public_key([2; 32]));
    let model: Vec<f32> = (0..16).map(|value| value as f32).collect();
    let now = Time::ZERO;
    let asked = |giving: &mut Giving, out: &mut Outbox, peer, request, first, count| {
        giving.on_request(now, (peer, None), (request, Chunks { first, count }), Some(0), out).expect("sound");
    };
    let happened = |out: &mut Outbox| {
        let mut said = Vec::new();
        while let Some(effect) = out.pop() {
            match effect {
                Effect::Trainer(TrainerOrder::TakeSnapshot { selection, .. }) => said.push(format!("{selection:?}")),
                Effect::Network(NetworkOrder::StartTransfer { header, payload, .. }) => {
                    let TransferHeader::State { chunk, .. } = header else { panic!("{header:?}") };
                    let values = Snapshot::from_payload(&payload, payload.len() / 4).expect("finite");
                    assert_eq!(values.values()[0], 2.0 * chunk as f32, "the values are those of the chunks");
                    said.push(format!("{chunk}: {}", values.values().len()));
                }
                other => panic!("{other:?}"),
            }
        }
        said
    };
    let take = |giving: &mut Giving, out: &mut Outbox, values: Range<usize>| {
        giving.on_snapshot(now, &Snapshot::from(model[values].to_vec()), &TrainingReport::default(), out);
    };
    asked(&mut giving, &mut out, joiner, 0, 1, 1);
    asked(&mut giving, &mut out, other, 0, 6, 2);
    assert_eq!(happened(&mut out), ["Values { first: 2, end: 8 }"], "one at a time");
    take(&mut giving, &mut out, 2..8);
    assert_eq!(happened(&mut out), ["1: 2", "Values { first: 12, end: 16 }"], "the other one waits for its own");
    take(&mut giving, &mut out, 12..16);
    assert_eq!(happened(&mut out), ["6: 2", "7: 2"]);
    asked(&mut giving, &mut out, joiner, 1, 7, 1);
    assert_eq!(happened(&mut out), ["7: 2"], "the last copy has it");
    giving.copied.clear();
    asked(&mut giving, &mut out, joiner, 2, 0, 8);
    assert_eq!(happened(&mut out), ["State"], "who asks for all is sent all");
    take(&mut giving, &mut out, 0..16);
    happened(&mut out);
    giving.joiners.clear();
    giving.on_model_replaced(&mut out);
    asked(&mut giving, &mut out, joiner, 3, 2, 1);
    assert_eq!(happened(&mut out), ["Values { first: 4, end: 10 }"]);
    giving.joiners.clear();
    giving.on_holding_changed(Holding::ALL, &mut out);
    asked(&mut giving, &mut out, joiner, 4, 2, 1);
    take(&mut giving, &mut out, 4..10);
    assert_eq!(happened(&mut out), ["Values { first: 4, end: 10 }"], "what was copied of another holding is nobody's");
}

/// Of a state of 16 values in chunks of two, six of which are copied at once.
fn of_a_large_state() -> (Giving, Outbox) {
    let mut giving = Giving::new(chunking(16, 2), [0; 32]);
    giving.copy_values = 6;
    (giving, Outbox::default())
}

/// The parts that were sent.
fn sent(out: &mut Outbox) -> Vec<(TransferId, Payload)> {
    let started = std::iter::from_fn(|| out.pop()).filter_map(|effect| match effect {
        Effect::Network(NetworkOrder::StartTransfer { transfer, payload, .. }) => Some((transfer, payload)),
        _ => None,
    });
    started.collect()
}

/// Who asked here and there in turn had training stand still at each of its steps.
#[test]
fn who_leaves_what_was_copied_for_it_waits_for_the_next_copy() {
    let joiner = PeerId::from_public_key([1; 32]);
    for takes_it in [false, true] {
        let (mut giving, mut out) = of_a_large_state();
        let (begin, mut copies) = (Time::ZERO, 0);
        let mut now = begin;
        while now <= begin + STATE_COPY_KEPT {
            let chunks = Chunks { first: 5 * (copies as u32 % 2), count: 3 };
            giving.on_request(now, (joiner, None), (copies, chunks), Some(0), &mut out).expect("sound");
            if let Some(values) = giving.copying.clone() {
                copies += 1;
                giving.on_snapshot(now, &vec![0.0; values.len()].into(), &TrainingReport::default(), &mut out);
            }
            for (transfer, _) in sent(&mut out).iter().filter(|_| takes_it) {
                giving.on_transfer_ended(now, *transfer, true, &mut out);
            }
            now = now + STATE_COPY_KEPT / 10;
            if giving.next_deadline().is_some_and(|deadline| deadline <= now) {
                giving.on_deadline(now, &mut out);
            }
        }
        assert_eq!(copies, if takes_it { 11 } else { 2 }, "who takes it all: {takes_it}");
    }
}

/// A copy of the rest of a model is large, and a part that is read slowly is on its way for long.
#[test]
fn a_part_on_its_way_keeps_no_copy_of_a_large_state() {
    let (mut giving, mut out) = of_a_large_state();
    let (joiner, now) = (PeerId::from_public_key([1; 32]), Time::ZERO);
    giving.on_request(now, (joiner, None), (0, Chunks { first: 0, count: 3 }), Some(0), &mut out).expect("sound");
    giving.on_snapshot(now, &vec![0.0; 6].into(), &TrainingReport::default(), &mut out);
    let copy = giving.copy.as_ref().expect("just taken").state.bytes().as_ptr_range();
    let sent = sent(&mut out);
    assert!(!sent.is_empty() && sent.iter().all(|(_, part)| !copy.contains(&part.bytes().as_ptr())));
}

/// Asks for all chunks; whether it is served.
fn is_served(giving: &mut Giving, now: Time, (joiner, range): (u8, u64), out: &mut Outbox) -> bool {
    let peer = PeerId::from_public_key([joiner; 32]);
    let (number, chunks) = (now.since_start().as_secs(), Chunks { first: 0, count: 64 });
    giving.on_request(now, (peer, Some(AddressRange(range))), (number, chunks), Some(0), out).expect("sound");
    if let Some(values) = giving.copying.clone() {
        giving.on_snapshot(now, &vec![0.0; values.len()].into(), &TrainingReport::default(), out);
    }
    giving.joiners.get(&peer).is_some_and(|given| !given.has_given_way)
}

fn served(giving: &Giving) -> Vec<u8> {
    let served = giving.joiners.iter().filter(|(_, given)| !given.has_given_way);
    served.map(|(joiner, _)| joiner.as_bytes()[0]).collect()
}

/// Four that read slowly kept everybody else out, for as long as they liked.
#[test]
fn slow_readers_of_one_range_make_room_for_others() {
    let (mut giving, mut out) = (Giving::new(chunking(64, 1), [0; 32]), Outbox::default());
    let second = |count| Time::from_start(Duration::from_secs(count));
    (1..=4).for_each(|key| assert!(is_served(&mut giving, second(key.into()), (key, 7), &mut out)));
    // The first of them is quick.
    let of_first = giving.joiners[&PeerId::from_public_key([1; 32])].sent.parts.clone();
    of_first.iter().for_each(|(transfer, ..)| giving.on_transfer_ended(second(1), *transfer, true, &mut out));
    assert!(!is_served(&mut giving, second(6), (5, 7), &mut out), "one more of that range is none to make room for");
    assert!(is_served(&mut giving, second(7), (6, 8), &mut out));
    assert_eq!(served(&giving), [1, 3, 4, 6], "the slowest has given way, of those the oldest");
    assert!(!is_served(&mut giving, second(8), (2, 7), &mut out), "nor does it come back");
    assert!(is_served(&mut giving, second(9), (7, 9), &mut out));
    assert_eq!(served(&giving), [1, 4, 6, 7]);
    assert!(!is_served(&mut giving, second(10), (8, 8), &mut out), "each range has as many as it could have");
    assert!(giving.joiners.len() <= 2 * STATE_TRANSFERS_MAX);
}

#[test]
fn where_all_are_of_one_range_they_take_long_turns() {
    let (mut giving, mut out) = (Giving::new(chunking(64, 1), [0; 32]), Outbox::default());
    let at = |time| Time::ZERO + time;
    (1..=4).for_each(|key| assert!(is_served(&mut giving, at(Duration::from_secs(key.into())), (key, 7), &mut out)));
    assert!(!is_served(&mut giving, at(STATE_TURN), (5, 7), &mut out), "nobody has had its turn");
    assert!(is_served(&mut giving, at(STATE_TURN + Duration::from_secs(1)), (5, 7), &mut out));
    assert_eq!(served(&giving), [2, 3, 4, 5]);
}

/// What has given way is still on its way: its memory is bounded like that of those who are served.
#[test]
fn no_more_give_way_than_are_served() {
    let (mut giving, mut out) = (Giving::new(chunking(64, 1), [0; 32]), Outbox::default());
    let mut now = Time::ZERO;
    for key in 1..=40 {
        now = now + STATE_TURN;
        is_served(&mut giving, now, (key, 7), &mut out);
        assert!(giving.joiners.len() <= 2 * STATE_TRANSFERS_MAX && served(&giving).len() <= STATE_TRANSFERS_MAX);
    }
    assert_eq!(giving.joiners.len(), 2 * STATE_TRANSFERS_MAX);
}
