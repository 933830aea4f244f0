//! The state machine: routes facts to its parts and decides what the node as a whole does next.
//!
//! Policy that belongs to one part lives there ([`membership`](crate::membership), [`exchange`](crate::exchange),
//! [`join`](crate::join)); here is only what concerns several: the phase, whom a reply belongs to, when to start an
//! exchange, how to leave.

use std::collections::BTreeMap;
use std::f64::consts::SQRT_2;
use std::sync::Arc;

use crate::bounds::*;
use crate::config::{Config, Start};
use crate::effect::{Effect, Notice};
use crate::event::{Event, Misbehaviour, TrainingReport};
use crate::exchange::{Admission, Averaging, Responder, Starter, screen};
use crate::join::{Giving, Joining};
use crate::layout::ModelLayout;
use crate::membership::Membership;
use crate::message::{Message, Propose, RejectReason, TransferHeader};
use crate::outbox::{Outbox, Purpose};
use crate::peer::PeerId;
use crate::status::{Phase, Status};
use crate::time::Time;
use crate::{Payload, Snapshot};

/// One member of a swarm, without I/O. See the [crate documentation](crate) for the contract.
#[derive(Debug)]
pub struct Node {
    me: PeerId,
    layout: Arc<ModelLayout>,
    phase: Phase,
    membership: Membership,
    averaging: Averaging,
    starter: Starter,
    responder: Responder,
    joining: Joining,
    giving: Giving,
    /// Exchanges still to be done after the last step.
    final_exchanges_left: u32,
    /// When settling or leaving ends whatever is still open.
    phase_deadline: Option<Time>,
    /// Peers that misbehaved, at most [`VIEW_MAX`].
    misbehaviours: BTreeMap<PeerId, u64>,
    stale_replies: u64,
    outbox: Outbox,
}

impl Node {
    /// A node at the beginning of its life, with its first effects to drain. `seed` decides every random choice that
    /// it will ever make.
    pub fn new(config: Config, me: PeerId, layout: Arc<ModelLayout>, seed: u64, now: Time) -> Node {
        let timeout = exchange_timeout(layout.parameters());
        let mut node = Node {
            me,
            phase: Phase::Joining,
            membership: Membership::new(&config, me, seed, now),
            starter: Starter::new(me, seed, config.first_exchange),
            responder: Responder::default(),
            joining: Joining::new(me, seed, layout.parameters(), &config.gossip, now),
            giving: Giving::default(),
            final_exchanges_left: config.gossip.final_exchanges,
            phase_deadline: None,
            misbehaviours: BTreeMap::new(),
            stale_replies: 0,
            outbox: Outbox::default(),
            averaging: Averaging::new(config.gossip, timeout, config.training),
            layout,
        };
        if config.start == Start::WithModel {
            node.begin_training();
        }
        node
    }

    /// Takes in one fact. Never fails: a bad peer becomes a notice and a count.
    ///
    /// # Panics
    /// When effects of an earlier event were not drained: that is a mistake in the driver.
    pub fn handle(&mut self, now: Time, event: Event) {
        assert!(self.outbox.is_empty(), "drain all effects before the next event");
        if self.phase == Phase::Left {
            return;
        }
        self.dispatch(now, event);
        self.on_time(now);
    }

    /// The next order, in order; `None` when all are drained.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.outbox.pop()
    }

    /// When to call [`handle`](Self::handle) with [`Event::TimePassed`] if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let joining = (self.phase == Phase::Joining).then(|| self.joining.next_deadline());
        let deadlines = [
            Some(self.membership.next_deadline()),
            self.starter.next_deadline(),
            self.responder.next_deadline(),
            joining,
            self.phase_deadline,
        ];
        (self.phase != Phase::Left).then(|| deadlines.into_iter().flatten().min()).flatten()
    }

    /// A picture of the node now.
    pub fn status(&self) -> Status {
        Status {
            me: self.me,
            phase: self.phase,
            training: self.averaging.training,
            connected: self.membership.connected().collect(),
            known: self.membership.known(),
            exchanges: self.averaging.counters.clone(),
            disagreement: self.averaging.last_distance.map(|distance| distance / SQRT_2),
            misbehaviours: self.misbehaviours.clone(),
            stale_replies: self.stale_replies,
        }
    }

    fn dispatch(&mut self, now: Time, event: Event) {
        match event {
            Event::PeerConnected { peer, addresses } => {
                self.membership.on_connected(now, peer, addresses, &mut self.outbox);
            }
            Event::PeerDisconnected { peer } => self.on_disconnected(now, peer),
            Event::DialFailed { peer, addresses, reason } => {
                self.membership.on_dial_failed(now, peer, &addresses, reason);
            }
            Event::HandshakeRefused { peer, refusal } => {
                self.membership.on_dial_failed(now, Some(peer), &[], refusal.to_string());
                self.outbox.notice(Notice::PeerRefused { peer, refusal });
            }
            Event::AddressFound { address } => self.membership.on_address_found(address),
            Event::MessageReceived { peer, message } => self.on_message(now, peer, message),
            Event::TransferReceived { peer, header, payload } => self.on_transfer(now, peer, header, payload),
            Event::TransferFinished { transfer } => {
                self.starter.on_transfer_finished(transfer);
                self.responder.on_transfer_ended(transfer);
                self.giving.on_transfer_ended(transfer, true, &mut self.outbox);
            }
            Event::TransferFailed { transfer, reason: _ } => {
                self.starter.on_transfer_failed(transfer);
                self.responder.on_transfer_ended(transfer);
                self.giving.on_transfer_ended(transfer, false, &mut self.outbox);
            }
            Event::PeerMisbehaved { peer, misbehaviour } => self.on_misbehaviour(peer, misbehaviour),
            Event::StepsCompleted(report) => self.averaging.training = report,
            Event::TrainingCompleted(report) => self.on_training_completed(now, report),
            Event::SnapshotTaken { request, snapshot, report } => self.on_snapshot(request, snapshot, report),
            Event::Encoded { request, payload } => match self.outbox.answered(request) {
                Some(Purpose::StarterCodes(number)) => self.starter.on_encoded(number, payload, &mut self.outbox),
                _ => self.stale_replies += 1,
            },
            Event::Merged { request, result } => self.on_merged(request, result),
            Event::CorrectionApplied { request, report } => {
                self.averaging.training = report;
                if self.outbox.answered(request).is_none() {
                    self.stale_replies += 1;
                }
            }
            Event::StateLoaded { request, accepted, report } => {
                self.averaging.training = report;
                match self.outbox.answered(request) {
                    Some(Purpose::StateLoad) => self.on_state_loaded(now, accepted),
                    _ => self.stale_replies += 1,
                }
            }
            Event::RequestFailed { request } => self.on_request_failed(now, request),
            Event::TimePassed => {}
            Event::LeaveRequested => self.on_leave_requested(now),
        }
    }

    fn on_message(&mut self, now: Time, peer: PeerId, message: Message) {
        if !self.membership.is_connected(peer) {
            return;
        }
        match message {
            Message::Accept(_) | Message::Reject(_) | Message::RefuseState { .. } => {
                self.membership.on_answer(now, peer);
            }
            _ => self.membership.on_heard(now, peer),
        }
        let is_busy = self.is_busy_with(peer);
        let out = &mut self.outbox;
        let verdict = match message {
            Message::Shuffle { peers, wants_reply } => self.membership.on_shuffle(now, peer, &peers, wants_reply, out),
            Message::Part { peers } => self.membership.on_part(now, peer, &peers, is_busy, out),
            Message::Propose(propose) => self.on_propose(now, peer, &propose),
            Message::Accept(accept) => self.starter.on_accept(peer, &accept, &mut self.averaging, out),
            Message::Reject(reject) => {
                let retry = self.starter.on_reject(now, peer, &reject, &mut self.averaging, &mut self.membership, out);
                if retry {
                    self.start_exchange(now);
                }
                Ok(())
            }
            Message::RequestState { request } => {
                let has_model = !matches!(self.phase, Phase::Joining | Phase::Leaving | Phase::Left);
                self.giving.on_request(peer, request, has_model, out);
                Ok(())
            }
            Message::RefuseState { request, retry_after_ms: _ } => {
                self.joining.on_refusal(now, peer, request);
                Ok(())
            }
            Message::Leave => {
                self.membership.on_leave(peer);
                Ok(())
            }
        };
        self.judge(peer, verdict);
    }

    fn on_propose(&mut self, now: Time, peer: PeerId, propose: &Propose) -> Result<(), Misbehaviour> {
        screen(&propose.standing)?;
        let own = self.averaging.training.tokens_per_second as f32;
        let weights = self.membership.clamp_weights(peer, propose.standing.weight, own);
        let refuse = match self.phase {
            Phase::Joining => Some(RejectReason::Joining),
            Phase::Leaving | Phase::Left => Some(RejectReason::Leaving),
            Phase::Training | Phase::Settling | Phase::Completed => {
                self.starter.goes_first(self.me, peer).then_some(RejectReason::Busy)
            }
        };
        let admission = Admission { refuse, weights };
        self.responder.on_propose(now, peer, propose, admission, &self.averaging, &mut self.outbox);
        Ok(())
    }

    /// Proposes an exchange to somebody with whom none is under way.
    fn start_exchange(&mut self, now: Time) {
        let mut partners = self.membership.partners(now);
        partners.retain(|peer| !self.responder.is_busy_with(*peer));
        self.starter.start(now, &self.averaging, &partners, &mut self.outbox);
    }

    fn on_transfer(&mut self, now: Time, peer: PeerId, header: TransferHeader, payload: Payload) {
        // Whatever is transferred follows a word of ours.
        self.membership.on_answer(now, peer);
        let out = &mut self.outbox;
        let verdict = match header {
            TransferHeader::ProposalCodes { exchange } => {
                self.responder.on_codes(peer, exchange, payload, out);
                Ok(())
            }
            TransferHeader::ReplyCodes { exchange, digest } => {
                self.starter.on_reply(peer, exchange, digest, payload, &self.averaging, out);
                Ok(())
            }
            TransferHeader::State { .. } => self.joining.on_state(now, peer, &header, payload, &self.layout, out),
        };
        self.judge(peer, verdict);
    }

    fn on_snapshot(&mut self, request: crate::RequestId, snapshot: Snapshot, report: TrainingReport) {
        self.averaging.training = report;
        let out = &mut self.outbox;
        match out.answered(request) {
            Some(Purpose::StarterSnapshot(number)) => {
                self.starter.on_snapshot(number, snapshot, &self.averaging, out);
            }
            Some(Purpose::ResponderSnapshot(peer, number)) => {
                self.responder.on_snapshot(peer, number, snapshot, &self.averaging, out);
            }
            Some(Purpose::StateSnapshot(peer, request)) => {
                self.giving.on_snapshot(peer, request, &snapshot, report.progress, &self.layout, out);
            }
            _ => self.stale_replies += 1,
        }
    }

    fn on_merged(&mut self, request: crate::RequestId, result: Result<crate::numerics::Merged, Misbehaviour>) {
        match self.outbox.answered(request) {
            Some(Purpose::StarterMerge(number)) => {
                let culprit = self.starter.on_merged(number, result, &mut self.averaging, &mut self.outbox);
                if let Some((peer, misbehaviour)) = culprit {
                    self.on_misbehaviour(peer, misbehaviour);
                } else {
                    self.final_exchanges_left = match self.phase {
                        Phase::Settling => self.final_exchanges_left.saturating_sub(1),
                        _ => self.final_exchanges_left,
                    };
                }
            }
            Some(Purpose::ResponderMerge(peer, number)) => {
                let verdict = self.responder.on_merged(peer, number, result, &mut self.averaging, &mut self.outbox);
                self.judge(peer, verdict);
            }
            _ => self.stale_replies += 1,
        }
    }

    fn on_request_failed(&mut self, now: Time, request: crate::RequestId) {
        match self.outbox.answered(request) {
            Some(Purpose::StarterSnapshot(number) | Purpose::StarterCodes(number) | Purpose::StarterMerge(number)) => {
                self.starter.on_overload(number, &mut self.averaging, &mut self.outbox)
            }
            Some(Purpose::ResponderSnapshot(peer, number) | Purpose::ResponderMerge(peer, number)) => {
                self.responder.on_overload(peer, number, &mut self.averaging, &mut self.outbox);
            }
            Some(Purpose::StateSnapshot(peer, _)) => self.giving.give_up(peer),
            Some(Purpose::StateLoad) => {
                self.joining.on_loaded(now, false);
            }
            Some(Purpose::Correction) => {} // counted by the driver; one-sided, like a crash at this moment
            None => self.stale_replies += 1,
        }
    }

    fn on_disconnected(&mut self, now: Time, peer: PeerId) {
        if self.membership.on_disconnected(now, peer, &mut self.outbox) {
            self.starter.on_partner_lost(peer, &mut self.averaging, &mut self.outbox);
            self.responder.on_partner_lost(peer, &mut self.averaging, &mut self.outbox);
            self.joining.on_partner_lost(now, peer);
            self.giving.give_up(peer);
        }
    }

    fn on_state_loaded(&mut self, now: Time, accepted: bool) {
        match self.joining.on_loaded(now, accepted) {
            Some(Ok((peer, progress))) => {
                self.outbox.notice(Notice::StateReceived { peer, progress });
                if self.phase == Phase::Joining {
                    self.begin_training();
                }
            }
            Some(Err(peer)) => self.on_misbehaviour(peer, Misbehaviour::OutOfRange("parameter")),
            None => {}
        }
    }

    fn on_training_completed(&mut self, now: Time, report: TrainingReport) {
        self.averaging.training = report;
        if self.phase == Phase::Training {
            self.phase = Phase::Settling;
            self.phase_deadline = Some(now + SETTLING_TIMEOUT);
            self.outbox.notice(Notice::Settling);
        }
    }

    fn on_leave_requested(&mut self, now: Time) {
        if self.phase == Phase::Leaving {
            return;
        }
        let was_training = self.phase == Phase::Training;
        self.phase = Phase::Leaving;
        self.phase_deadline = Some(now + LEAVE_TIMEOUT);
        self.outbox.push(Effect::EndTraining);
        if was_training && self.starter.is_idle() {
            // What this node has learned since its last exchange should not be lost to the swarm.
            self.starter.schedule(self.averaging.training.steps, 1);
            self.start_exchange(now);
        }
    }

    fn begin_training(&mut self) {
        self.phase = Phase::Training;
        self.starter.schedule(self.averaging.training.steps, self.averaging.gossip.interval_steps);
        self.outbox.push(Effect::BeginTraining);
    }

    /// Everything that depends on the time, or on what the event has just changed.
    fn on_time(&mut self, now: Time) {
        let is_busy = |peer| {
            self.starter.is_busy_with(peer)
                || self.responder.may_need(peer)
                || self.joining.is_busy_with(peer)
                || self.giving.is_busy_with(peer)
        };
        let out = &mut self.outbox;
        self.membership.on_deadline(now, is_busy, out);
        self.starter.on_deadline(now, &mut self.averaging, out);
        self.responder.on_deadline(now, &mut self.averaging, out);
        match self.phase {
            Phase::Joining => {
                let connected: Vec<PeerId> = self.membership.connected().collect();
                self.joining.proceed(now, &connected, &mut self.outbox);
            }
            Phase::Training => self.start_due_exchange(now),
            Phase::Settling => self.settle(now),
            Phase::Leaving => self.finish_leaving(now),
            Phase::Completed | Phase::Left => {}
        }
    }

    fn start_due_exchange(&mut self, now: Time) {
        let steps = self.averaging.training.steps;
        if self.starter.is_due(steps) {
            if self.averaging.gossip.outer_learning_rate > 0.0 {
                self.outbox.push(Effect::AdvanceOuter);
            }
            self.starter.schedule(steps, self.averaging.gossip.interval_steps);
            self.start_exchange(now);
        }
    }

    /// One exchange after the other at learning rate zero: what the nodes learned last is shared by all.
    fn settle(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_some_and(|deadline| deadline <= now);
        let nobody = self.membership.connected().next().is_none();
        if self.final_exchanges_left == 0 || out_of_time || (nobody && self.starter.is_idle()) {
            self.phase = Phase::Completed;
            self.phase_deadline = None;
            self.outbox.notice(Notice::RunCompleted);
            self.outbox.push(Effect::CompleteRun);
        } else if self.starter.is_idle() {
            self.starter.schedule(self.averaging.training.steps, 1);
            self.start_exchange(now);
        }
    }

    fn finish_leaving(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_some_and(|deadline| deadline <= now);
        let under_way = !self.starter.is_idle() || self.responder.under_way() > 0 || self.responder.is_replying();
        if out_of_time || !(under_way || self.outbox.is_correction_pending()) {
            self.phase = Phase::Left;
            let connected: Vec<PeerId> = self.membership.connected().collect();
            for peer in connected {
                self.outbox.send(peer, Message::Leave);
            }
            self.outbox.push(Effect::Stop);
        }
    }

    /// Whether something is under way with a peer that the end of its connection would break off.
    fn is_busy_with(&self, peer: PeerId) -> bool {
        self.starter.is_busy_with(peer)
            || self.responder.may_need(peer)
            || self.joining.is_busy_with(peer)
            || self.giving.is_busy_with(peer)
    }

    fn judge(&mut self, peer: PeerId, verdict: Result<(), Misbehaviour>) {
        if let Err(misbehaviour) = verdict {
            self.on_misbehaviour(peer, misbehaviour);
        }
    }

    fn on_misbehaviour(&mut self, peer: PeerId, misbehaviour: Misbehaviour) {
        if self.misbehaviours.len() >= VIEW_MAX && !self.misbehaviours.contains_key(&peer) {
            self.misbehaviours.pop_first();
        }
        *self.misbehaviours.entry(peer).or_default() += 1;
        self.outbox.notice(Notice::PeerMisbehaved { peer, misbehaviour });
    }
}
