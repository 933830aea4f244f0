//! The exchange that this node starts: at most one at a time.

mod outgoing;

use super::averaging::{Averaging, Circumstances};
use super::outbound::{Correspondence, Outbound};
use super::outcome::{Ended, Outcome, Probed, Way};
use super::silent::SilentPartners;
use super::terms::{Terms, screen_accept};
use super::timeout::{TimeoutEstimator, answer_timeout};
use crate::bounds::*;
use crate::effect::{TrainerOrder, TransferId, WorkerOrder};
use crate::event::TrainingReport;
use crate::fragments::Holding;
use crate::message::{Accept, ExchangeNumber, Message, Propose, Reject, RejectReason, TransferHeader};
use crate::misbehaviour::Misbehaviour;
use crate::notice::ExchangeFailure;
use crate::numerics::{CodeWidth, Encoded, MergeRole, Merged, Reference};
use crate::outbox::{Outbox, Purpose};
use crate::part::{Part, Selection};
use crate::peer::PeerId;
use crate::random::{Generator, RngExt, stream};
use crate::reputation::Reputation;
use crate::time::Time;
use crate::{Payload, Snapshot};
use outgoing::{Outgoing, Stage};

/// The sub-machine of own exchanges.
#[derive(Debug)]
pub(crate) struct Starter {
    random: Generator,
    next_number: ExchangeNumber,
    /// What is skipped when the next number turns out to be over.
    skip: u64,
    /// An exchange is due once the trainer has done this many steps.
    due_at_steps: u64,
    /// Own rounds so far.
    round: u64,
    /// Partners tried for the exchange that is due.
    tried: u32,
    /// How long partners take to answer a proposal.
    answers: TimeoutEstimator,
    silent: SilentPartners,
    outgoing: Option<Outgoing>,
    /// What became of the last exchange, until the node asks.
    ended: Option<Ended>,
}

impl Starter {
    pub(crate) fn new(me: PeerId, seed: u64, first_number: ExchangeNumber) -> Starter {
        Starter {
            random: stream(seed, "own exchanges", &[me.as_bytes()]),
            next_number: first_number,
            skip: NUMBERS_SKIPPED,
            due_at_steps: 0,
            round: 0,
            tried: 0,
            answers: answer_timeout(),
            silent: SilentPartners::default(),
            outgoing: None,
            ended: None,
        }
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
    pub(crate) fn schedule(&mut self, steps: u64, interval: f64) {
        let jittered = interval * self.random.random_range(0.8..1.2);
        self.due_at_steps = steps + (jittered.round() as u64).max(1);
        self.round += 1;
        self.tried = 0;
    }

    /// The model is another one: what an exchange under way would change is no longer there.
    pub(crate) fn on_model_replaced(&mut self, averaging: &mut Averaging, out: &mut Outbox) {
        self.fail(ExchangeFailure::ModelReplaced, averaging, out);
        self.ended = None;
    }

    /// This node holds other fragments of the model now.
    pub(crate) fn on_holding_changed(&mut self, averaging: &mut Averaging, out: &mut Outbox) {
        if self.outgoing.as_ref().is_some_and(|outgoing| !averaging.turns.holds(outgoing.propose.part)) {
            self.fail(ExchangeFailure::NotHeld, averaging, out);
            self.ended = None;
        }
    }

    /// As many partners may be tried as for a new round.
    pub(crate) fn begin_anew(&mut self) {
        self.tried = 0;
    }

    /// Own rounds so far, and whether somebody was asked in this one.
    pub(crate) fn round(&self) -> (u64, bool) {
        (self.round, self.tried > 0)
    }

    /// Of the last exchange, once.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.outgoing.as_ref().map(|outgoing| outgoing.deadline.min(outgoing.repeat_at))
    }

    /// Leaves out who was asked and said nothing lately, unless that is everybody.
    pub(crate) fn pass_over_silent(&self, now: Time, partners: &mut Vec<(PeerId, Holding)>) {
        self.silent.pass_over(now, partners);
    }

    /// Proposes to exchange `part` with one of `partners`; `false` where nobody can be asked.
    pub(crate) fn start(
        &mut self,
        now: Time,
        (part, way): (Part, Way),
        (averaging, reputation): (&Averaging, &Reputation),
        partners: &[(PeerId, Holding)],
        out: &mut Outbox,
    ) -> bool {
        if partners.is_empty() || self.outgoing.is_some() || self.tried >= PARTNERS_TRIED_MAX {
            return false;
        }
        self.tried += 1;
        let (partner, holding) = partners[self.random.random_range(0..partners.len())];
        let is_probe = way == Way::Probe;
        let width = match way {
            // The grid may be that of a model that was replaced.
            Way::Probe => CodeWidth::Sixteen,
            Way::Grid => averaging.width(part),
            Way::Link => CodeWidth::One,
        };
        let reference = averaging.links.reference(partner, part).filter(|_| way == Way::Link);
        let number = self.next_number;
        self.next_number = self.next_number.saturating_add(1);
        let mut standing = averaging.standing(part, reputation.influence(partner));
        if is_probe {
            standing.gamma = 0.0;
        }
        // A joiner waits for its check, and another peer may make it.
        let limit = if is_probe { averaging.timeout.short_limit() } else { averaging.timeout.limit() };
        let limit = limit.saturating_mul(self.silent.patience(partner)).min(averaging.timeout.ceiling());
        let propose = Propose {
            exchange: number,
            part,
            nonce: self.random.random(),
            bits: width.bits(),
            reference: reference.as_ref().map_or(0, Reference::digest),
            standing,
            deadline_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
            step_left_max_ms: averaging.step_left_max_ms(part, way),
        };
        out.send(partner, Message::Propose(propose.clone()));
        self.outgoing = Some(Outgoing {
            number,
            partner,
            holding,
            width,
            propose,
            began: now,
            began_at_steps: averaging.training.steps,
            repeats: 0,
            reference,
            accept: None,
            repeat_at: now + self.answers.limit(),
            deadline: now + limit,
            stage: Stage::Proposed,
        });
        true
    }

    /// # Errors
    /// When the terms are out of range, or others than before; the exchange is then over.
    pub(crate) fn on_accept(
        &mut self,
        now: Time,
        peer: PeerId,
        accept: &Accept,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Result<(), Misbehaviour> {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.is(peer, accept.exchange)) else {
            return Ok(()); // too late, or for an exchange that is over
        };
        if let Err(misbehaviour) = screen_accept(&outgoing.propose, accept) {
            self.fail(ExchangeFailure::Misbehaved, averaging, out);
            return Err(misbehaviour);
        }
        let is_as_before = outgoing.accept.as_ref() == Some(accept);
        match &outgoing.stage {
            Stage::Proposed => {
                // An answer to a repeated proposal tells no time: it may be the answer to the first (Karn's rule).
                if outgoing.repeats == 0 {
                    self.answers.record(now - outgoing.began);
                }
                let terms = Terms::of_starter(&outgoing.propose, outgoing.width, accept);
                outgoing.accept = Some(accept.clone());
                if accept.reference == 0 {
                    outgoing.reference = None;
                }
                self.skip = NUMBERS_SKIPPED;
                outgoing.stage = Stage::TakingSnapshot(terms);
                let selection = Selection::Part(terms.part);
                let purpose = Purpose::StarterSnapshot(outgoing.number);
                out.request(purpose, |request| TrainerOrder::TakeSnapshot { request, selection });
            }
            // The partner has merged; an answer to a repeated proposal changes nothing any more.
            Stage::Merging(..) => {}
            // The partner has lost its memory, and what it was sent with it.
            _ if !is_as_before => self.fail(ExchangeFailure::PartnerLost, averaging, out),
            _ => {}
        }
        // The partner still waits for what was sent: it was lost on the way.
        if let Some(Outgoing { stage: Stage::AwaitingReply(.., correspondence), .. }) = &mut self.outgoing {
            correspondence.sent_mut().into_iter().for_each(|sent| sent.send_again(out));
        }
        Ok(())
    }

    /// Returns how long the partner wants to be left alone.
    pub(crate) fn on_reject(
        &mut self,
        now: Time,
        peer: PeerId,
        reject: &Reject,
        averaging: &mut Averaging,
        out: &mut Outbox,
    ) -> Option<std::time::Duration> {
        // Once accepted, an exchange ends by its reply or its deadline: a late refusal of a repeated proposal must not
        // undo what the partner may have merged.
        let outgoing = self.outgoing.as_mut().filter(|outgoing| outgoing.is(peer, reject.exchange))?;
        if !matches!(outgoing.stage, Stage::Proposed) {
            // What it has forgotten it will not send; what it has sent may still be on its way.
            if reject.reason == RejectReason::Over {
                outgoing.deadline = outgoing.deadline.min(now + EXCHANGE_TIMEOUT_MIN);
            }
            return None;
        }
        if reject.reason == RejectReason::Over {
            self.next_number = self.next_number.saturating_add(self.skip);
            self.skip = (2 * self.skip).min(NUMBERS_SKIPPED_MAX);
        }
        self.fail(ExchangeFailure::Rejected, averaging, out);
        Some(std::time::Duration::from_millis(u64::from(reject.retry_after_ms)).min(RETRY_AFTER_MAX))
    }

    pub(crate) fn on_snapshot(
        &mut self,
        number: ExchangeNumber,
        snapshot: Snapshot,
        report: &TrainingReport,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.number == number) else {
            return;
        };
        let Stage::TakingSnapshot(terms) = outgoing.stage else {
            return;
        };
        let job = terms.starter_encodes(averaging.scales(terms.part), outgoing.reference.clone());
        outgoing.stage =
            Stage::Encoding(terms, Circumstances::of(((outgoing.partner, outgoing.holding), true), &snapshot, report));
        out.request(Purpose::StarterCodes(number), |request| WorkerOrder::Encode { request, snapshot, job });
    }

    pub(crate) fn on_encoded(
        &mut self,
        number: ExchangeNumber,
        result: Result<Encoded, Misbehaviour>,
        out: &mut Outbox,
    ) {
        let Some(outgoing) = self.outgoing.as_mut().filter(|outgoing| outgoing.number == number) else {
            return;
        };
        let Stage::Encoding(terms, about) = outgoing.stage else {
            return;
        };
        let Encoded { scales, codes, reference, norm } = result.expect("a starter's scales are its own");
        let (to, exchange) = (outgoing.partner, number);
        // The scales first: with them the partner encodes while the codes are on their way.
        let scales = Outbound::new(to, TransferHeader::Scales { exchange }, scales, out);
        let codes = Outbound::new(to, TransferHeader::ProposalCodes { exchange }, codes, out);
        let correspondence = Correspondence { reference, scales, codes, reply: None, digest: None };
        let about = Circumstances { norm, ..about };
        outgoing.stage = Stage::AwaitingReply(terms, about, Box::new(correspondence));
    }

    /// Our scales or codes have arrived, or broke off: then the next repeated proposal brings an ACCEPT, and with it
    /// another try.
    pub(crate) fn on_transfer_ended(&mut self, ended: TransferId, finished: bool) {
        if let Some(Outgoing { stage: Stage::AwaitingReply(.., correspondence), .. }) = &mut self.outgoing {
            correspondence.sent_mut().into_iter().for_each(|sent| sent.on_transfer_ended(ended, finished));
        }
    }

    /// The partner's codes.
    pub(crate) fn on_reply(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        received: Payload,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        if let Some(correspondence) = self.correspondence(peer, number) {
            correspondence.reply.get_or_insert(received);
            self.merge_once_complete(averaging, out);
        }
    }

    /// The partner has merged, with this digest.
    pub(crate) fn on_partner_merged(
        &mut self,
        peer: PeerId,
        number: ExchangeNumber,
        digest: u64,
        averaging: &Averaging,
        out: &mut Outbox,
    ) {
        if let Some(correspondence) = self.correspondence(peer, number) {
            correspondence.digest.get_or_insert(digest);
            self.merge_once_complete(averaging, out);
        }
    }

    fn correspondence(&mut self, peer: PeerId, number: ExchangeNumber) -> Option<&mut Correspondence> {
        match self.outgoing.as_mut().filter(|outgoing| outgoing.is(peer, number)) {
            Some(Outgoing { stage: Stage::AwaitingReply(.., correspondence), .. }) => Some(correspondence),
            _ => None,
        }
    }

    fn merge_once_complete(&mut self, averaging: &Averaging, out: &mut Outbox) {
        let Some(outgoing) = &mut self.outgoing else { return };
        let Stage::AwaitingReply(terms, about, correspondence) = &outgoing.stage else { return };
        let Correspondence { reference, scales, codes, reply: Some(reply), digest: Some(digest) } = &**correspondence
        else {
            return;
        };
        let (terms, about) = (*terms, *about);
        let (scales, codes) = (scales.payload().clone(), codes.payload().clone());
        let own = Encoded { scales, codes, reference: reference.clone(), norm: about.norm };
        let (role, grid) = (MergeRole::Starter { digest: *digest }, averaging.grid(terms.part));
        let job = terms.merge_job(role, about.parameters, own, reply.clone(), grid);
        outgoing.stage = Stage::Merging(terms, about);
        out.request(Purpose::StarterMerge(outgoing.number), |request| WorkerOrder::Merge { request, job });
    }

    /// # Errors
    /// When the partner's bytes were unfit.
    pub(crate) fn on_merged(
        &mut self,
        now: Time,
        number: ExchangeNumber,
        result: Result<Merged, Misbehaviour>,
        (averaging, reputation): (&mut Averaging, &mut Reputation),
        out: &mut Outbox,
    ) -> Result<(), (PeerId, Misbehaviour)> {
        let Some(outgoing) = self.outgoing.take_if(|outgoing| outgoing.number == number) else { return Ok(()) };
        let (Outgoing { partner, holding, began, began_at_steps, .. }, Stage::Merging(terms, about)) =
            (&outgoing, &outgoing.stage)
        else {
            return Ok(());
        };
        let failure = match &result {
            Err(_) => ExchangeFailure::Misbehaved,
            Ok(merged) if terms.is_outdated(merged, averaging.reach(terms.part)) => ExchangeFailure::Outdated,
            Ok(merged) => {
                averaging.timeout.record(now - *began);
                self.silent.on_merged(*partner);
                averaging.complete(merged, terms, *about, reputation, out);
                let outcome = if terms.is_probe() {
                    Outcome::Probed(Probed {
                        distance: (merged.masked_blocks == 0).then_some(merged.distance),
                        norm: about.norm,
                        partner_clip: terms.partner_clip,
                        progress_difference: terms.progress_difference,
                    })
                } else {
                    averaging.counters.completed_as_starter += 1;
                    Outcome::Merged { steps: averaging.training.steps - began_at_steps }
                };
                self.ended = Some(Ended { partner: *partner, holding: *holding, part: terms.part, outcome });
                return Ok(());
            }
        };
        let partner = *partner;
        averaging.counters.unconfirmed += u64::from(failure == ExchangeFailure::Outdated); // The partner has merged.
        self.outgoing = Some(outgoing);
        self.fail(failure, averaging, out);
        result.map(drop).map_err(|misbehaviour| (partner, misbehaviour))
    }

    pub(crate) fn on_deadline(&mut self, now: Time, averaging: &mut Averaging, out: &mut Outbox) {
        let Some(outgoing) = self.outgoing.as_mut() else { return };
        let (is_over, is_repeat_due) = (outgoing.deadline <= now, outgoing.repeat_at <= now);
        if is_over && matches!(outgoing.stage, Stage::Merging(..)) {
            // The partner has merged, and the worker always answers.
            outgoing.deadline = now + averaging.timeout.limit();
        } else if is_over || is_repeat_due && outgoing.is_unheard() {
            // A proposal waits for no step and no merge: who has not answered it says nothing of how long these take.
            let is_partners =
                outgoing.is_with_partner() && self.silent.on_silence(now, outgoing.partner, now - outgoing.began);
            if !matches!(outgoing.stage, Stage::Proposed) && !is_partners {
                averaging.timeout.record_in_vain();
            }
            self.fail(ExchangeFailure::DeadlinePassed, averaging, out);
            self.ended.iter_mut().filter(|_| is_partners).for_each(|ended| ended.outcome = Outcome::KeptWaiting);
        } else if is_repeat_due {
            let is_waiting = match &outgoing.stage {
                Stage::Proposed => true,
                Stage::AwaitingReply(.., correspondence) => !correspondence.is_on_its_way(),
                _ => false,
            };
            if is_waiting {
                outgoing.repeats += 1;
                out.send(outgoing.partner, Message::Propose(outgoing.propose.clone()));
                self.answers.record_in_vain();
            }
            outgoing.repeat_at = now + self.answers.limit();
        }
    }

    /// An exchange whose codes went out is kept until its deadline: the partner may have merged, and come back.
    pub(crate) fn on_partner_lost(&mut self, peer: PeerId, averaging: &mut Averaging, out: &mut Outbox) {
        let is_waiting = |stage: &Stage| matches!(stage, Stage::AwaitingReply(..) | Stage::Merging(..));
        let lost = |outgoing: &Outgoing| outgoing.partner == peer && !is_waiting(&outgoing.stage);
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
        let Some(Outgoing { partner, holding, propose, stage, .. }) = self.outgoing.take() else { return };
        let outcome = match (failure, stage) {
            (ExchangeFailure::Rejected, _) => Outcome::Rejected,
            (ExchangeFailure::DeadlinePassed, Stage::Proposed) => Outcome::Unanswered,
            _ => Outcome::BrokenOff,
        };
        self.ended = Some(Ended { partner, holding, part: propose.part, outcome });
        averaging.fail(partner, failure, out);
    }
}
