//! How a run ends: the founder's order spreads, and what is trained last becomes one model on all nodes.

use super::Node;
use crate::bounds::SETTLING_TIMEOUT;
use crate::effect::TrainerOrder;
use crate::event::TrainingReport;
use crate::finish::{FinishOrder, Heard};
use crate::message::Message;
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::peer::PeerId;
use crate::status::Phase;
use crate::time::Time;

/// Models of a run that is over count as one below this share of the usual distance while they trained (a guess: final
/// exchanges halve the distance each).
const SETTLED_SHARE: f64 = 0.05;

/// Settlings in a row that bring a node no nearer to others, after which it rests until a member comes back or it finds itself
/// among the others: long after learning, the usual distance is what rounding leaves, and no exchange brings models nearer
/// than that. (A guess: corrections that are shortened and blocks that wrap need several, for grids and limits follow.
/// With three, seeds 44 and 9000040 of `everything` end too far off.)
const SETTLINGS_IN_VAIN_MAX: u32 = 5;

/// Settlings until a member comes back, whatever came of them, so that a run comes to rest (a guess: the seeds of
/// `everything` hold with 20).
const SETTLINGS_MAX: u32 = 50;

/// A settling that leaves more than this share of the distance for which it began was in vain (a guess: what is far above
/// rounding errors shrinks faster).
const LEFT_IN_VAIN: f64 = 0.75;

impl Node {
    /// An order to finish the run, from a peer or from this machine. A new one is carried out and passed on to all.
    pub(super) fn on_finish(&mut self, from: Option<PeerId>, order: &FinishOrder) -> Result<(), Misbehaviour> {
        match self.end.hear(order)? {
            Heard::Known => {}
            Heard::Older => from.into_iter().for_each(|peer| self.tell_finish(peer)),
            Heard::Newer => {
                self.outbox.notice(Notice::Finishing(order.ending));
                self.outbox.push(TrainerOrder::Finish(order.clone()));
                let others: Vec<PeerId> = self.membership.connected().filter(|peer| Some(*peer) != from).collect();
                others.into_iter().for_each(|peer| self.tell_finish(peer));
            }
        }
        Ok(())
    }

    /// Tells a peer the order to finish the run, where there is one. It may know it: then nothing comes of it.
    pub(super) fn tell_finish(&mut self, peer: PeerId) {
        if let Some(order) = self.end.order.clone() {
            self.outbox.send(peer, Message::Finish(order));
        }
    }

    /// A member has connected. Where the run is over, and this node could not settle with all or the member comes back
    /// from another part of the swarm, the final exchanges begin again.
    pub(super) fn on_member_at_the_end(&mut self, now: Time, peer: PeerId, was_away: bool) {
        self.tell_finish(peer);
        let is_apart = self.synchronous.is_none() && (was_away || self.final_exchanges_left > 0);
        if self.phase == Phase::Completed && is_apart {
            (self.settlings, self.settlings_in_vain) = (0, 0);
            self.begin_settling(now);
        }
    }

    pub(super) fn on_training_completed(&mut self, now: Time, report: TrainingReport) {
        self.pairwise.on_report(now, report);
        if let Some(synchronous) = &mut self.synchronous {
            // All replicas are one already.
            synchronous.end(now, &mut self.outbox);
            self.complete();
        } else if self.phase == Phase::Training {
            self.pairwise.on_training_over();
            self.settled_distance = SETTLED_SHARE * self.pairwise.usual_distance();
            self.begin_settling(now);
        }
    }

    pub(super) fn begin_settling(&mut self, now: Time) {
        self.phase = Phase::Settling;
        self.final_exchanges_left = self.pairwise.final_exchanges();
        self.phase_deadline = Some(now + SETTLING_TIMEOUT);
        self.outbox.notice(Notice::Settling);
    }

    /// One exchange after the other at learning rate zero: what the nodes learned last is shared by all.
    pub(super) fn settle(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_some_and(|deadline| deadline <= now);
        let nobody = self.is_resting || self.membership.connected().next().is_none();
        if self.final_exchanges_left == 0 || out_of_time || (nobody && self.pairwise.is_idle()) {
            self.complete();
        } else if self.pairwise.is_idle() {
            self.pairwise.begin_round();
            self.start_exchange(now);
        }
    }

    /// For this node the run is over, and nobody lets its model in: it copies one anew, and trains on where that one is not
    /// at the end yet. Where nobody can give it one, its own is what it ends with.
    pub(super) fn copy_at_the_end(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_none_or(|deadline| deadline <= now);
        if self.joining.is_idle() && (out_of_time || self.is_resting || self.membership.connected().next().is_none()) {
            self.is_outlier = false;
            self.pairwise.forget_outlier();
            self.complete();
            return;
        }
        if out_of_time {
            self.phase_deadline = Some(now + SETTLING_TIMEOUT);
        }
        self.copy(now);
    }

    fn complete(&mut self) {
        if !matches!(self.phase, Phase::Training | Phase::Settling) {
            return;
        }
        self.phase = Phase::Completed;
        self.phase_deadline = None;
        self.outbox.notice(Notice::RunCompleted);
        self.outbox.push(TrainerOrder::Complete);
    }

    /// A member of a run that is over settles once more where an exchange with another one, for which it is over as well,
    /// has shown that their models are not one yet, or wraps hide whether they are. Settlings are counted, so this ends.
    pub(super) fn look_whether_settled(&mut self, now: Time) {
        let Some(last) = self.pairwise.take_last_merges() else { return };
        // Both sides have averaged their progress, which rounds.
        let is_over = |end: f64| last.partner_progress >= end - 0.5;
        if !self.end.at().is_some_and(is_over) {
            return;
        }
        if last.is_told && last.distance <= self.settled_distance {
            self.settlings_in_vain = 0;
            return;
        }
        if let Some(before) = self.settling_from.take() {
            let is_nearer = last.is_told && last.distance <= LEFT_IN_VAIN * before;
            self.settlings_in_vain = if is_nearer { 0 } else { self.settlings_in_vain + 1 };
        }
        if self.settlings_in_vain < SETTLINGS_IN_VAIN_MAX && self.settlings < SETTLINGS_MAX {
            self.settlings += 1;
            self.settling_from = Some(last.distance);
            self.begin_settling(now);
        }
    }
}
