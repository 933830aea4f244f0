//! How a run ends: the founder's order spreads, and what is trained last becomes one model on all nodes.

use std::time::Duration;

use super::Node;
use crate::bounds::SETTLING_TIMEOUT;
use crate::effect::TrainerOrder;
use crate::event::TrainingReport;
use crate::exchange::LastMerges;
use crate::finish::{FinishOrder, Heard};
use crate::membership::Membership;
use crate::message::Message;
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::part::Part;
use crate::peer::PeerId;
use crate::status::Phase;
use crate::time::Time;

/// Times that a node settles once more where it cannot tell whether it is far off, until a member comes back: because blocks
/// wrapped (by then the exchanges are wide where models are far apart, and show the distance), or because it has had too few
/// exchanges to know what is usual.
const SETTLINGS_UNTOLD_MAX: u32 = 3;

/// Times that a node settles once more, takes corrections in full and finds others as far as before, until a member comes
/// back. Long after learning the usual distance is what rounding leaves, and no exchange brings models nearer than that.
const SETTLINGS_IN_VAIN_MAX: u32 = 3;

/// Who then finds somebody more times as far away as all of these were has met another part of the swarm: settling has not been
/// tried there.
const FURTHER: f64 = 2.0;

/// Settlings at once until a member comes back, whatever came of them: corrections that are shortened, or leave out blocks that
/// wrap, may go on for ever where rounding errors are taken for a distance (a guess: the seeds of `everything` hold with 20).
const SETTLINGS_MAX: u32 = 50;

/// A settling that leaves more than this share of the distance for which it began was in vain (a guess: what is far above
/// rounding errors shrinks faster).
const LEFT_IN_VAIN: f64 = 0.75;

/// Who has settled so often at once waits before it settles once more, twice as long each time: two groups that are nearer
/// within than between them come together slowly.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// Pauses until a member comes back, two minutes together (a guess): rounding errors may be taken for a distance.
const PAUSES_MAX: u32 = 6;

/// A correction that was held up is a final one where the models are no further apart than so many times what counts as settled:
/// twice the usual distance while training. A guess.
const FINAL_DISTANCE: f64 = 40.0;

/// Until a member that still trains is asked for a final exchange again. A guess: many a model steps several times meanwhile.
const STILL_TRAINS_PAUSE: Duration = Duration::from_secs(1);

/// How often a member of a run that is over has settled once more, since another one came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settlings {
    all: u32,
    /// Without knowing whether it is far off.
    untold: u32,
    /// And was no nearer to others afterwards.
    in_vain: u32,
    /// The largest distance after one of those.
    vain_distance: f64,
    /// After a pause.
    late: u32,
    /// The distance for which it has settled last, where that was known, until what came of it is.
    begun_for: Option<f64>,
}

impl Node {
    /// An order to finish the run, from a peer or from this machine. A new one is carried out and passed on to all.
    pub(super) fn on_finish(&mut self, from: Option<PeerId>, order: &FinishOrder) -> Result<(), Misbehaviour> {
        let end_before = self.end.at();
        match self.end.hear(order)? {
            Heard::Known => {}
            Heard::Older => from.into_iter().for_each(|peer| self.tell_finish(peer)),
            Heard::Newer => {
                self.end_before = end_before.filter(|_| self.phase == Phase::Training);
                self.outbox.notice(Notice::Finishing(order.ending));
                self.outbox.push(TrainerOrder::Finish(order.clone()));
                let others: Vec<PeerId> = self.membership.connected().filter(|peer| Some(*peer) != from).collect();
                others.into_iter().for_each(|peer| self.tell_finish(peer));
                self.train_until_a_later_end();
            }
        }
        Ok(())
    }

    /// Training was over with the run's end of before, and there is a later one.
    pub(super) fn train_until_a_later_end(&mut self) {
        let has_ended = matches!(self.phase, Phase::Settling | Phase::Completed) && !self.ends_before_the_run;
        let progress = self.pairwise.training().progress;
        if has_ended && self.synchronous.is_none() && !self.is_rejoining() && self.is_before_the_end(progress) {
            self.settlings = Settlings::default();
            self.begin_training();
        }
    }

    /// Tells a peer the order to finish the run, where there is one. It may know it: then nothing comes of it.
    pub(super) fn tell_finish(&mut self, peer: PeerId) {
        if let Some(order) = self.end.order.clone() {
            self.outbox.send(peer, Message::Finish(order));
        }
    }

    /// A member has connected. Where the run is over, and this node could not settle with all or the member comes back
    /// from another part of the swarm, the final exchanges begin again, if the two share a fragment.
    pub(super) fn on_member_at_the_end(&mut self, now: Time, peer: PeerId, was_away: bool) {
        self.tell_finish(peer);
        let shares = self.pairwise.shares(self.membership.holding(peer));
        if shares && was_away {
            self.settle_anew(now);
        } else if shares {
            self.settle_if_left(now);
        }
    }

    /// For a node of which the run is over: final exchanges that it could not have, because nobody was there or it was at rest, are
    /// made up for.
    pub(super) fn settle_if_left(&mut self, now: Time) {
        if self.has_partner_for_what_is_left() {
            self.settle_anew(now);
        }
    }

    fn settle_anew(&mut self, now: Time) {
        if self.phase == Phase::Completed && self.synchronous.is_none() {
            self.settlings = Settlings::default();
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
            self.end_in_pairs();
            self.begin_settling(now);
            let progress = self.pairwise.training().progress;
            if self.end_before.take().is_some_and(|end| progress >= end - 0.5) {
                // The trainer had not yet heard of the later end.
                self.ends_before_the_run = false;
                self.train_until_a_later_end();
            }
        }
    }

    /// Own training is over, and members average in pairs.
    pub(super) fn end_in_pairs(&mut self) {
        self.ends_before_the_run = self.is_before_the_end(self.pairwise.training().progress);
        self.pairwise.on_training_over();
    }

    /// Whether the run goes on at this progress of the swarm, or has no end that is known. Members average their
    /// progress, which rounds.
    fn is_before_the_end(&self, progress: f64) -> bool {
        self.end.at().is_none_or(|end| progress < end - 0.5)
    }

    pub(super) fn begin_settling(&mut self, now: Time) {
        self.phase = Phase::Settling;
        self.final_exchanges_left = self.pairwise.final_exchanges();
        self.phase_deadline = Some(now + SETTLING_TIMEOUT);
        if !self.is_resting {
            self.outbox.notice(Notice::Settling);
        }
    }

    /// One exchange after the other at learning rate zero: what the nodes learned last is shared by all. Where somebody is there, what
    /// nobody holds now is waited for: at its end a team takes its helpers' fragments back, and they are in nobody's hands meanwhile.
    pub(super) fn settle(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_some_and(|deadline| deadline <= now);
        let is_alone = self.is_resting || !self.has_sharing_member();
        if self.final_exchanges_left.is_empty() || out_of_time || (is_alone && self.pairwise.is_idle()) {
            self.complete();
        } else if self.pairwise.is_idle() && self.has_partner_for_what_is_left() {
            self.pairwise.begin_round();
            self.start_exchange(now);
        }
    }

    /// Whether an exchange while this node settles is one of its final ones. With a member that still trains it is none, for that one
    /// goes on from there; it is left alone for a moment. Nor is one of models so far apart that the correction was shortened, or left
    /// blocks out.
    pub(super) fn is_final(&mut self, now: Time, partner: PeerId, part: Part) -> bool {
        let Some(last) = self.pairwise.last_merge_of(part).filter(|_| !self.ends_before_the_run) else { return true };
        if self.is_before_the_end(last.partner_progress) {
            self.membership.avoid(partner, now + STILL_TRAINS_PAUSE);
            return false;
        }
        let settled_distance = self.pairwise.settled_distance();
        !last.is_held_up || settled_distance == 0.0 || last.distance <= FINAL_DISTANCE * settled_distance
    }

    /// A final exchange of this fragment is done: each of them has its own.
    pub(super) fn on_final_exchange(&mut self, fragment: u16) {
        if let Some(left) = self.final_exchanges_left.get_mut(&fragment) {
            *left -= 1;
        }
        self.final_exchanges_left.retain(|_, left| *left > 0);
    }

    /// Whether somebody can be asked for a final exchange that is still to be done.
    fn has_partner_for_what_is_left(&self) -> bool {
        self.final_exchanges_left.keys().any(|fragment| is_held(&self.membership, *fragment))
    }

    /// Whether somebody can be asked who holds some of what this node holds.
    pub(super) fn has_sharing_member(&self) -> bool {
        self.membership.directly_connected().any(|peer| self.pairwise.shares(self.membership.holding(peer)))
    }

    pub(super) fn complete(&mut self) {
        if !matches!(self.phase, Phase::Training | Phase::Settling) {
            return;
        }
        self.phase = Phase::Completed;
        self.phase_deadline = None;
        self.outbox.notice(Notice::RunCompleted { is_resting: self.is_resting });
        self.outbox.push(TrainerOrder::Complete);
    }

    /// At once: nothing else may happen here for a minute.
    fn settle_once_more(&mut self, now: Time) {
        self.begin_settling(now);
        self.settle(now);
    }

    /// A member of a run that is over settles once more where an exchange with another one, for which it is over as well,
    /// has shown that their models are not one yet: at once, and where that does not bring them together, after pauses.
    pub(super) fn look_whether_settled(&mut self, now: Time) {
        if self.phase_deadline.is_some_and(|pause_ends| pause_ends <= now) {
            self.settlings.late += 1;
            return self.settle_once_more(now);
        }
        let is_held = |fragment| is_held(&self.membership, fragment);
        let Some(last) = self.pairwise.take_last_merges(is_held) else { return };
        if self.is_before_the_end(last.partner_progress) {
            return;
        }
        let settled_distance = self.pairwise.settled_distance();
        let is_apart = last.distance > settled_distance;
        // The grid of models that have become one is so fine that rounding errors wrap.
        let is_untold = settled_distance == 0.0 || (!last.is_told && !is_apart);
        if !is_apart {
            self.phase_deadline = None;
        }
        let may_help = match is_untold {
            true => self.settlings.untold < SETTLINGS_UNTOLD_MAX,
            false => is_apart && self.settlings.may_help(&last),
        };
        if may_help && self.settlings.all < SETTLINGS_MAX {
            self.settlings.all += 1;
            self.settlings.untold += u32::from(is_untold);
            self.settlings.begun_for = (!is_untold).then_some(last.distance);
            self.settle_once_more(now);
        } else if is_apart && self.settlings.late < PAUSES_MAX && self.phase_deadline.is_none() {
            self.phase_deadline = Some(now + FIRST_PAUSE * (1 << self.settlings.late));
        }
    }
}

/// Whether a member that can be asked holds a fragment.
fn is_held(membership: &Membership, fragment: u16) -> bool {
    membership.directly_connected().any(|peer| membership.holding(peer).holds(fragment))
}

impl Settlings {
    /// Whether settling at once may bring models nearer that are apart.
    fn may_help(&mut self, last: &LastMerges) -> bool {
        if self.begun_for.take().is_some_and(|before| !last.is_held_up && last.distance > LEFT_IN_VAIN * before) {
            self.in_vain += 1;
            self.vain_distance = self.vain_distance.max(last.distance);
        }
        if last.distance > FURTHER * self.vain_distance {
            self.in_vain = 0;
        }
        self.in_vain < SETTLINGS_IN_VAIN_MAX
    }
}
