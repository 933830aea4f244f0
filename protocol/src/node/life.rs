//! A node's way through its phases: joining, training, the last exchanges, leaving.

use std::time::Duration;

use super::Node;
use super::ending::Settlings;
use super::rejoining::Rejoining;
use crate::effect::{Effect, TrainerOrder};
use crate::exchange::{Ended, Outcome};
use crate::fragments::Holding;
use crate::join::{Loaded, Unchecked, Witness};
use crate::message::Message;
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::outbox::Purpose;
use crate::part::{Part, Vector};
use crate::peer::PeerId;
use crate::status::Phase;
use crate::time::Time;

/// A node that is told so long after its own deadline was not there: its process was stopped, or had no processor.
const ABSENT_FROM: Duration = Duration::from_millis(250);

impl Node {
    /// What others did while this node was not there may only wait to be told, so that they are not late by that time.
    pub(super) fn excuse_absence(&mut self, now: Time) {
        let since = self.outbox.now();
        if now - since > ABSENT_FROM && self.next_deadline().is_some_and(|deadline| now - deadline > ABSENT_FROM) {
            self.pairwise.on_absence(now - since);
        }
    }

    /// Everything that depends on the time, or on what the event has just changed.
    pub(super) fn on_time(&mut self, now: Time) {
        let is_member = |peer| self.synchronous.as_ref().is_some_and(|synchronous| synchronous.is_busy_with(peer));
        let is_busy = |peer| {
            is_member(peer)
                || self.pairwise.is_busy_with(peer)
                || self.joining.is_busy_with(peer)
                || self.giving.is_busy_with(peer)
        };
        let out = &mut self.outbox;
        self.membership.on_deadline(now, is_busy, out);
        self.pairwise.on_deadline(now, out);
        self.giving.on_deadline(now, out);
        if let Some(synchronous) = &mut self.synchronous {
            synchronous.on_deadline(now, out);
        }
        if let Some(ended) = self.pairwise.take_ended() {
            self.on_ended(now, ended);
        }
        self.choose(now);
        self.renew(now);
        let progress_missed = self.pairwise.progress_missed(|| self.membership.member_count(now));
        match self.phase {
            Phase::Joining | Phase::Training if self.synchronous.is_some() => {}
            // Even a joiner's model would cost what its owner does not want to spend now.
            Phase::Joining if self.is_resting => {}
            Phase::Joining => self.copy(now),
            Phase::Training if self.is_rejoining() => self.copy_in_training(now),
            Phase::Settling if self.is_rejoining() => self.copy_at_the_end(now),
            Phase::Training | Phase::Settling | Phase::Completed if progress_missed.is_some() => {
                self.rejoin(now, progress_missed);
            }
            Phase::Training if self.is_gathering() => {}
            Phase::Training => self.start_due_exchange(now),
            Phase::Settling => self.settle(now),
            Phase::Leaving => self.finish_leaving(now),
            Phase::Completed => self.look_whether_settled(now),
            Phase::Left => {}
        }
    }

    /// A member has connected, or is back that had taken leave.
    pub(super) fn on_present(&mut self, now: Time, peer: PeerId) {
        self.joining.on_connected(now);
        self.on_reachable(now, peer);
        let is_back = self.on_sign_of_life(now, peer);
        self.on_member_at_the_end(now, peer, is_back);
        self.tell_scheme(peer);
    }

    /// Draws the conclusions from an own exchange.
    fn on_ended(&mut self, now: Time, ended: Ended) {
        let Ended { partner, part, outcome, .. } = ended;
        if matches!(outcome, Outcome::Unanswered) {
            self.membership.on_silence(now, partner, &mut self.outbox);
        }
        if self.joining.is_checking() && (self.phase == Phase::Joining || self.is_rejoining()) {
            self.on_check_ended(now, partner, part, outcome);
            return;
        }
        let is_merged = matches!(outcome, Outcome::Merged { .. }) && part.vector == Vector::Model;
        let is_merged = is_merged && (self.phase != Phase::Settling || self.is_final(now, partner, part));
        let merged = is_merged.then_some(part.fragment.index);
        // Who ends before the run does meets partners that train on. One whose steps are short is always about to end an
        // exchange of its own, which this node has just answered: that one has brought this node's model there as well.
        let is_rejected = matches!(outcome, Outcome::Rejected);
        let answered = is_rejected.then(|| self.pairwise.take_answered(partner)).flatten();
        let answered = answered.filter(|_| self.ends_before_the_run);
        if let Some(fragment) = merged.or(answered).filter(|_| self.phase == Phase::Settling) {
            self.on_final_exchange(fragment);
        }
        let is_there = self.membership.partners(now).contains(&partner);
        // What is copied moves nobody before it is believed.
        let has_model = self.phase != Phase::Joining && !self.is_rejoining() && !self.joining.is_checking();
        let goes_on = self.phase == Phase::Training && has_model && !self.is_resting && is_there;
        self.pairwise.conclude(now, &ended, goes_on, &self.reputation, &mut self.outbox);
        let is_refused = matches!(outcome, Outcome::Rejected | Outcome::Unanswered);
        if is_refused && has_model && self.phase != Phase::Completed {
            self.start_exchange(now);
        }
    }

    pub(super) fn on_state_loaded(&mut self, now: Time, accepted: bool) {
        match self.joining.on_loaded(now, accepted) {
            Some(Loaded::Taken { donors, progress, taken }) => {
                let senders = donors.iter().map(|donor| donor.peer).collect();
                self.outbox.notice(Notice::StateReceived { donors: senders, progress });
                self.giving.on_model_replaced(&mut self.outbox);
                if matches!(self.phase, Phase::Joining | Phase::Training | Phase::Settling) {
                    self.joining.begin_check(donors, self.pairwise.fragments().to_vec());
                    self.pairwise.on_model_replaced(&mut self.outbox);
                    self.pairwise.on_copied(taken);
                    self.check_copy(now);
                }
            }
            Some(Loaded::Unfit { donor: Some(peer) }) => {
                self.on_misbehaviour(now, peer, Misbehaviour::OutOfRange("parameter".into()));
            }
            Some(Loaded::Unfit { donor: None }) | None => {}
        }
    }

    /// Compares the copied model with those of other members, fragment by fragment. One that is busy is asked again later.
    fn check_copy(&mut self, now: Time) {
        if self.is_resting {
            return;
        }
        let members = self.holders_of(self.joining.fragment_to_check());
        if let Some(clip) = self.joining.agreement(&members) {
            self.believe_copy(Some(clip));
            return;
        }
        let Some(fragment) = self.joining.fragment_to_check() else { return };
        let members = self.holders_of(Some(fragment));
        let wanted = self.joining.checkers(&members);
        let mut checkers = self.membership.partners(now);
        checkers.retain(|peer| wanted.contains(peer));
        self.reputation.retain_believable(&mut checkers);
        let checkers = self.with_holdings(checkers);
        let is_asked = self.pairwise.probe(now, fragment, &checkers, &self.reputation, &mut self.outbox);
        if is_asked || !wanted.is_empty() {
            return;
        }
        if let Some(is_first) = self.joining.leave_out_unheld() {
            if let Some(donors) = self.joining.donors_under_check().filter(|_| is_first) {
                let why = Unchecked::NobodyElse;
                self.outbox.notice(Notice::StateUnchecked { donors, why, is_copied_again: false });
            }
            return self.check_copy(now);
        }
        if let Some((donors, why, is_copied_again)) = self.joining.give_up_check(now, &members) {
            self.outbox.notice(Notice::StateUnchecked { donors, why, is_copied_again });
            if !is_copied_again {
                self.believe_copy(None);
            }
        }
    }

    /// The members that hold a fragment and can be asked: through a relay there are no exchanges.
    fn holders_of(&self, fragment: Option<u16>) -> Vec<Witness> {
        let members = self.membership.directly_connected().map(|peer| self.witness(peer));
        members.filter(|member| fragment.is_some_and(|fragment| member.holding.holds(fragment))).collect()
    }

    pub(super) fn witness(&self, peer: PeerId) -> Witness {
        Witness { peer, range: self.membership.range(peer), holding: self.membership.holding(peer) }
    }

    fn with_holdings(&self, peers: Vec<PeerId>) -> Vec<(PeerId, Holding)> {
        peers.into_iter().map(|peer| (peer, self.membership.holding(peer))).collect()
    }

    fn on_check_ended(&mut self, now: Time, checker: PeerId, part: Part, outcome: Outcome) {
        match outcome {
            Outcome::Probed(probed) => {
                let witness = self.witness(checker);
                if self.pairwise.is_near(probed) {
                    let clip = self.pairwise.believed_clip(probed);
                    self.joining.on_near(part.fragment.index, clip, witness);
                } else {
                    self.joining.object(witness);
                }
            }
            // An exchange that was under way when the model was replaced.
            Outcome::Merged { .. } => {}
            Outcome::Rejected | Outcome::Unanswered | Outcome::KeptWaiting | Outcome::BrokenOff => {
                let is_refused = matches!(outcome, Outcome::Rejected);
                self.joining.on_no_check(now, checker, is_refused, self.pairwise.probe_timeout());
            }
        }
        self.check_copy(now);
    }

    fn believe_copy(&mut self, clip: Option<f64>) {
        self.joining.end_check();
        self.rejoining = Rejoining::default();
        self.pairwise.begin_ramp(clip);
        self.begin_training();
    }

    /// Asks a peer for its model, and others whether it is like theirs.
    pub(super) fn copy(&mut self, now: Time) {
        let connected = self.membership.directly_connected().map(|peer| self.witness(peer));
        let connected: Vec<Witness> = connected.filter(|member| self.pairwise.shares(member.holding)).collect();
        self.joining.proceed(now, &connected, &self.reputation, &mut self.outbox);
        if self.joining.is_checking() && self.pairwise.is_idle() {
            self.check_copy(now);
        }
    }

    /// The trainer holds other fragments of the model than before. Members hear of it as they hear of this node's speed; until then
    /// their proposals are refused. Where the run is over, what is new is not what the others ended with.
    pub(super) fn on_holding_changed(&mut self, now: Time, holding: Holding) {
        self.membership.on_holding(holding, &mut self.outbox);
        let has_new = self.pairwise.on_holding_changed(holding, &mut self.outbox);
        self.giving.on_holding_changed(holding, &mut self.outbox);
        self.joining.on_holding_changed(now, holding, &mut self.outbox);
        // A reply to that order is not one to the next.
        self.outbox.forget(|purpose| matches!(purpose, Purpose::StateLoad));
        // Of what is given up there are no last exchanges.
        self.final_exchanges_left.retain(|fragment, _| self.pairwise.fragments().contains(fragment));
        if has_new && matches!(self.phase, Phase::Settling | Phase::Completed) {
            self.settlings = Settlings::default();
            self.begin_settling(now);
        }
    }

    /// A member of a synchronous run has another member's replica, bit for bit.
    pub(super) fn on_replica_copied(&mut self, from: PeerId) {
        let progress = self.pairwise.training().progress;
        self.outbox.notice(Notice::StateReceived { donors: vec![from], progress });
        self.giving.on_model_replaced(&mut self.outbox);
        self.pairwise.on_model_replaced(&mut self.outbox);
        if self.phase == Phase::Joining {
            self.begin_training();
        }
    }

    pub(super) fn begin_training(&mut self) {
        (self.phase, self.phase_deadline) = (Phase::Training, None);
        self.pairwise.schedule();
        self.outbox.push(TrainerOrder::Begin);
    }

    fn start_due_exchange(&mut self, now: Time) {
        let fragments = self.pairwise.fragment_count();
        let members = || self.membership.sharing_members(now, fragments);
        if self.pairwise.begin_due_round(now, members, &mut self.outbox) {
            self.start_exchange(now);
        }
    }

    /// Proposes an exchange to somebody with whom none is under way.
    pub(super) fn start_exchange(&mut self, now: Time) {
        if !self.is_resting {
            let partners = self.with_holdings(self.membership.partners(now));
            let is_last = self.phase != Phase::Training;
            let left = &self.final_exchanges_left;
            let is_wanted = |fragment| self.phase != Phase::Settling || left.contains_key(&fragment);
            self.pairwise.start(now, (partners, is_last), is_wanted, &self.reputation, &mut self.outbox);
        }
    }

    pub(super) fn on_leave_requested(&mut self, now: Time) {
        if self.phase == Phase::Leaving {
            return;
        }
        let was_training = self.phase == Phase::Training;
        // What is copied moves nobody before it is believed.
        let has_model = was_training && !self.is_rejoining() && !self.joining.is_checking();
        // Who ends a moment later may be left without the replica.
        let ended = self.synchronous.as_ref().filter(|synchronous| synchronous.is_needed(now) && !was_training);
        let stays = ended.map_or(self.leaving_max, |synchronous| self.leaving_max.max(synchronous.farewell_max()));
        self.phase = Phase::Leaving;
        self.phase_deadline = Some(now + stays);
        self.outbox.push(TrainerOrder::End);
        if has_model && self.pairwise.is_idle() && self.synchronous.is_none() {
            // What this node has learned since its last exchange should not be lost to the swarm.
            self.pairwise.begin_round();
            self.start_exchange(now);
        }
    }

    fn finish_leaving(&mut self, now: Time) {
        let out_of_time = self.phase_deadline.is_some_and(|deadline| deadline <= now);
        // Others may need the last slices to finish what this node has finished, or all of its replica.
        let is_needed = self.synchronous.as_ref().is_some_and(|synchronous| synchronous.is_needed(now));
        if out_of_time || (self.pairwise.is_done() && !self.outbox.is_correction_pending() && !is_needed) {
            self.phase = Phase::Left;
            let connected: Vec<PeerId> = self.membership.connected().collect();
            for peer in connected {
                self.outbox.send(peer, Message::Leave);
            }
            self.outbox.push(Effect::Stop);
        }
    }
}
