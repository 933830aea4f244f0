//! What a member of a team may be sent: bytes that mean nothing, messages that cannot be, in any order.

mod harassed;
mod leaving;
mod membership;

use std::time::Duration;

use murmur_protocol::team::bounds::{FRAME_BYTES_MAX, MICROBATCHES_MAX, NUMBER_MAX, ROWS_MAX};
use murmur_protocol::team::{
    BatchKind, CaptainEffect, CaptainEvent, Direction, FRAME_HEADER_BYTES, FrameHeader, HeldLayers, Lanes, LayerRange,
    Offer, Packet, StateHeader, StepFactors, TeamMessage,
};
use murmur_protocol::{Time, codec};
use proptest::prelude::*;

use self::harassed::{captain, harass_captain, harass_helper, peer};
use crate::schedules::tape::Tape;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn what_decodes_encodes_to_the_same_team_message(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = codec::decode::<TeamMessage>(&bytes) {
            let again = codec::decode::<TeamMessage>(&codec::encode(&message));
            // As text, since a message may hold NaN, which equals nothing.
            prop_assert_eq!(format!("{:?}", again.expect("our own encoding")), format!("{message:?}"));
            let _ = message.is_sound();
        }
        if let Ok(header) = codec::decode::<StateHeader>(&bytes) {
            prop_assert_eq!(codec::decode(&codec::encode(&header)), Ok(header));
        }
    }

    #[test]
    fn a_frame_header_is_refused_or_within_its_bounds(bytes in proptest::array::uniform29(any::<u8>()), tame in any::<u8>()) {
        let mut bytes = bytes;
        // Mostly zeros, so that some are accepted.
        bytes.iter_mut().enumerate().filter(|(at, _)| tame > 40 && at % 4 != 0).for_each(|(_, byte)| *byte = 0);
        if let Ok(header) = FrameHeader::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
            prop_assert!(header.epoch < NUMBER_MAX && header.batch < NUMBER_MAX && header.microbatch < MICROBATCHES_MAX);
            prop_assert!((1..=ROWS_MAX).contains(&header.rows) && u64::from(header.bytes) <= FRAME_BYTES_MAX);
        }
    }

    #[test]
    fn a_captain_survives_whatever_helpers_send(tape in proptest::collection::vec(any::<u8>(), 0..1500)) {
        harass_captain(&mut Tape::new(&tape));
    }

    #[test]
    fn a_helper_survives_whatever_captains_send(tape in proptest::collection::vec(any::<u8>(), 0..1500)) {
        harass_helper(&mut Tape::new(&tape));
    }
}

/// Random tapes come far enough to be worth something: cuts are taken up and batches stepped with, in spite of all.
#[test]
fn what_is_sent_at_random_reaches_cuts_and_steps() {
    let mut random = 1_u64;
    let mut byte = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    };
    let (mut cuts, mut batches, mut lost, mut steps, mut computed) = (0, 0, 0, 0, 0);
    for _ in 0..300 {
        let tape: Vec<u8> = (0..3000).map(|_| byte()).collect();
        let of_captain = harass_captain(&mut Tape::new(&tape));
        (cuts, batches, lost) =
            (cuts + of_captain.cuts, batches + of_captain.stepped + of_captain.dropped, lost + of_captain.helpers_lost);
        let (of_helper, works) = harass_helper(&mut Tape::new(&tape));
        (steps, computed) = (steps + of_helper.stepped, computed + works);
    }
    println!(
        "{cuts} cuts, {batches} batches, {lost} helpers lost; {steps} steps of a helper, {computed} pieces of work"
    );
    assert!(cuts > 100 && batches > 100 && lost > 100 && steps > 0 && computed > 100);
}

/// A captain's numbers begin with its clock. Where that was set back, a helper that holds a stage of before takes no lower number.
#[test]
fn a_captain_whose_clock_went_back_counts_on_from_what_its_helpers_hold() {
    let at = |seconds| Time::from_start(Duration::from_secs(seconds));
    let mut captain = captain();
    let layers = LayerRange { first: 0, end: 2 };
    for (helper, epoch) in [(1, 5000), (2, u64::MAX / 4 - 1)] {
        captain.handle(at(0), CaptainEvent::HelperConnected { helper: peer(helper) });
        let offer = Offer {
            memory_bytes: 900,
            operations_per_second: 50.0,
            up_bytes_per_second: 0,
            down_bytes_per_second: 0,
            held: Some(HeldLayers { epoch, layers, revision: 0 }),
        };
        let message = TeamMessage::Offer(offer);
        captain.handle(at(0), CaptainEvent::MessageArrived { helper: peer(helper), message });
    }
    captain.handle(at(2), CaptainEvent::TimePassed);
    let mut assigned = Vec::new();
    while let Some(effect) = captain.poll_effect() {
        if let CaptainEffect::Send { packet: Packet::Message(TeamMessage::Assign(assign)), .. } = effect {
            assert!(!assign.keeps_state, "nothing of an earlier life is taken up");
            assigned.push(assign.epoch);
        }
    }
    assert!(!assigned.is_empty(), "no cut is made");
    // Who holds a number that leaves none to count on with is a liar.
    assert!(assigned.iter().all(|epoch| (5001..6000).contains(epoch)), "{assigned:?}");
}

/// The format on the wire.
#[test]
fn team_messages_have_the_bytes_they_had() {
    let header = FrameHeader { epoch: 1, batch: 2, microbatch: 3, direction: Direction::Backward, rows: 4, bytes: 5 };
    let mut expected = [0; FRAME_HEADER_BYTES];
    (expected[0], expected[8], expected[16], expected[20], expected[24], expected[28]) = (1, 2, 3, 4, 5, 1);
    assert_eq!(header.encode(), expected);
    let factors = StepFactors { gradient_norm: 1.0, learning_rate: 0.5, members: 2.0 };
    let messages = [
        TeamMessage::Ready { epoch: 7 },
        TeamMessage::Begin {
            epoch: 7,
            batch: 8,
            kind: BatchKind::Training,
            lanes: Lanes { first: 3, second: 2 },
            membership: None,
        },
        TeamMessage::Sums { epoch: 7, batch: 8, squares: vec![1.0], busy_nanos: 9 },
        TeamMessage::Commit { epoch: 7, batch: 8, factors, revision: 300, wants_copy: true },
        TeamMessage::Drop { epoch: 7, batch: 8 },
        TeamMessage::Release { epoch: 7 },
        TeamMessage::Leaving,
    ];
    let hexadecimal = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines: Vec<String> = messages.iter().map(|message| hexadecimal(codec::encode(message))).collect();
    assert_eq!(
        lines,
        [
            "0307",
            "05070800030200",
            "06070801000000000000f03f09",
            "070708000000000000f03f000000000000e03f0000000000000040fb2c0101",
            "090708",
            "0d07",
            "0e",
        ]
    );
}
