//! Exchanges that others start with this node: a few at a time, each merged exactly once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::averaging::{Averaging, Circumstances, longest_deadline};
use super::terms::Terms;
use crate::bounds::*;
use crate::effect::{Effect, ExchangeFailure, TransferId};
use crate::event::{Misbehaviour, TrainingReport};
use crate::message::{Accept, ExchangeNumber, Message, Propose, Reject, RejectReason, TransferHeader};
use crate::numerics::{MergeRole, Merged};
use crate::outbox::{Outbox, Purpose};
use crate::part::Selection;
use crate::peer::PeerId;
use crate::time::Time;
use crate::{Payload, Snapshot};

/// The sub-machine of answered exchanges.
#[derive(Debug)]
pub(crate) struct Responder {
    /// At most [`RESPONDING_MAX`] under way and [`REPLY_CACHE_MAX`] answered.
    exchanges: BTreeMap<(PeerId, ExchangeNumber), Incoming>,
    /// The highest number that is over, by starter: numbers grow, so nothing at or below it is new.
    finished: BTreeMap<PeerId, ExchangeNumber>,
    /// The longest that a starter may have an exchange open here.
    deadline_max: Duration,
}

/// What the node as a whole has to say about a proposal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    /// Why no proposal at all is taken now.
    pub(crate) refuse: Option<RejectReason>,
    /// The starter's declared speed and our own, clamped, in tokens a second.
    pub(crate) weights: (f32, f32),
}

#[derive(Debug)]
struct Incoming {
    terms: Terms,
    accept: Accept,
    deadline: Time,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the starter's codes.
    Expecting,
    /// Waits for the trainer.
    TakingSnapshot(Payload),
    /// Waits for a worker.
    Merging(Circumstances),
    /// Merged; the reply is kept in case it gets lost.
    Answered {
        reply: Payload,
        digest: u64,
        /// The reply on its way, until the starter has confirmed it or it has failed.
        transfer: Option<TransferId>,
    },
}

impl Responder {
    /// `parameters`: of the whole model.
    pub(crate) fn new(parameters: usize) -> Responder {
        let deadline_max = longest_deadline(parameters);
        Responder { exchanges: BTreeMap::new(), finished: BTreeMap::new(), deadline_max }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.exchanges.values().map(|incoming| incoming.deadline).min()
    }

    /// Exchanges that still need this node's trainer or worker.
    pub(crate) fn under_way(&self) -> usize {
        self.exchanges.values().filter(|incoming| !matches!(incoming.stage, Stage::Answered { .. })).count()
    }

    /// Whether a reply is still on its way to its starter.
    pub(crate) fn is_replying(&self) -> bool {
        let replying = |incoming: &Incoming| matches!(incoming.stage, Stage::Answered { transfer: Some(_), .. });
        self.exchanges.values().any(replying)
    }

    /// Whether an exchange that this peer started is not merged yet.
    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        let exchanges = self.exchanges.range((peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX));
        exchanges.into_iter().any(|(_, incoming)| !matches!(incoming.stage, Stage::Answered { .. }))
    }

    /// Whether an exchange that this peer started, or our reply to it, may still need its connection.
    pub(crate) fn may_need(&self, peer: PeerId) -> bool {
        self.exchanges.range((peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX)).next().is_some()
    }

    /// Exchanges under way, without those that a new proposal of `peer` replaces.
    fn others_under_way(&self, peer: PeerId) -> usize {
        let replaced = |key: &(PeerId, ExchangeNumber), incoming: &Incoming| {
            key.0 == peer && matches!(incoming.stage, Stage::Expecting)
        };
        let replaced = self.exchanges.iter().filter(|(key, incoming)| replaced(key, incoming)).count();
        self.under_way() - replaced
    }

    /// The highest number heard from a starter: anything up to it is a late duplicate.
    fn newest_number(&self, peer: PeerId) -> Option<ExchangeNumber> {
        let range = (peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX);
        let here = self.exchanges.range(range).next_back().map(|((_, number), _)| *number);
        here.max(self.finished.get(&peer).copied())
    }

    /// A starter has one exchange at a time: with a new one it has given up those whose codes never came.
    fn drop_superseded(&mut self, peer: PeerId) {
        let range = (peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX);
        let expecting = self.exchanges.range(range).filter(|(_, incoming)| matches!(incoming.stage, Stage::Expecting));
        let numbers: Vec<ExchangeNumber> = expecting.map(|((_, number), _)| *number).collect();
        numbers.into_iter().for_each(|number| self.finish(peer, number));
    }

    /// Accepts or rejects a proposal; answers a repeated one as before.
    pub(crate) fn on_propose(
        &mut self,
        now: Time,
        peer: PeerId,
        propose: &Propose,
        admission: Admission,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        if let Some(incoming) = self.exchanges.get_mut(&(peer, propose.exchange)) {
            match &incoming.stage {
                Stage::Expecting => out.send(peer, Message::Accept(incoming.accept.clone())),
                Stage::Answered { .. } => incoming.send_reply(peer, propose.exchange, out),
                Stage::TakingSnapshot(_) | Stage::Merging(_) => {} // the answer is on its way
            }
            return;
        }
        let width = averaging.accepted_width(propose.part, propose.bits);
        let is_over = self.newest_number(peer).is_some_and(|newest| propose.exchange <= newest);
        let reason = match width {
            _ if is_over => Some(RejectReason::Over),
            None => Some(RejectReason::Unacceptable),
            Some(_) if !averaging.exchanges(propose.part) => Some(RejectReason::Unacceptable),
            Some(_) if admission.refuse.is_none() && self.others_under_way(peer) >= RESPONDING_MAX => {
                Some(RejectReason::Busy)
            }
            Some(_) => admission.refuse,
        };
        let (Some(width), None) = (width, reason) else {
            let reason = reason.unwrap_or(RejectReason::Unacceptable);
            // A rest lasts for hours: as long as a peer may ask for.
            let wait = if reason == RejectReason::Resting { RETRY_AFTER_MAX } else { BUSY_RETRY };
            let retry_after_ms = wait.as_millis() as u32;
            out.send(peer, Message::Reject(Reject { exchange: propose.exchange, reason, retry_after_ms }));
            return;
        };
        self.drop_superseded(peer);
        let mut standing = averaging.standing(propose.part, peer);
        if propose.standing.gamma == 0.0 {
            standing.clip = averaging.reach(propose.part);
        }
        let accept = Accept { exchange: propose.exchange, starter_share: share(admission.weights), standing };
        let terms = Terms::of_responder(propose, width, &accept);
        let patience = Duration::from_millis(u64::from(propose.deadline_ms)).min(self.deadline_max);
        out.send(peer, Message::Accept(accept.clone()));
        let incoming = Incoming { terms, accept, deadline: now + patience, stage: Stage::Expecting };
        self.exchanges.insert((peer, propose.exchange), incoming);
    }

    /// The starter's codes: from now on this exchange will be merged.
    pub(crate) fn on_codes(&mut self, peer: PeerId, number: ExchangeNumber, payload: Payload, out: &mut Outbox) {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return;
        }; // over, or never accepted
        match &incoming.stage {
            Stage::Expecting => {
                incoming.stage = Stage::TakingSnapshot(payload);
                let selection = Selection::Part(incoming.terms.part);
                out.request(Purpose::ResponderSnapshot(peer, number), |request| Effect::TakeSnapshot {
                    request,
                    selection,
                });
            }
            Stage::Answered { .. } => incoming.send_reply(peer, number, out),
            Stage::TakingSnapshot(_) | Stage::Merging(_) => {}
        }
    }

    pub(crate) fn on_snapshot(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        snapshot: Snapshot,
        report: &TrainingReport,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return;
        };
        let Stage::TakingSnapshot(payload) = &incoming.stage else {
            return;
        };
        let job = incoming.terms.merge_job(MergeRole::Responder, payload.clone(), averaging);
        let TrainingReport { steps: snapshot_steps, local_progress, .. } = *report;
        incoming.stage = Stage::Merging(Circumstances { partner: peer, snapshot_steps, local_progress });
        out.request(Purpose::ResponderMerge(peer, number), |request| Effect::Merge { request, snapshot, job });
    }

    pub(crate) fn on_merged(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        result: Result<Merged, Misbehaviour>,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        let Some(incoming) = self.exchanges.get_mut(&(peer, number)) else {
            return Ok(());
        };
        let Stage::Merging(about) = incoming.stage else { return Ok(()) };
        let merged = match result {
            Ok(merged) => merged,
            Err(misbehaviour) => {
                self.finish(peer, number);
                averaging.fail(peer, ExchangeFailure::Misbehaved, out);
                return Err(misbehaviour);
            }
        };
        let reply = merged.reply.clone().expect("a responder's merge makes a reply");
        averaging.complete(&merged, &incoming.terms, about, out);
        averaging.counters.completed_as_responder += u64::from(!incoming.terms.is_probe());
        incoming.stage = Stage::Answered { reply, digest: merged.digest, transfer: None };
        incoming.send_reply(peer, number, out);
        self.trim_reply_cache();
        Ok(())
    }

    pub(crate) fn on_deadline(&mut self, now: Time, averaging: &mut Averaging, out: &mut Outbox) {
        let expired = |incoming: &Incoming| incoming.deadline <= now && !matches!(incoming.stage, Stage::Merging(_));
        let over: Vec<_> =
            self.exchanges.iter().filter(|(_, incoming)| expired(incoming)).map(|(key, _)| *key).collect();
        for (peer, number) in over {
            if !self.is_answered(peer, number) {
                averaging.fail(peer, ExchangeFailure::DeadlinePassed, out);
            }
            self.finish(peer, number);
        }
        // A merge ends by itself; its deadline only must not be asked for again and again.
        for incoming in self.exchanges.values_mut().filter(|incoming| incoming.deadline <= now) {
            incoming.deadline = now + averaging.patience.limit();
        }
    }

    /// A reply of ours was confirmed, or did not get through: a repeated proposal may have it sent again.
    pub(crate) fn on_transfer_ended(&mut self, ended: TransferId) {
        for incoming in self.exchanges.values_mut() {
            if let Stage::Answered { transfer, .. } = &mut incoming.stage
                && *transfer == Some(ended)
            {
                *transfer = None;
            }
        }
    }

    /// Gives up what the starter has given up as well: exchanges whose codes never came. Once they have come, the
    /// starter waits for our reply and asks for it when it is back.
    pub(crate) fn on_partner_lost(&mut self, peer: PeerId, averaging: &mut Averaging, out: &mut Outbox) {
        let waiting: Vec<ExchangeNumber> = self
            .exchanges
            .range((peer, ExchangeNumber::MIN)..=(peer, ExchangeNumber::MAX))
            .filter(|(_, incoming)| matches!(incoming.stage, Stage::Expecting))
            .map(|((_, number), _)| *number)
            .collect();
        for number in waiting {
            averaging.fail(peer, ExchangeFailure::PartnerLost, out);
            self.finish(peer, number);
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
            averaging.fail(peer, ExchangeFailure::Overloaded, out);
            self.finish(peer, number);
        }
    }

    fn is_answered(&self, peer: PeerId, number: ExchangeNumber) -> bool {
        let incoming = self.exchanges.get(&(peer, number));
        incoming.is_some_and(|incoming| matches!(incoming.stage, Stage::Answered { .. }))
    }

    fn finish(&mut self, peer: PeerId, number: ExchangeNumber) {
        self.exchanges.remove(&(peer, number));
        if self.finished.len() >= FINISHED_STARTERS_MAX && !self.finished.contains_key(&peer) {
            self.finished.pop_first();
        }
        let finished = self.finished.entry(peer).or_default();
        *finished = number.max(*finished);
    }

    /// Forgets replies beyond [`REPLY_CACHE_MAX`]: those that have arrived before those on their way, whose connection is
    /// kept open for them.
    fn trim_reply_cache(&mut self) {
        let mut answered: Vec<(bool, Time, (PeerId, ExchangeNumber))> = Vec::new();
        for (key, incoming) in &self.exchanges {
            if let Stage::Answered { transfer, .. } = &incoming.stage {
                answered.push((transfer.is_some(), incoming.deadline, *key));
            }
        }
        answered.sort();
        let surplus = answered.len().saturating_sub(REPLY_CACHE_MAX);
        for (.., (peer, number)) in &answered[..surplus] {
            self.finish(*peer, *number);
        }
    }
}

impl Incoming {
    /// Sends the reply unless it is on its way already.
    fn send_reply(&mut self, peer: PeerId, exchange: ExchangeNumber, out: &mut Outbox) {
        if let Stage::Answered { reply, digest, transfer: transfer @ None } = &mut self.stage {
            let header = TransferHeader::ReplyCodes { exchange, digest: *digest };
            *transfer = Some(out.transfer(peer, header, reply.clone()));
        }
    }
}

/// w_i / (w_i + w_j); a half where one of them is not known yet.
fn share((starter, responder): (f32, f32)) -> f32 {
    if starter > 0.0 && responder > 0.0 { starter / (starter + responder) } else { 0.5 }
}
