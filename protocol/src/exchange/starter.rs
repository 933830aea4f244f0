//! The exchange that this node starts: at most one at a time.

use super::{Averaging, Terms, screen};
use crate::bounds::*;
use crate::effect::{Effect, ExchangeFailure, Notice, TransferId};
use crate::event::Misbehaviour;
use crate::membership::Membership;
use crate::message::{Accept, ExchangeNumber, Message, Propose, Reject, TransferHeader};
use crate::numerics::{CodeWidth, EncodeJob, MergeJob, MergeRole, Merged};
use crate::outbox::{Outbox, Purpose};
use crate::part::{Part, Selection};
use crate::peer::PeerId;
use crate::random::{Generator, RngExt, stream};
use crate::time::Time;
use crate::{Payload, Snapshot};

/// The sub-machine of own exchanges.
#[derive(Debug)]
pub(crate) struct Starter {
    random: Generator,
    next_number: ExchangeNumber,
    /// An exchange is due once the trainer has done this many steps.
    due_at_steps: u64,
    /// Partners tried for the exchange that is due.
    tried: u32,
    outgoing: Option<Outgoing>,
}

/// The exchange under way.
#[derive(Debug)]
struct Outgoing {
    number: ExchangeNumber,
    partner: PeerId,
    width: CodeWidth,
    nonce: u64,
    propose: Propose,
    /// The first answer: a later one must say the same.
    accept: Option<Accept>,
    repeat_at: Time,
    deadline: Time,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Waits for ACCEPT.
    Proposed,
    /// Waits for the trainer.
    TakingSnapshot(Terms),
    /// Waits for a worker.
    Encoding(Terms, Snapshot),
    /// Waits for the partner's codes.
    AwaitingReply {
        terms: Terms,
        snapshot: Snapshot,
        payload: Payload,
        /// `None` once the partner has confirmed it.
        transfer: Option<TransferId>,
    },
    /// Waits for a worker.
    Merging(Terms),
}

impl Starter {
    pub(crate) fn new(me: PeerId, seed: u64, first_number: ExchangeNumber) -> Starter {
        let random = stream(seed, "own exchanges", &[me.as_bytes()]);
        Starter { random, next_number: first_number, due_at_steps: 0, tried: 0, outgoing: None }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.outgoing.is_none()
    }

    pub(crate) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.partner == peer)
    }

    /// Whether a proposal of this peer crosses one of ours to it, and ours is to go first: already accepted, or of the
    /// smaller peer id. Both at once would swap the two models instead of averaging them.
    pub(crate) fn goes_first(&self, me: PeerId, peer: PeerId) -> bool {
        let crossing = self.outgoing.as_ref().filter(|outgoing| outgoing.partner == peer);
        crossing.is_some_and(|outgoing| !matches!(outgoing.stage, Stage::Proposed) || me < peer)
    }

    pub(crate) fn is_due(&self, steps: u64) -> bool {
        self.outgoing.is_none() && steps >= self.due_at_steps
    }

    /// Sets the next due step: `interval` ahead, within ±20 %, so that partners do not fall into step.
    pub(crate) fn schedule(&mut self, steps: u64, interval: u32) {
        let jittered = f64::from(interval) * self.random.random_range(0.8..1.2);
        self.due_at_steps = steps + (jittered.round() as u64).max(1);
        self.tried = 0;
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.outgoing.as_ref().map(|outgoing| outgoing.deadline.min(outgoing.repeat_at))
    }

    /// Proposes an exchange to one of `partners`; `false` where nobody can be asked.
    pub(crate) fn start(&mut self, now: Time, averaging: &Averaging, partners: &[PeerId], out: &mut Outbox) -> bool {
        if partners.is_empty() || self.outgoing.is_some() || self.tried >= PARTNERS_TRIED_MAX {
            return false;
        }
        self.tried += 1;
        let partner = partners[self.random.random_range(0..partners.len())];
        let width = if averaging.steps.is_some() { CodeWidth::Narrow } else { CodeWidth::Wide };
        let nonce = self.random.random();
        let number = self.next_number;
        self.next_number += 1;
        let propose = Propose {
            exchange: number,
            part: Part::MODEL,
            nonce,
            bits: width.bits(),
            standing: averaging.standing(),
            deadline_ms: u32::try_from(averaging.timeout.as_millis()).unwrap_or(u32::MAX),
        };
        out.send(partner, Message::Propose(propose.clone()));
        self.outgoing = Some(Outgoing {
            number,
            partner,
            width,
            nonce,
            propose,
            accept: None,
            repeat_at: now + PROPOSAL_REPEAT_PERIOD,
            deadline: now + averaging.timeout,
            stage: Stage::Proposed,
        });
        true
    }

    /// # Errors
    /// When the terms are out of range, or others than before; the exchange is then over.
    pub(crate) fn on_accept(
        &mut self,
        peer: PeerId,
        accept: &Accept,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.is(peer, accept.exchange)) else {
            return Ok(()); // too late, or for an exchange that is over
        };
        if let Err(misbehaviour) = screen_accept(accept) {
            self.fail(ExchangeFailure::Misbehaved, averaging, out);
            return Err(misbehaviour);
        }
        let is_repeated = outgoing.accept.as_ref() == Some(accept);
        match &outgoing.stage {
            Stage::Proposed => {
                let (own, partner) = (&outgoing.propose.standing, &accept.standing);
                let gamma = averaging.gossip.gamma;
                let terms =
                    Terms::new(outgoing.width, outgoing.nonce, gamma, accept.starter_share, own, partner, false);
                outgoing.accept = Some(accept.clone());
                outgoing.stage = Stage::TakingSnapshot(terms);
                let purpose = Purpose::StarterSnapshot(outgoing.number);
                out.request(purpose, |request| Effect::TakeSnapshot {
                    request,
                    selection: Selection::Part(Part::MODEL),
                });
            }
            // Its reply decides: a responder that has restarted since computes another digest.
            Stage::Merging(_) => {}
            // The partner has lost its memory, and what it was sent with it.
            _ if !is_repeated => self.fail(ExchangeFailure::PartnerLost, averaging, out),
            // The partner still waits for codes that were sent: they were lost on the way.
            Stage::AwaitingReply { transfer: None, .. } => outgoing.send_codes(out),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether another partner should be tried.
    pub(crate) fn on_reject(
        &mut self,
        now: Time,
        peer: PeerId,
        reject: &Reject,
        averaging: &mut Averaging,
        membership: &mut Membership,
        out: &mut Outbox,
    ) -> bool {
        // Once accepted, an exchange ends by its reply or its deadline: a late refusal of a repeated proposal must not
        // undo what the partner may have merged.
        let is_refused =
            |outgoing: &Outgoing| outgoing.is(peer, reject.exchange) && matches!(outgoing.stage, Stage::Proposed);
        if !self.outgoing.as_ref().is_some_and(is_refused) {
            return false;
        }
        let wait = std::time::Duration::from_millis(u64::from(reject.retry_after_ms)).min(RETRY_AFTER_MAX);
        membership.avoid(peer, now + wait);
        self.fail(ExchangeFailure::Rejected, averaging, out);
        true
    }

    pub(crate) fn on_snapshot(
        &mut self,
        number: ExchangeNumber,
        snapshot: Snapshot,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.number == number) else {
            return;
        };
        let Stage::TakingSnapshot(terms) = outgoing.stage else {
            return;
        };
        // The steps may be newer than the proposal, but its width stands.
        let steps = averaging.steps.clone().filter(|_| terms.width == CodeWidth::Narrow);
        let job = EncodeJob { nonce: terms.nonce, steps };
        outgoing.stage = Stage::Encoding(terms, snapshot.clone());
        out.request(Purpose::StarterCodes(number), |request| Effect::Encode { request, snapshot, job });
    }

    pub(crate) fn on_encoded(&mut self, number: ExchangeNumber, payload: Payload, out: &mut Outbox) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.number == number) else {
            return;
        };
        let Stage::Encoding(terms, snapshot) = &outgoing.stage else {
            return;
        };
        let (terms, snapshot) = (*terms, snapshot.clone());
        outgoing.stage = Stage::AwaitingReply { terms, snapshot, payload, transfer: None };
        outgoing.send_codes(out);
    }

    pub(crate) fn on_transfer_finished(&mut self, finished: TransferId) {
        if let Some(Outgoing { stage: Stage::AwaitingReply { transfer, .. }, .. }) = &mut self.outgoing
            && *transfer == Some(finished)
        {
            *transfer = None;
        }
    }

    /// The next repeated proposal brings an ACCEPT, and with it another try.
    pub(crate) fn on_transfer_failed(&mut self, failed: TransferId) {
        self.on_transfer_finished(failed);
    }

    pub(crate) fn on_reply(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        digest: u64,
        received: Payload,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.is(peer, number)) else {
            return;
        };
        let Stage::AwaitingReply { terms, snapshot, payload, .. } = &outgoing.stage else {
            return;
        };
        let (terms, snapshot) = (*terms, snapshot.clone());
        let role = MergeRole::Starter { proposal: payload.clone(), digest };
        let job = terms.merge_job(role, received, averaging);
        outgoing.stage = Stage::Merging(terms);
        out.request(Purpose::StarterMerge(number), |request| Effect::Merge { request, snapshot, job });
    }

    pub(crate) fn on_merged(
        &mut self,
        number: ExchangeNumber,
        result: Result<Merged, Misbehaviour>,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Option<(PeerId, Misbehaviour)> {
        let outgoing = self.outgoing.take_if(|outgoing| outgoing.number == number)?;
        let Stage::Merging(terms) = outgoing.stage else {
            return None;
        };
        match result {
            Ok(merged) => {
                averaging.complete(&merged, &terms, outgoing.partner, out);
                averaging.counters.completed_as_starter += 1;
                None
            }
            Err(misbehaviour) => {
                averaging.fail(outgoing.partner, ExchangeFailure::Misbehaved, out);
                Some((outgoing.partner, misbehaviour))
            }
        }
    }

    pub(crate) fn on_deadline(&mut self, now: Time, averaging: &mut Averaging, out: &mut Outbox) {
        let Some(outgoing) = self.outgoing.as_mut() else { return };
        if outgoing.deadline <= now && matches!(outgoing.stage, Stage::Merging(_)) {
            // The partner has merged, and the worker always answers.
            outgoing.deadline = now + averaging.timeout;
        } else if outgoing.deadline <= now {
            self.fail(ExchangeFailure::DeadlinePassed, averaging, out);
        } else if outgoing.repeat_at <= now {
            outgoing.repeat_at = now + PROPOSAL_REPEAT_PERIOD;
            if matches!(outgoing.stage, Stage::Proposed | Stage::AwaitingReply { transfer: None, .. }) {
                out.send(outgoing.partner, Message::Propose(outgoing.propose.clone()));
            }
        }
    }

    pub(crate) fn on_partner_lost(&mut self, peer: PeerId, averaging: &mut Averaging, out: &mut Outbox) {
        // A reply that has arrived needs no partner any more.
        let lost = |outgoing: &Outgoing| outgoing.partner == peer && !matches!(outgoing.stage, Stage::Merging(_));
        if self.outgoing.as_ref().is_some_and(lost) {
            self.fail(ExchangeFailure::PartnerLost, averaging, out);
        }
    }

    /// A driver could not take an order of exchange `number`.
    pub(crate) fn on_overload(&mut self, number: ExchangeNumber, averaging: &mut Averaging, out: &mut Outbox) {
        if self.outgoing.as_ref().is_some_and(|outgoing| outgoing.number == number) {
            self.fail(ExchangeFailure::Overloaded, averaging, out);
        }
    }

    fn fail(&mut self, failure: ExchangeFailure, averaging: &mut Averaging, out: &mut Outbox) {
        if let Some(outgoing) = self.outgoing.take() {
            averaging.fail(outgoing.partner, failure, out);
        }
    }
}

fn screen_accept(accept: &Accept) -> Result<(), Misbehaviour> {
    screen(&accept.standing)?;
    // Speeds count within a factor of WEIGHT_CLAMP of a median, so no share is more lopsided than its square.
    let least = 0.99 / (1.0 + WEIGHT_CLAMP * WEIGHT_CLAMP);
    if (least..=1.0 - least).contains(&accept.starter_share) { Ok(()) } else { Err(Misbehaviour::OutOfRange("share")) }
}

impl Outgoing {
    fn is(&self, peer: PeerId, number: ExchangeNumber) -> bool {
        self.partner == peer && self.number == number
    }

    fn send_codes(&mut self, out: &mut Outbox) {
        let header = TransferHeader::ProposalCodes { exchange: self.number };
        if let Stage::AwaitingReply { payload, transfer, .. } = &mut self.stage {
            *transfer = Some(out.transfer(self.partner, header, payload.clone()));
        }
    }
}

impl Terms {
    pub(super) fn merge_job(&self, role: MergeRole, received: Payload, averaging: &Averaging) -> MergeJob {
        MergeJob {
            role,
            received,
            width: self.width,
            nonce: self.nonce,
            gamma: averaging.gossip.gamma,
            starter_share: self.starter_share,
            clip: self.clip,
            step_fraction: averaging.gossip.step_fraction,
            steps: averaging.steps.clone(),
        }
    }
}

impl Averaging {
    pub(super) fn complete(&mut self, merged: &Merged, terms: &Terms, partner: PeerId, out: &mut Outbox) {
        self.on_merged(merged, terms);
        out.apply(Part::MODEL, merged.correction.clone(), terms.progress_shift);
        out.notice(Notice::ExchangeCompleted {
            partner,
            distance: merged.distance,
            clip_scale: merged.clip_scale,
            masked_blocks: merged.masked_blocks,
            coarse: terms.width == CodeWidth::Wide,
        });
    }

    pub(super) fn fail(&mut self, partner: PeerId, failure: ExchangeFailure, out: &mut Outbox) {
        *self.counters.failed.entry(failure).or_default() += 1;
        out.notice(Notice::ExchangeFailed { partner, failure });
    }
}
