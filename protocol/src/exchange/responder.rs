//! Exchanges that others start with this node: a few at a time, each merged exactly once.

mod incoming;

use std::collections::BTreeMap;
use std::time::Duration;

use super::averaging::{Averaging, Circumstances};
use super::outbound::Outbound;
use super::terms::Terms;
use super::timeout::longest_deadline;
use crate::bounds::*;
use crate::effect::{TrainerOrder, TransferId, WorkerOrder};
use crate::event::TrainingReport;
use crate::fragments::Holding;
use crate::message::{Accept, ExchangeNumber, Message, Propose, Reject, RejectReason, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::ExchangeFailure;
use crate::numerics::{CodeWidth, Encoded, Merged, Reference};
use crate::outbox::{Outbox, Purpose};
use crate::part::{Selection, Vector};
use crate::peer::PeerId;
use crate::reputation::Reputation;
use crate::time::Time;
use crate::{Payload, Snapshot};
use incoming::{Incoming, Stage};

/// The sub-machine of answered exchanges.
#[derive(Debug)]
pub(crate) struct Responder {
    /// At most [`RESPONDING_MAX`] under way, each of another starter, and [`REPLY_CACHE_MAX`] answered.
    exchanges: BTreeMap<(PeerId, ExchangeNumber), Incoming>,
    /// The highest number that is over, by starter: numbers grow, so nothing at or below it is new.
    finished: BTreeMap<PeerId, ExchangeNumber>,
    /// The longest that a starter may have an exchange open here.
    deadline_max: Duration,
    /// Who had our codes, kept its own to itself and has lost its place, until the node asks.
    stalled: Option<PeerId>,
}

/// What the node as a whole has to say about a proposal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    /// Why no proposal at all is taken now.
    pub(crate) refuse: Option<RejectReason>,
    /// When a joiner may be asked again.
    pub(crate) joining_retry: Duration,
    /// The starter's declared speed and our own, clamped, in tokens a second.
    pub(crate) weights: (f32, f32),
    /// Which fragments the starter holds.
    pub(crate) holding: Holding,
}

impl Responder {
    /// `parameters`: of the whole model.
    pub(crate) fn new(parameters: usize) -> Responder {
        let deadline_max = longest_deadline(parameters);
        Responder { exchanges: BTreeMap::new(), finished: BTreeMap::new(), deadline_max, stalled: None }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.exchanges.values().map(|incoming| incoming.deadline).min()
    }

    /// Exchanges that are not merged yet.
    pub(crate) fn under_way(&self) -> usize {
        self.exchanges.values().filter(|incoming| !incoming.is_answered()).count()
    }

    /// Whether a reply is still on its way to its starter.
    pub(crate) fn is_replying(&self) -> bool {
        self.exchanges.values().flat_map(Incoming::sent).any(Outbound::is_on_its_way)
    }

    /// Whether an exchange that this peer started is not merged yet.
    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.of(peer).any(|(_, incoming)| !incoming.is_answered())
    }

    /// Whether an exchange that this peer started, or our reply to it, may still need its connection.
    pub(crate) fn may_need(&self, peer: PeerId) -> bool {
        self.of(peer).next().is_some()
    }

    /// The exchanges that this peer started, by their numbers.
    fn of(&self, peer: PeerId) -> impl DoubleEndedIterator<Item = (ExchangeNumber, &Incoming)> {
        let exchanges = self.exchanges.range((peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX));
        exchanges.map(|((_, number), incoming)| (*number, incoming))
    }

    /// Whether there is room for a new exchange of `peer`. It has one at a time: what it asks of trainer, worker and link
    /// it cannot ask again before that is done.
    fn has_room_for(&self, peer: PeerId) -> bool {
        let of_others = self.under_way() - self.of(peer).filter(|(_, incoming)| !incoming.is_answered()).count();
        of_others < RESPONDING_MAX && self.of(peer).all(|(_, incoming)| incoming.is_answered() || incoming.is_idle())
    }

    /// The same, where the exchange that has waited longest for its starter may go.
    fn makes_room_for(&mut self, now: Time, peer: PeerId, averaging: &mut Averaging, out: &mut Outbox) -> bool {
        if self.has_room_for(peer) {
            return true;
        }
        let is_late =
            |incoming: &Incoming| incoming.keeps_place_until(&averaging.timeout).is_some_and(|until| until <= now);
        let late = self.exchanges.iter().filter(|((starter, _), incoming)| *starter != peer && is_late(incoming));
        if let Some((key, incoming)) = late.min_by_key(|(_, incoming)| incoming.since) {
            // One that has asked for our codes again may have a bad line.
            let has_reply = incoming.replied_at.is_some() && incoming.is_idle() && incoming.lacks_codes();
            let key = *key;
            self.stalled = has_reply.then_some(key.0);
            self.fail(key, ExchangeFailure::DeadlinePassed, averaging, out);
        }
        self.has_room_for(peer)
    }

    /// This node was not there for so long: starters keep their places longer by that.
    pub(crate) fn on_absence(&mut self, absence: Duration) {
        self.exchanges.values_mut().for_each(|incoming| incoming.on_absence(absence));
    }

    /// Who has lost its place because it kept others waiting, once.
    pub(crate) fn take_stalled(&mut self) -> Option<PeerId> {
        self.stalled.take()
    }

    /// The highest number heard from a starter: anything up to it is a late duplicate.
    fn newest_number(&self, peer: PeerId) -> Option<ExchangeNumber> {
        let here = self.of(peer).next_back().map(|(number, _)| number);
        here.max(self.finished.get(&peer).copied())
    }

    /// Drops such exchanges of this peer, and says how many these were.
    fn give_up(&mut self, peer: PeerId, which: impl Fn(&Incoming) -> bool) -> usize {
        let given_up = self.of(peer).filter(|(_, incoming)| which(incoming));
        let numbers: Vec<ExchangeNumber> = given_up.map(|(number, _)| number).collect();
        numbers.iter().for_each(|number| self.finish(peer, *number));
        numbers.len()
    }

    /// Accepts or rejects a proposal; answers a repeated one as before.
    pub(crate) fn on_propose(
        &mut self,
        now: Time,
        peer: PeerId,
        propose: &Propose,
        admission: Admission,
        (averaging, reputation): (&mut Averaging, &Reputation),
        out: &mut Outbox,
    ) {
        // The same number with another nonce is of another life of the starter, whose clock was set back: that it is over
        // follows below. What was sent to the earlier life must not reach this one.
        if let Some(incoming) = self.exchanges.get_mut(&(peer, propose.exchange))
            && incoming.terms.nonce == propose.nonce
        {
            incoming.answer_again(peer, out);
            return;
        }
        let width = averaging.accepted_width(propose.part, propose.bits);
        let timeout = Duration::from_millis(u64::from(propose.deadline_ms)).min(self.deadline_max);
        let (timely, step_left) = (timeout - timeout / REPLY_SHARE, averaging.step_time.left(now));
        let step_left_max = timely.min(Duration::from_millis(propose.step_left_max_ms.into()));
        let is_over = self.newest_number(peer).is_some_and(|newest| propose.exchange <= newest);
        let reason = match width {
            _ if is_over => Some(RejectReason::Over),
            None => Some(RejectReason::Unacceptable),
            Some(_) if !averaging.exchanges(propose.part) => Some(RejectReason::Unacceptable),
            Some(_) if !averaging.turns.holds(propose.part) => Some(RejectReason::NotHeld),
            // It would be given up before there is a snapshot, and keep this node from asking its starter meanwhile; or its starter
            // has others to ask.
            Some(_) if admission.refuse.is_none() && step_left >= step_left_max => Some(RejectReason::Busy),
            Some(_) if admission.refuse.is_none() && !self.makes_room_for(now, peer, averaging, out) => {
                Some(RejectReason::Busy)
            }
            Some(CodeWidth::One) if !averaging.links.has_room_for(peer, propose.part.fragment.index) => {
                Some(RejectReason::Busy)
            }
            Some(_) => admission.refuse,
        };
        let (Some(width), None) = (width, reason) else {
            let reason = reason.unwrap_or(RejectReason::Unacceptable);
            let wait = match reason {
                // A rest lasts for hours: as long as a peer may ask for.
                RejectReason::Resting => RETRY_AFTER_MAX,
                RejectReason::Joining => admission.joining_retry,
                // Not a moment later: the time in which it is welcome may be as short as a retry.
                RejectReason::Busy if step_left >= step_left_max => (step_left - step_left_max).min(RETRY_AFTER_MAX),
                _ => BUSY_RETRY,
            };
            let retry_after_ms = wait.as_millis() as u32;
            out.send(peer, Message::Reject(Reject { exchange: propose.exchange, reason, retry_after_ms }));
            return;
        };
        // A starter has one exchange at a time: with a new one it has given up those before.
        self.give_up(peer, Incoming::is_idle);
        let mut standing = averaging.standing(propose.part, reputation.influence(peer));
        if propose.standing.gamma == 0.0 {
            standing.clip = averaging.reach(propose.part);
        }
        let reference = averaging.links.reference(peer, propose.part);
        let reference = reference.filter(|kept| width == CodeWidth::One && kept.digest() == propose.reference);
        let accept = Accept {
            exchange: propose.exchange,
            starter_share: share(admission.weights),
            reference: reference.as_ref().map_or(0, Reference::digest),
            standing,
        };
        let terms = Terms::of_responder(propose, width, &accept);
        out.send(peer, Message::Accept(accept.clone()));
        let incoming = Incoming {
            terms,
            holding: admission.holding,
            accept,
            reference,
            since: now,
            reply_until: now + timely,
            deadline: now + timeout,
            received: None,
            reply: None,
            reply_began: None,
            replied_at: None,
            news: None,
            stage: Stage::Expecting,
        };
        self.exchanges.insert((peer, propose.exchange), incoming);
    }

    /// The starter's scales: all that this node needs to encode.
    pub(crate) fn on_scales(&mut self, peer: PeerId, number: ExchangeNumber, scales: Payload, out: &mut Outbox) {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return;
        }; // over, or never accepted
        if matches!(incoming.stage, Stage::Expecting) {
            incoming.stage = Stage::TakingSnapshot(scales);
            let selection = Selection::Part(incoming.terms.part);
            out.request(Purpose::ResponderSnapshot(peer, number), |request| TrainerOrder::TakeSnapshot {
                request,
                selection,
            });
        }
    }

    pub(crate) fn on_snapshot(
        &mut self,
        now: Time,
        (peer, number): (PeerId, ExchangeNumber),
        (snapshot, report): (Snapshot, &TrainingReport),
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) {
        if self.gives_up_late(now, (peer, number), averaging, out) {
            return;
        }
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return;
        };
        let Stage::TakingSnapshot(scales) = &incoming.stage else {
            return;
        };
        let job = incoming.terms.responder_encodes(scales.clone(), incoming.reference.clone());
        incoming.stage = Stage::Encoding(Circumstances::of(((peer, incoming.holding), false), &snapshot, report));
        out.request(Purpose::ResponderCodes(peer, number), |request| WorkerOrder::Encode { request, snapshot, job });
    }

    /// Our codes, or what was wrong with the starter's scales.
    pub(crate) fn on_encoded(
        &mut self,
        now: Time,
        (peer, number): (PeerId, ExchangeNumber),
        result: Result<Encoded, Misbehaviour>,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        if self.gives_up_late(now, (peer, number), averaging, out) {
            return Ok(());
        }
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return Ok(());
        };
        let Stage::Encoding(about) = incoming.stage else { return Ok(()) };
        let Encoded { scales, codes, reference, norm } = match result {
            Ok(encoded) => encoded,
            Err(misbehaviour) => {
                self.fail((peer, number), ExchangeFailure::Misbehaved, averaging, out);
                return Err(misbehaviour);
            }
        };
        incoming.reference = reference;
        incoming.reply = Some(Outbound::new(peer, TransferHeader::ReplyCodes { exchange: number }, codes, out));
        incoming.reply_began = Some(now);
        incoming.stage = Stage::AwaitingCodes(scales, Circumstances { norm, ..about });
        incoming.merge_once_complete(now, (peer, number), averaging, out);
        Ok(())
    }

    /// Where trainer or worker have answered too late for the reply.
    fn gives_up_late(
        &mut self,
        now: Time,
        key: (PeerId, ExchangeNumber),
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> bool {
        let is_late = |incoming: &Incoming| {
            incoming.reply_until <= now && matches!(incoming.stage, Stage::TakingSnapshot(_) | Stage::Encoding(_))
        };
        let gives_up = self.exchanges.get(&key).is_some_and(is_late);
        if gives_up {
            self.fail(key, ExchangeFailure::DeadlinePassed, averaging, out);
        }
        gives_up
    }

    /// The starter's codes: from now on this exchange will be merged.
    pub(crate) fn on_codes(
        &mut self,
        now: Time,
        (peer, number): (PeerId, ExchangeNumber),
        codes: Payload,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return;
        }; // over, or never accepted
        if incoming.lacks_codes() {
            incoming.received = Some(codes);
            // The starter is there, and will need ours.
            incoming.sent_mut().for_each(|sent| sent.send_again(out));
            incoming.merge_once_complete(now, (peer, number), averaging, out);
        } else {
            incoming.answer_again(peer, out);
        }
    }

    /// Returns the fragment of the model that it has moved.
    pub(crate) fn on_merged(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        result: Result<Merged, Misbehaviour>,
        (averaging, reputation): (&mut Averaging, &mut Reputation),
        out: &mut Outbox,
    ) -> Result<Option<u16>, Misbehaviour> {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else { return Ok(None) };
        let Stage::Merging(about) = incoming.stage else { return Ok(None) };
        let merged = match result {
            Ok(merged) if incoming.terms.is_outdated(&merged, averaging.reach(incoming.terms.part)) => {
                self.fail((peer, number), ExchangeFailure::Outdated, averaging, out);
                return Ok(None);
            }
            Ok(merged) => merged,
            Err(misbehaviour) => {
                self.fail((peer, number), ExchangeFailure::Misbehaved, averaging, out);
                return Err(misbehaviour);
            }
        };
        let part = incoming.terms.part;
        let moves_model = !incoming.terms.is_probe() && part.vector == Vector::Model;
        averaging.complete(&merged, &incoming.terms, about, reputation, out);
        averaging.counters.completed_as_responder += u64::from(!incoming.terms.is_probe());
        incoming.stage = Stage::Answered;
        let header = TransferHeader::Merged { exchange: number, digest: merged.digest };
        incoming.news = Some(Outbound::new(peer, header, Payload::default(), out));
        incoming.forget_arrived();
        self.trim_reply_cache();
        Ok(moves_model.then_some(part.fragment.index))
    }

    pub(crate) fn on_deadline(&mut self, now: Time, averaging: &mut Averaging, out: &mut Outbox) {
        let expired = |incoming: &Incoming| incoming.deadline <= now && !incoming.is_at_work();
        for (peer, number) in self.those(expired) {
            match self.exchanges.get(&(peer, number)) {
                Some(incoming) if !incoming.is_answered() => averaging.fail(peer, ExchangeFailure::DeadlinePassed, out),
                Some(incoming) if !incoming.has_arrived() && !incoming.terms.is_probe() => {
                    averaging.counters.unconfirmed += 1;
                }
                _ => {}
            }
            self.finish(peer, number);
        }
        // Work ends by itself; its deadline only must not be asked for again and again.
        for incoming in self.exchanges.values_mut().filter(|incoming| incoming.deadline <= now) {
            incoming.deadline = now + averaging.timeout.limit();
        }
    }

    /// A reply of ours was confirmed, or did not get through: then a repeated proposal has it sent again.
    pub(crate) fn on_transfer_ended(
        &mut self,
        now: Time,
        (ended, finished): (TransferId, bool),
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        for (key, incoming) in &mut self.exchanges {
            incoming.on_transfer_ended(now, ended, finished);
            incoming.merge_once_complete(now, *key, averaging, out);
        }
    }

    /// The model is another one: codes of the old one are not merged any more.
    pub(crate) fn on_model_replaced(&mut self, averaging: &mut Averaging, out: &mut Outbox) {
        // A snapshot that is still to come is one of the new model.
        let is_of_old = |Incoming { stage, .. }: &Incoming| {
            matches!(stage, Stage::Encoding(_) | Stage::AwaitingCodes(..) | Stage::Merging(_))
        };
        for key in self.those(is_of_old) {
            self.fail(key, ExchangeFailure::ModelReplaced, averaging, out);
        }
    }

    /// This node holds other fragments of the model now.
    pub(crate) fn on_holding_changed(&mut self, averaging: &mut Averaging, out: &mut Outbox) {
        let is_lacked = |incoming: &Incoming| !incoming.is_answered() && !averaging.turns.holds(incoming.terms.part);
        for key in self.those(is_lacked) {
            self.fail(key, ExchangeFailure::NotHeld, averaging, out);
        }
    }

    fn those(&self, is_meant: impl Fn(&Incoming) -> bool) -> Vec<(PeerId, ExchangeNumber)> {
        self.exchanges.iter().filter(|(_, incoming)| is_meant(incoming)).map(|(key, _)| *key).collect()
    }

    /// Gives up the exchanges whose codes never came, once trainer and worker are done with them. Where they have come,
    /// the starter waits for our reply and asks for it when it is back.
    pub(crate) fn on_partner_lost(&mut self, peer: PeerId, averaging: &mut Averaging, out: &mut Outbox) {
        for _ in 0..self.give_up(peer, |incoming| incoming.lacks_codes() && !incoming.is_at_work()) {
            averaging.fail(peer, ExchangeFailure::PartnerLost, out);
        }
    }

    /// A driver could not take an order of this exchange.
    pub(crate) fn on_overload(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) {
        if self.exchanges.contains_key(&(peer, number)) {
            self.fail((peer, number), ExchangeFailure::Overloaded, averaging, out);
        }
    }

    fn fail(
        &mut self,
        (peer, number): (PeerId, ExchangeNumber),
        failure: ExchangeFailure,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) {
        averaging.fail(peer, failure, out);
        self.finish(peer, number);
    }

    fn finish(&mut self, peer: PeerId, number: ExchangeNumber) {
        self.exchanges.remove(&(peer, number));
        if self.finished.len() >= FINISHED_STARTERS_MAX && !self.finished.contains_key(&peer) {
            self.finished.pop_first();
        }
        let finished = self.finished.entry(peer).or_default();
        *finished = number.max(*finished);
    }

    /// Forgets replies beyond [`REPLY_CACHE_MAX`], those that have arrived first: the others are needed, and the
    /// connection that is kept open for them.
    fn trim_reply_cache(&mut self) {
        let answered = self.exchanges.iter().filter(|(_, incoming)| incoming.is_answered());
        let mut answered: Vec<_> =
            answered.map(|(key, incoming)| (!incoming.has_arrived(), incoming.deadline, *key)).collect();
        answered.sort();
        let surplus = answered.len().saturating_sub(REPLY_CACHE_MAX);
        for (.., (peer, number)) in &answered[..surplus] {
            self.finish(*peer, *number);
        }
    }
}

/// w_i / (w_i + w_j); a half where one of them is not known yet.
fn share((starter, responder): (f32, f32)) -> f32 {
    if starter > 0.0 && responder > 0.0 { starter / (starter + responder) } else { 0.5 }
}

#[cfg(test)]
mod tests;
