//! A captain and a helper among others that do their work, late, twice or not at all, and send anything else as well.

use std::time::Duration;

use murmur_protocol::team::bounds::NUMBER_MAX;
use murmur_protocol::team::{
    Assign, BatchKind, Captain, CaptainConfig, CaptainEffect, CaptainEvent, Direction, FailureCause, Frame, HeldLayers,
    Helper, HelperConfig, HelperEffect, HelperEvent, Lanes, LayerCosts, LayerRange, Link, Loading, Membership,
    ModelCosts, Offer, Outcome, Packet, Place, StateHeader, StateKind, StepFactors, Stream, TeamCounts, TeamMessage,
    TeamTimeouts, Wire,
};
use murmur_protocol::{Payload, PeerId, Time};

use crate::schedules::tape::Tape;

pub(super) fn peer(number: usize) -> PeerId {
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
    let held = HeldLayers { epoch: number(tape), layers, revision: number(tape) };
    Offer {
        memory_bytes: 100 * tape.choice(10) as u64,
        operations_per_second: [1.0, 50.0, 0.0, f64::NAN][tape.choice(4)],
        up_bytes_per_second: tape.choice(3) as u64,
        down_bytes_per_second: 0,
        held: (tape.choice(2) == 0).then_some(held),
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
    match tape.choice(17) {
        0 => TeamMessage::Offer(offer(tape)),
        1 => TeamMessage::Assign(Box::new(assign(tape))),
        2 => TeamMessage::WantsBase { epoch },
        3 => TeamMessage::Ready { epoch },
        4 => TeamMessage::Cannot { epoch, reason: "x".repeat(300 * tape.choice(3)) },
        5 => {
            let kind = [BatchKind::Training, BatchKind::Evaluation][tape.choice(2)];
            let lanes = Lanes { first: tape.choice(5) as u32, second: [0, 2, u32::MAX][tape.choice(3)] };
            let ticket = "x".repeat(3000 * tape.choice(3));
            let progress = [7.0, -1.0, f64::NAN][tape.choice(3)];
            let membership =
                (tape.choice(2) == 0).then_some(Membership { ticket, progress, is_outdated: tape.choice(2) == 0 });
            TeamMessage::Begin { epoch, batch, kind, lanes, membership }
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
        11 => TeamMessage::Copy {
            epoch,
            request: batch,
            kind: kind(tape),
            layers: layers(tape),
            stays_member: tape.choice(2) == 0,
        },
        12 => TeamMessage::Written { epoch, request: batch },
        13 => TeamMessage::Release { epoch },
        14 => TeamMessage::Apart { epoch },
        15 => TeamMessage::Dismiss { reason: "x".repeat(300 * tape.choice(3)) },
        _ => TeamMessage::Leaving,
    }
}

fn kind(tape: &mut Tape<'_>) -> StateKind {
    [StateKind::Base, StateKind::Training, StateKind::Parameters, StateKind::Correction][tape.choice(4)]
}

fn layers(tape: &mut Tape<'_>) -> LayerRange {
    let first = tape.choice(3) as u32;
    LayerRange { first, end: first + tape.choice(4) as u32 }
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
    let header = StateHeader {
        epoch: number(tape),
        request: number(tape),
        kind: kind(tape),
        layers: layers(tape),
        revision: number(tape),
        bytes,
    };
    (header, payload)
}

pub(super) fn captain() -> Captain {
    Captain::new(config(), Time::ZERO)
}

/// Of four layers, of which the captain has room for two.
pub(super) fn config() -> CaptainConfig {
    let part = LayerCosts { operations: 1.0, bytes: 100, moved_bytes: 100, ..LayerCosts::default() };
    let place = Place {
        memory_bytes: 400,
        operations_per_second: 10.0,
        link: Link { up: f64::INFINITY, down: f64::INFINITY, latency: 0.0 },
    };
    CaptainConfig {
        epoch: 1,
        model: ModelCosts {
            layers: 4,
            layer: part,
            embedding: part,
            head: part,
            stream_bytes: 16,
            stage_bytes: 0,
            batch_tokens: 100,
            borders: Vec::new(),
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
        timeouts: TeamTimeouts { gathering: Duration::from_secs(1), ..TeamTimeouts::default() },
    }
}

/// What the owner answers to an order.
fn reply_of_owner(effect: CaptainEffect, last_stage: u32, tape: &mut Tape<'_>) -> Option<CaptainEvent> {
    let busy = Duration::from_millis(10);
    Some(match effect {
        CaptainEffect::Load { epoch, .. } => {
            let result = if tape.choice(20) == 0 { Err("too small".to_owned()) } else { Ok(()) };
            CaptainEvent::Loaded { epoch, result }
        }
        CaptainEffect::Compute { work, .. } => {
            let has_next = match work.kind.direction() {
                Direction::Forward => work.stage < last_stage,
                Direction::Backward => work.stage > 0,
            };
            let stream = has_next.then(|| Stream { rows: 1, payload: Payload::from(vec![0; 8]) });
            let outcome = match tape.choice(60) {
                0 => Outcome::NotFinite,
                1 => Outcome::InputUnfit,
                2 => Outcome::Output(None),
                _ => Outcome::Output(stream),
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
            let payload = (tape.choice(20) > 0).then(|| payload(tape));
            CaptainEvent::ReadOut { request, payload }
        }
        CaptainEffect::Keep { number, .. } => {
            let result = if tape.choice(60) == 0 { Err("no state".to_owned()) } else { Ok(()) };
            CaptainEvent::Kept { number, result }
        }
        _ => return None,
    })
}

/// What a helper that does its work answers to what a captain sends it.
fn answers_of_helper(effect: &CaptainEffect, layers_of: impl Fn(PeerId) -> LayerRange) -> Vec<CaptainEvent> {
    let said = |helper: &PeerId, message| vec![CaptainEvent::MessageArrived { helper: *helper, message }];
    match effect {
        CaptainEffect::Send { helper, packet: Packet::Frame(frame) } => {
            vec![CaptainEvent::FrameArrived { helper: *helper, frame: frame.clone(), size: Some(1.0) }]
        }
        CaptainEffect::Send { helper, packet: Packet::Message(message) } => match message {
            TeamMessage::Assign(assign) => said(helper, TeamMessage::Ready { epoch: assign.epoch }),
            TeamMessage::Begin { epoch, batch, .. } => {
                let (squares, busy_nanos) = (vec![1.0; 2], 1000);
                said(helper, TeamMessage::Sums { epoch: *epoch, batch: *batch, squares, busy_nanos })
            }
            TeamMessage::Commit { epoch, batch, revision, .. } => {
                let (epoch, request, revision, kind) = (*epoch, *batch, *revision, StateKind::Training);
                let layers = layers_of(*helper);
                let header = StateHeader { epoch, request, kind, layers, revision, bytes: 32 };
                let state = CaptainEvent::StateArrived { helper: *helper, header, payload: vec![0; 32].into() };
                let mut answers = said(helper, TeamMessage::Done { epoch, batch: *batch });
                answers.push(state);
                answers
            }
            TeamMessage::Copy { epoch, request, kind, layers, .. } => {
                let (epoch, request, kind, layers, revision) = (*epoch, *request, *kind, *layers, 0);
                let header = StateHeader { epoch, request, kind, layers, revision, bytes: 32 };
                vec![CaptainEvent::StateArrived { helper: *helper, header, payload: vec![0; 32].into() }]
            }
            _ => Vec::new(),
        },
        CaptainEffect::Send { helper, packet: Packet::State(header, _) } => {
            said(helper, TeamMessage::Written { epoch: header.epoch, request: header.request })
        }
        _ => Vec::new(),
    }
}

/// What a captain that does its work answers to what a helper sends it; its numbers grow.
fn answers_of_captain(effect: &HelperEffect, number: &mut u64, tape: &mut Tape<'_>) -> Vec<HelperEvent> {
    let captain = peer(0);
    let said = |message| HelperEvent::MessageArrived { captain, message };
    let stream = || Stream { rows: 1, payload: vec![0; 8].into() };
    let frame = |epoch, batch, microbatch, direction| {
        let frame = Frame { epoch, batch, microbatch, direction, stream: stream() };
        HelperEvent::FrameArrived { captain, frame }
    };
    *number += 1;
    let begin = |epoch| {
        let (batch, lanes) = (*number, Lanes { first: 2, second: 1 });
        let begin = said(TeamMessage::Begin { epoch, batch, kind: BatchKind::Training, lanes, membership: None });
        let forward = |microbatch| frame(epoch, batch, microbatch, Direction::Forward);
        vec![begin, forward(0), forward(1), forward(2)]
    };
    let HelperEffect::Send { packet, .. } = effect else { return Vec::new() };
    match packet {
        Packet::Message(TeamMessage::Offer(_)) => {
            let layers = LayerRange { first: 0, end: 3 };
            let (in_flight, waiting, keeps_state) = (2, 3, tape.choice(4) == 0);
            let assign = Assign { epoch: *number, layers, in_flight, waiting, keeps_state, ..sound_assign() };
            let (request, kind, revision, bytes) = (*number, StateKind::Training, 5, 8);
            let header = StateHeader { epoch: *number, request, kind, layers, revision, bytes };
            let state = HelperEvent::StateArrived { captain, header, payload: vec![0; 8].into() };
            vec![said(TeamMessage::Assign(Box::new(assign))), state]
        }
        Packet::Message(TeamMessage::WantsBase { epoch }) => {
            let (request, kind, layers) = (*epoch, StateKind::Base, LayerRange { first: 0, end: 3 });
            let header = StateHeader { epoch: *epoch, request, kind, layers, revision: 5, bytes: 8 };
            vec![HelperEvent::StateArrived { captain, header, payload: vec![0; 8].into() }]
        }
        Packet::Message(TeamMessage::Ready { epoch } | TeamMessage::Done { epoch, .. }) => begin(*epoch),
        Packet::Message(TeamMessage::Sums { epoch, batch, .. }) => {
            let factors = StepFactors { gradient_norm: 1.0, learning_rate: 0.1, members: 1.0 };
            let (epoch, batch, revision) = (*epoch, *batch, *batch);
            vec![said(TeamMessage::Commit { epoch, batch, factors, revision, wants_copy: false })]
        }
        Packet::Frame(Frame { epoch, batch, microbatch, direction: Direction::Forward, .. }) => {
            vec![frame(*epoch, *batch, *microbatch, Direction::Backward)]
        }
        _ => Vec::new(),
    }
}

/// One of the events that are due, not always the first; it may be lost, or come again.
fn due<T: Clone>(owed: &mut Vec<T>, tape: &mut Tape<'_>) -> Option<T> {
    let at = if tape.choice(6) == 0 { tape.choice(owed.len()) } else { 0 };
    let event = owed.get(at).cloned();
    match tape.choice(40) {
        0 => drop(owed.drain(..at)),
        1 => {}
        _ if event.is_some() => drop(owed.remove(at)),
        _ => {}
    }
    event
}

/// A captain among helpers that do their work, and send anything else as well; its owner answers now and then late.
pub(super) fn harass_captain(tape: &mut Tape<'_>) -> TeamCounts {
    let (mut captain, mut now, mut is_free) = (captain(), Time::ZERO, true);
    let mut owed: Vec<CaptainEvent> = Vec::new();
    let mut answers: Vec<CaptainEvent> = Vec::new();
    while !tape.has_ended() {
        now = now + Duration::from_millis([0, 1, 10, 300, 20_000][tape.choice(40).saturating_sub(35)]);
        let helper = peer(1 + tape.choice(3));
        let event = match tape.choice(32) {
            0 => CaptainEvent::HelperConnected { helper },
            1 | 2 => CaptainEvent::MessageArrived { helper, message: TeamMessage::Offer(sound_offer()) },
            3 if tape.choice(6) == 0 => CaptainEvent::HelperDisconnected { helper },
            4 => CaptainEvent::FrameArrived { helper, frame: frame(tape), size: [Some(1.0), None][tape.choice(2)] },
            5 => {
                let (header, payload) = state(tape);
                CaptainEvent::StateArrived { helper, header, payload }
            }
            6 => CaptainEvent::MessageArrived { helper, message: message(tape) },
            7 => {
                let membership = Membership { ticket: String::new(), progress: 1.0, is_outdated: false };
                CaptainEvent::MembershipDecided {
                    epoch: captain.status(now).epoch,
                    membership: (tape.choice(2) == 0).then_some(membership),
                }
            }
            8..12 if is_free => {
                is_free = false;
                match tape.choice(8) {
                    0 => CaptainEvent::EvaluationWanted { microbatches: 2 },
                    1 => CaptainEvent::CopyWanted { kind: StateKind::Training },
                    2 => {
                        let (kind, parts) = (StateKind::Correction, vec![payload(tape); tape.choice(3)]);
                        let epoch = captain.status(now).epoch;
                        CaptainEvent::WriteWanted { kind, parts, epoch, is_kept: true }
                    }
                    _ => CaptainEvent::BatchWanted { lanes: Lanes::one(3) },
                }
            }
            8..20 => due(&mut answers, tape).unwrap_or(CaptainEvent::TimePassed),
            // The owner answers once, in the order in which it was asked.
            _ if !owed.is_empty() => owed.remove(0),
            _ => CaptainEvent::TimePassed,
        };
        captain.handle(now, event);
        let mut effects = 0;
        while let Some(effect) = captain.poll_effect() {
            effects += 1;
            is_free |= matches!(
                effect,
                CaptainEffect::BatchEnded { .. } | CaptainEffect::CopyEnded { .. } | CaptainEffect::WriteEnded { .. }
            );
            let cut = captain.status(now).cut;
            let layers_of = |helper| {
                let stage = cut.iter().flat_map(|cut| cut.of_helpers()).find(|(_, member, _)| *member == helper);
                stage.map_or(LayerRange { first: 0, end: 1 }, |(_, _, stage)| stage.layers)
            };
            answers.extend(answers_of_helper(&effect, layers_of));
            let stages = captain.status(now).cut.map_or(1, |cut| cut.stages.len() as u32);
            owed.extend(reply_of_owner(effect, stages - 1, tape));
        }
        assert!(effects < 100, "{effects} orders for one event");
        assert!(captain.next_deadline().is_none_or(|deadline| deadline + Duration::from_secs(3600) > now));
    }
    captain.status(now).counts
}

/// A helper among captains that do their work and send anything else as well, whose owner answers now and then late; also how often it computed.
pub(super) fn harass_helper(tape: &mut Tape<'_>) -> (TeamCounts, u32) {
    let config = HelperConfig { offer: Offer { held: None, ..sound_offer() }, kept_for: Duration::from_secs(10) };
    let (mut helper, mut now, mut computed) = (Helper::new(config), Time::ZERO, 0);
    let mut owed: Vec<HelperEvent> = Vec::new();
    let (mut answers, mut number): (Vec<HelperEvent>, u64) = (Vec::new(), 0);
    while !tape.has_ended() {
        now = now + Duration::from_millis([0, 1, 10, 300, 20_000][tape.choice(40).saturating_sub(35)]);
        let captain = peer(tape.choice(8) / 7);
        let event = match tape.choice(32) {
            0 | 1 => HelperEvent::CaptainConnected { captain },
            2 if tape.choice(6) == 0 => HelperEvent::CaptainDisconnected { captain },
            3 => HelperEvent::FrameArrived { captain, frame: frame(tape) },
            4 => {
                let (header, payload) = state(tape);
                HelperEvent::StateArrived { captain, header, payload }
            }
            5 => HelperEvent::MessageArrived { captain, message: message(tape) },
            6 => HelperEvent::TimePassed,
            7..20 => due(&mut answers, tape).unwrap_or(HelperEvent::TimePassed),
            _ if !owed.is_empty() => owed.remove(0),
            _ => HelperEvent::TimePassed,
        };
        helper.handle(now, event);
        let mut effects = 0;
        while let Some(effect) = helper.poll_effect() {
            effects += 1;
            answers.extend(answers_of_captain(&effect, &mut number, tape));
            computed += u32::from(matches!(effect, HelperEffect::Compute { .. }));
            owed.extend(reply_of_lender(effect, tape));
        }
        assert!(effects < 20, "{effects} orders for one event");
        let (held, waiting) = helper.held_and_waiting();
        assert!(held <= 4 && waiting <= 8, "{held} held, {waiting} waiting");
    }
    (helper.counts(), computed)
}

fn sound_assign() -> Assign {
    Assign {
        epoch: 1,
        stage: 1,
        layers: LayerRange { first: 0, end: 3 },
        tensors: 3,
        in_flight: 2,
        waiting: 3,
        rows_max: 2,
        width: 2,
        wire: Wire::F32,
        revision: 5,
        keeps_state: false,
        run: String::new(),
    }
}

pub(super) fn sound_offer() -> Offer {
    Offer {
        memory_bytes: 500,
        operations_per_second: 1.0,
        up_bytes_per_second: 0,
        down_bytes_per_second: 0,
        held: None,
    }
}

fn reply_of_lender(effect: HelperEffect, tape: &mut Tape<'_>) -> Option<HelperEvent> {
    let fails = tape.choice(30) == 0;
    Some(match effect {
        HelperEffect::Load { assign } => {
            let loading = [Loading::Complete, Loading::BaseMissing][tape.choice(3) / 2];
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
