//! What a member of a team may be sent: bytes that mean nothing, messages that cannot be, in any order.

use std::time::Duration;

use murmur_protocol::team::bounds::{FRAME_BYTES_MAX, MICROBATCHES_MAX, NUMBER_MAX, ROWS_MAX};
use murmur_protocol::team::{
    Assign, BatchKind, Captain, CaptainConfig, CaptainEffect, CaptainEvent, Direction, FRAME_HEADER_BYTES,
    FailureCause, Frame, FrameHeader, Helper, HelperConfig, HelperEffect, HelperEvent, Holding, Lanes, LayerCosts,
    LayerRange, Link, Loading, ModelCosts, Offer, Outcome, Place, StateHeader, StateKind, StepFactors, Stream,
    TeamMessage, TeamPatience, Wire,
};
use murmur_protocol::{Payload, PeerId, Time, codec};
use proptest::prelude::*;

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
        TeamMessage::Begin { epoch: 7, batch: 8, kind: BatchKind::Training, lanes: Lanes { first: 3, second: 2 } },
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
            "050708000302",
            "06070801000000000000f03f09",
            "070708000000000000f03f000000000000e03f0000000000000040fb2c0101",
            "090708",
            "0d07",
            "0e",
        ]
    );
}

fn peer(number: usize) -> PeerId {
    PeerId::from_public_key([number as u8; 32])
}

/// A number near those that are in use.
fn number(tape: &mut Tape<'_>) -> u64 {
    match tape.choice(8) {
        7 => [0, NUMBER_MAX, u64::MAX][tape.choice(3)],
        _ => 1 + tape.choice(12) as u64,
    }
}

fn offer(tape: &mut Tape<'_>) -> Offer {
    let layers = LayerRange { first: tape.choice(4) as u32, end: tape.choice(9) as u32 };
    let holding = Holding { epoch: number(tape), layers, revision: number(tape) };
    Offer {
        memory_bytes: 100 * tape.choice(10) as u64,
        operations_per_second: [1.0, 50.0, 0.0, f64::NAN][tape.choice(4)],
        up_bytes_per_second: tape.choice(3) as u64,
        down_bytes_per_second: 0,
        holding: (tape.choice(2) == 0).then_some(holding),
    }
}

fn assign(tape: &mut Tape<'_>) -> Assign {
    Assign {
        epoch: number(tape),
        stage: 1 + tape.choice(3) as u32,
        layers: LayerRange { first: tape.choice(3) as u32, end: 3 + tape.choice(3) as u32 },
        tensors: 1,
        in_flight: tape.choice(4) as u32,
        waiting: 1 + tape.choice(4) as u32,
        rows_max: 2,
        width: 2,
        wire: Wire::F32,
        revision: number(tape),
        keeps_state: tape.choice(2) == 0,
        run: String::new(),
    }
}

fn message(tape: &mut Tape<'_>) -> TeamMessage {
    let (epoch, batch) = (number(tape), number(tape));
    let cause = [FailureCause::Failed, FailureCause::InputUnfit, FailureCause::NotFinite][tape.choice(3)];
    match tape.choice(15) {
        0 => TeamMessage::Offer(offer(tape)),
        1 => TeamMessage::Assign(Box::new(assign(tape))),
        2 => TeamMessage::WantsBase { epoch },
        3 => TeamMessage::Ready { epoch },
        4 => TeamMessage::Cannot { epoch, reason: "x".repeat(300 * tape.choice(3)) },
        5 => {
            let kind = [BatchKind::Training, BatchKind::Evaluation][tape.choice(2)];
            let lanes = Lanes { first: tape.choice(5) as u32, second: [0, 2, u32::MAX][tape.choice(3)] };
            TeamMessage::Begin { epoch, batch, kind, lanes }
        }
        6 => TeamMessage::Sums {
            epoch,
            batch,
            squares: vec![-1.0 + tape.choice(3) as f64; tape.choice(5)],
            busy_nanos: batch,
        },
        7 => {
            let factors = StepFactors { gradient_norm: 1.0, learning_rate: [0.1, -1.0][tape.choice(2)], members: 1.0 };
            TeamMessage::Commit { epoch, batch, factors, revision: number(tape), wants_copy: tape.choice(2) == 0 }
        }
        8 => TeamMessage::Done { epoch, batch },
        9 => TeamMessage::Drop { epoch, batch },
        10 => TeamMessage::Failed { epoch, batch, cause },
        11 => TeamMessage::Copy { epoch, request: batch, kind: kind(tape) },
        12 => TeamMessage::Written { epoch, request: batch },
        13 => TeamMessage::Release { epoch },
        _ => TeamMessage::Leaving,
    }
}

fn kind(tape: &mut Tape<'_>) -> StateKind {
    [StateKind::Base, StateKind::Training, StateKind::Parameters, StateKind::Correction][tape.choice(4)]
}

fn payload(tape: &mut Tape<'_>) -> Payload {
    Payload::from(vec![0; 8 * tape.choice(4)])
}

fn frame(tape: &mut Tape<'_>) -> Frame {
    let stream = Stream { rows: tape.choice(4) as u32, payload: payload(tape) };
    let direction = [Direction::Forward, Direction::Backward][tape.choice(2)];
    Frame { epoch: number(tape), batch: number(tape), microbatch: tape.choice(6) as u32, direction, stream }
}

fn state(tape: &mut Tape<'_>) -> (StateHeader, Payload) {
    let payload = payload(tape);
    let bytes = payload.len() as u64 + tape.choice(2) as u64;
    let header =
        StateHeader { epoch: number(tape), request: number(tape), kind: kind(tape), revision: number(tape), bytes };
    (header, payload)
}

fn captain() -> Captain {
    let part = LayerCosts { operations: 1.0, bytes: 100, held_bytes: 0, moved_bytes: 100 };
    let place = Place {
        memory_bytes: 400,
        operations_per_second: 10.0,
        link: Link { up: f64::INFINITY, down: f64::INFINITY, latency: 0.0 },
    };
    let config = CaptainConfig {
        epoch: 1,
        model: ModelCosts {
            layers: 4,
            layer: part,
            embedding: part,
            head: part,
            stream_bytes: 16,
            stage_bytes: 0,
            batch_tokens: 100,
        },
        captain: place,
        wire: Wire::F32,
        width: 2,
        rows_max: 2,
        lanes: Lanes::one(3),
        tensors_per_layer: 1,
        tensors_of_ends: (1, 1),
        state_bytes_per_layer: 16,
        run: String::new(),
        copies_after_steps: true,
        helpers_wanted: 2,
        patience: TeamPatience { gathering: Duration::from_secs(1), ..TeamPatience::default() },
    };
    Captain::new(config, Time::ZERO)
}

/// What the owner answers to an order.
fn reply_of_owner(effect: CaptainEffect, tape: &mut Tape<'_>) -> Option<CaptainEvent> {
    let busy = Duration::from_millis(10);
    Some(match effect {
        CaptainEffect::Load { epoch, .. } => {
            let result = if tape.choice(8) == 0 { Err("too small".to_owned()) } else { Ok(()) };
            CaptainEvent::Loaded { epoch, result }
        }
        CaptainEffect::Compute { work, .. } => {
            let stream = Stream { rows: 1, payload: Payload::from(vec![0; 8]) };
            let outcome = match tape.choice(12) {
                0 => Outcome::NotFinite,
                1 => Outcome::InputUnfit,
                2 => Outcome::Output(None),
                _ => Outcome::Output(Some(stream)),
            };
            CaptainEvent::Computed { work, outcome, busy }
        }
        CaptainEffect::Sum { epoch, batch } => {
            CaptainEvent::Summed { epoch, batch, squares: vec![vec![1.0]; tape.choice(4)] }
        }
        CaptainEffect::Gathered { batch, .. } => CaptainEvent::StepDecided {
            batch,
            factors: StepFactors { gradient_norm: 1.0, learning_rate: 0.1, members: 1.0 },
        },
        CaptainEffect::Step { epoch, batch, .. } => CaptainEvent::Stepped { epoch, batch },
        CaptainEffect::ReadOut { request, .. } => {
            let payload = (tape.choice(8) > 0).then(|| payload(tape));
            CaptainEvent::ReadOut { request, payload }
        }
        _ => return None,
    })
}

/// A captain among helpers that send anything, whose owner answers now and then late.
fn harass_captain(tape: &mut Tape<'_>) {
    let (mut captain, mut now, mut is_free) = (captain(), Time::ZERO, true);
    let mut owed: Vec<CaptainEvent> = Vec::new();
    while !tape.has_ended() {
        now = now + Duration::from_millis([0, 1, 300, 20_000][tape.choice(4)]);
        let helper = peer(1 + tape.choice(3));
        let event = match tape.choice(10) {
            0 => CaptainEvent::HelperConnected { helper },
            1 if tape.choice(3) == 0 => CaptainEvent::HelperDisconnected { helper },
            2 => CaptainEvent::FrameArrived { helper, frame: frame(tape), size: [Some(1.0), None][tape.choice(2)] },
            3 => {
                let (header, payload) = state(tape);
                CaptainEvent::StateArrived { helper, header, payload }
            }
            4 if is_free => {
                is_free = false;
                match tape.choice(4) {
                    0 => CaptainEvent::EvaluationWanted { microbatches: 2 },
                    1 => CaptainEvent::CopyWanted { kind: StateKind::Training },
                    2 => {
                        let (kind, parts) = (StateKind::Correction, vec![payload(tape); tape.choice(3)]);
                        CaptainEvent::WriteWanted { kind, parts, epoch: number(tape), is_kept: true }
                    }
                    _ => CaptainEvent::BatchWanted { lanes: Lanes::one(3) },
                }
            }
            5..8 if !owed.is_empty() => owed.remove(0),
            8 => CaptainEvent::TimePassed,
            _ => CaptainEvent::MessageArrived { helper, message: message(tape) },
        };
        captain.handle(now, event);
        let mut effects = 0;
        while let Some(effect) = captain.poll_effect() {
            effects += 1;
            is_free |= matches!(
                effect,
                CaptainEffect::BatchEnded { .. } | CaptainEffect::CopyEnded { .. } | CaptainEffect::WriteEnded { .. }
            );
            owed.extend(reply_of_owner(effect, tape));
        }
        assert!(effects < 100, "{effects} orders for one event");
        assert!(captain.next_deadline().is_none_or(|deadline| deadline + Duration::from_secs(3600) > now));
    }
}

/// A helper among captains that send anything, whose owner answers now and then late.
fn harass_helper(tape: &mut Tape<'_>) {
    let config = HelperConfig { offer: Offer { holding: None, ..sound_offer() }, kept_for: Duration::from_secs(10) };
    let (mut helper, mut now) = (Helper::new(config), Time::ZERO);
    let mut owed: Vec<HelperEvent> = Vec::new();
    while !tape.has_ended() {
        now = now + Duration::from_millis([0, 1, 300, 20_000][tape.choice(4)]);
        let captain = peer(tape.choice(4) / 3);
        let event = match tape.choice(10) {
            0 => HelperEvent::CaptainConnected { captain },
            1 if tape.choice(3) == 0 => HelperEvent::CaptainDisconnected { captain },
            2 | 3 => HelperEvent::FrameArrived { captain, frame: frame(tape) },
            4 => {
                let (header, payload) = state(tape);
                HelperEvent::StateArrived { captain, header, payload }
            }
            5..8 if !owed.is_empty() => owed.remove(0),
            8 => HelperEvent::TimePassed,
            _ => HelperEvent::MessageArrived { captain, message: message(tape) },
        };
        helper.handle(now, event);
        let mut effects = 0;
        while let Some(effect) = helper.poll_effect() {
            effects += 1;
            owed.extend(reply_of_lender(effect, tape));
        }
        assert!(effects < 20, "{effects} orders for one event");
        let (held, waiting) = helper.held_and_waiting();
        assert!(held <= 4 && waiting <= 8, "{held} held, {waiting} waiting");
    }
}

fn sound_offer() -> Offer {
    Offer {
        memory_bytes: 500,
        operations_per_second: 1.0,
        up_bytes_per_second: 0,
        down_bytes_per_second: 0,
        holding: None,
    }
}

fn reply_of_lender(effect: HelperEffect, tape: &mut Tape<'_>) -> Option<HelperEvent> {
    let fails = tape.choice(10) == 0;
    Some(match effect {
        HelperEffect::Load { assign } => {
            let loading = [Loading::Complete, Loading::BaseMissing][tape.choice(2)];
            let result = if fails { Err("ä".repeat(600)) } else { Ok(loading) };
            HelperEvent::Loaded { epoch: assign.epoch, result }
        }
        HelperEffect::Compute { work, input } => {
            let outcome = if fails { Outcome::NotFinite } else { Outcome::Output(Some(input)) };
            HelperEvent::Computed { work, outcome, busy: Duration::from_millis(1) }
        }
        HelperEffect::Sum { epoch, batch } => HelperEvent::Summed { epoch, batch, squares: vec![1.0] },
        HelperEffect::Step { epoch, batch, .. } => HelperEvent::Stepped { epoch, batch },
        HelperEffect::Copy { request, .. } => HelperEvent::Copied { request, payload: payload(tape) },
        HelperEffect::Write { request, .. } => {
            let result = if fails { Err("of another length".to_owned()) } else { Ok(()) };
            HelperEvent::Written { request, result }
        }
        _ => return None,
    })
}
