//! A node's way through its phases: joining, training, the last exchanges, leaving.

use super::Node;
use crate::bounds::*;
use crate::effect::{Effect, TrainerOrder};
use crate::event::Misbehaviour;
use crate::exchange::{Ended, Outcome};
use crate::join::Loaded;
use crate::message::Message;
use crate::notice::Notice;
use crate::part::{Fragment, Part, Vector};
use crate::peer::PeerId;
use crate::status::Phase;
use crate::time::Time;

impl Node {
    /// Everything that depends on the time, or on what the event has just changed.
    pub(super) fn on_time(&mut self, now: Time) {
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
        self.giving.on_deadline(now);
        if let Some(ended) = self.starter.take_ended() {
            self.on_ended(now, ended);
        }
        match self.phase {
            // Even a joiner's model would cost what its owner does not want to spend now.
            Phase::Joining if self.is_resting => {}
            Phase::Joining => self.copy(now),
            // Training goes on meanwhile; what this node has learned since it fell behind is lost anyway.
            Phase::Training if self.is_copying_anew() && self.is_resting => {}
            Phase::Training if self.is_copying_anew() => self.copy(now),
            Phase::Training if self.averaging.is_outlier() => {
                self.is_outlier = true;
                // Two or three that are apart from all others trust each other alone, and would copy in a circle.
                self.averaging.reputation.forget_distances();
                self.joining.expect_progress(self.averaging.progress_seen_by_outlier());
            }
            Phase::Training => self.start_due_exchange(now),
            Phase::Settling => self.settle(now),
            Phase::Leaving => self.finish_leaving(now),
            Phase::Completed => self.look_whether_settled(now),
            Phase::Left => {}
        }
    }

    /// Draws the conclusions from an own exchange.
    fn on_ended(&mut self, now: Time, ended: Ended) {
        let Ended { partner, part, outcome } = ended;
        if matches!(outcome, Outcome::Unanswered) {
            self.membership.on_silence(now, partner, &mut self.outbox);
        }
        if self.joining.is_checking() && matches!(self.phase, Phase::Joining | Phase::Training) {
            self.on_check_ended(now, partner, part, outcome);
            return;
        }
        match outcome {
            Outcome::Merged { .. } if part.vector == Vector::Momentum => {}
            Outcome::Merged { steps } => {
                if self.phase == Phase::Settling {
                    self.final_exchanges_left = self.final_exchanges_left.saturating_sub(1);
                }
                let step_seconds = self.averaging.step_seconds();
                if self.averaging.cadence.on_exchange(steps, step_seconds) {
                    let cadence = &self.averaging.cadence;
                    let ratio = cadence.ratio().unwrap_or_default();
                    self.outbox.notice(Notice::BudgetTooSmall { interval_steps: cadence.interval(), ratio });
                }
                let is_trusted = self.averaging.reputation.is_trusted(partner);
                let goes_on = is_trusted && !self.is_resting;
                if self.averaging.averages_momentum() && goes_on && self.phase == Phase::Training {
                    let momentum = Part { vector: Vector::Momentum, ..part };
                    self.starter.start(now, (momentum, false), &self.averaging, &[partner], &mut self.outbox);
                }
            }
            Outcome::Rejected if self.phase != Phase::Completed => self.start_exchange(now),
            Outcome::Unanswered | Outcome::BrokenOff => self.averaging.cadence.on_failure(),
            Outcome::Rejected | Outcome::Probed { .. } => {}
        }
    }

    pub(super) fn on_state_loaded(&mut self, now: Time, accepted: bool) {
        match self.joining.on_loaded(now, accepted) {
            Some(Loaded::Taken { donors, progress }) => {
                self.outbox.notice(Notice::StateReceived { donors: donors.clone(), progress });
                self.giving.on_model_replaced(&mut self.outbox);
                if matches!(self.phase, Phase::Joining | Phase::Training) {
                    self.joining.begin_check(now, donors);
                    self.starter.on_model_replaced(&mut self.averaging, &mut self.outbox);
                    self.responder.on_model_replaced(&mut self.averaging, &mut self.outbox);
                    self.check_copy(now);
                }
            }
            Some(Loaded::Unfit { donor: Some(peer) }) => {
                self.on_misbehaviour(now, peer, Misbehaviour::OutOfRange("parameter"));
            }
            Some(Loaded::Unfit { donor: None }) | None => {}
        }
    }

    /// Compares the copied model with those of other members, fragment by fragment. One that is busy is asked again later.
    fn check_copy(&mut self, now: Time) {
        let mut checkers = self.joining.checkers(self.membership.partners(now));
        self.averaging.reputation.retain_believable(&mut checkers);
        let probe = (self.averaging.part_in_turn(self.joining.fragment_to_check()), true);
        self.starter.begin_anew();
        if self.starter.start(now, probe, &self.averaging, &checkers, &mut self.outbox) {
            return;
        }
        let connected: Vec<PeerId> = self.membership.connected().collect();
        if !self.joining.checkers(connected.clone()).is_empty() {
            return;
        }
        if let Some((donors, why, is_copied_again)) = self.joining.give_up_check(now, &connected) {
            self.outbox.notice(Notice::StateUnchecked { donors, why, is_copied_again });
            if !is_copied_again {
                self.believe_copy(None);
            }
        }
    }

    fn on_check_ended(&mut self, now: Time, checker: PeerId, part: Part, outcome: Outcome) {
        match outcome {
            Outcome::Probed { distance, partner_clip, progress_difference } => {
                // The donor's model has aged on its way; by how much it says itself, so that this must be plausible.
                let rounds = progress_difference.abs() / self.averaging.cadence.interval();
                let allowed = SPOT_CHECK_FACTOR * partner_clip * (1.0 + rounds);
                let is_plausible = !self.averaging.is_progress_odd(progress_difference);
                // The grid of a check comes from the copy itself and reaches 32 times its values, so a block beyond it is
                // none of this run's.
                let is_near = is_plausible && distance.is_some_and(|it| it <= allowed || partner_clip == 0.0);
                let Fragment { index, count } = part.fragment;
                if !is_near {
                    self.joining.object(checker);
                } else if let Some(clip) = self.joining.on_near(index, partner_clip, count) {
                    self.believe_copy(Some(clip));
                    return;
                }
            }
            // An exchange that was under way when the model was replaced.
            Outcome::Merged { .. } => {}
            Outcome::Rejected | Outcome::Unanswered | Outcome::BrokenOff => {
                let patience = CHECKS_UNANSWERED_MAX * self.averaging.patience.short_limit();
                self.joining.on_no_check(now, matches!(outcome, Outcome::Rejected), patience);
            }
        }
        self.check_copy(now);
    }

    fn believe_copy(&mut self, clip: Option<f64>) {
        self.joining.end_check();
        self.is_outlier = false;
        self.averaging.begin_ramp(clip);
        self.begin_training();
    }

    /// Asks a peer for its model, and others whether it is like theirs.
    fn copy(&mut self, now: Time) {
        let connected: Vec<PeerId> = self.membership.directly_connected().collect();
        self.joining.proceed(now, &connected, &self.averaging.reputation, &mut self.outbox);
        if self.joining.is_checking() && self.starter.is_idle() {
            self.check_copy(now);
        }
    }

    pub(super) fn begin_training(&mut self) {
        self.phase = Phase::Training;
        self.starter.schedule(self.averaging.training.steps, self.averaging.cadence.interval());
        self.outbox.push(TrainerOrder::Begin);
    }

    fn start_due_exchange(&mut self, now: Time) {
        let steps = self.averaging.training.steps;
        if self.starter.is_due(steps) {
            if self.averaging.gossip.outer_learning_rate > 0.0 {
                self.outbox.push(TrainerOrder::AdvanceOuter);
            }
            if let Some(members) = self.averaging.company.on_round(self.membership.members(now).len()) {
                self.outbox.push(TrainerOrder::MatchBatch { members });
            }
            self.averaging.gain.on_round(self.averaging.gossip.fragments);
            self.starter.schedule(steps, self.averaging.cadence.interval());
            self.start_exchange(now);
        }
    }

    /// Proposes an exchange to somebody with whom none is under way.
    pub(super) fn start_exchange(&mut self, now: Time) {
        if self.is_resting {
            return;
        }
        let mut partners = self.membership.partners(now);
        partners.retain(|peer| !self.responder.is_busy_with(*peer));
        let part = self.averaging.part_in_turn(self.starter.round());
        self.starter.start(now, (part, false), &self.averaging, &partners, &mut self.outbox);
    }

    pub(super) fn on_leave_requested(&mut self, now: Time) {
        if self.phase == Phase::Leaving {
            return;
        }
        let was_training = self.phase == Phase::Training;
        self.phase = Phase::Leaving;
        self.phase_deadline = Some(now + LEAVE_TIMEOUT);
        self.outbox.push(TrainerOrder::End);
        if was_training && self.starter.is_idle() {
            // What this node has learned since its last exchange should not be lost to the swarm.
            self.starter.schedule(self.averaging.training.steps, 1.0);
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
}
