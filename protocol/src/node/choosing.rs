//! Where members choose how they average: what this node tells of its costs, and how it goes over from one scheme to the
//! other.
//!
//! All-reduces begin once no exchange is under way, so that none is merged on one side alone. They end at once: members are a
//! step apart then, as they are where they average in pairs.

use super::Node;
use crate::choice::{Own, SchemeChoice};
use crate::collective::{Counts, EPOCH_NUMBER_MAX, LISTENING};
use crate::config::Config;
use crate::effect::TrainerOrder;
use crate::layout::ModelLayout;
use crate::manifest::SynchronousSpec;
use crate::message::Message;
use crate::misbehaviour::Misbehaviour;
use crate::notice::Notice;
use crate::numerics::contribution_values;
use crate::peer::PeerId;
use crate::scheme::{Scheme, SchemeOrder};
use crate::status::Phase;
use crate::synchronous::Synchronous;
use crate::time::Time;

/// The choice, and what it takes to carry it out.
#[derive(Debug)]
pub(super) struct Choosing {
    spec: SynchronousSpec,
    /// Of a contribution.
    values: usize,
    choice: SchemeChoice,
    /// Above all epochs that this node has announced.
    next_epoch: u64,
    /// What all-reduces were, until the last time that they ended.
    earlier: Counts,
}

impl Choosing {
    /// `None` where the run file has chosen.
    pub(super) fn new(config: &Config, layout: &ModelLayout, now: Time) -> Option<Choosing> {
        let spec = config.synchronous.clone();
        let shape = spec.topology.shape().filter(|_| spec.auto)?;
        let values = contribution_values(layout.parameters(), config.weighs_members);
        Some(Choosing {
            choice: SchemeChoice::new(shape, spec.codec().bytes(values), spec.members_min as usize, now),
            next_epoch: config.first_number.min(EPOCH_NUMBER_MAX / 2),
            earlier: Counts::default(),
            values,
            spec,
        })
    }

    pub(super) fn next_deadline(&self) -> Time {
        self.choice.next_deadline()
    }
}

impl Node {
    /// Whether this node is to average with all at once, and waits for the end of exchanges in pairs.
    pub(super) fn is_gathering(&self) -> bool {
        let scheme = self.choosing.as_ref().map(|choosing| choosing.choice.scheme());
        scheme == Some(Scheme::AllReduce) && self.synchronous.is_none() && self.phase == Phase::Training
    }

    /// Tells a peer what holds, where something was decided. It may know it: then nothing comes of it. One whose run has ended in pairs
    /// takes part in no all-reduce, and gives its model as it did: it sends nobody to a group that it does not belong to.
    pub(super) fn tell_scheme(&mut self, peer: PeerId) {
        let has_ended_in_pairs = self.synchronous.is_none() && matches!(self.phase, Phase::Settling | Phase::Completed);
        if let Some(order) = self.choosing.as_ref().and_then(|choosing| choosing.choice.order())
            && !(has_ended_in_pairs && order.scheme == Scheme::AllReduce)
        {
            self.outbox.send(peer, Message::Scheme(order));
        }
    }

    pub(super) fn on_scheme_message(&mut self, now: Time, peer: PeerId, message: &Message) -> Result<(), Misbehaviour> {
        let Some(choosing) = &mut self.choosing else { return Err(Misbehaviour::Unsolicited) };
        match message {
            Message::Costs(costs) => choosing.choice.on_costs(now, peer, *costs),
            Message::Scheme(order) => {
                if choosing.choice.hear(now, *order)? {
                    self.on_new_scheme(Some(peer), *order);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A peer is gone, or no transfers reach it.
    pub(super) fn on_costs_lost(&mut self, peer: PeerId) {
        if let Some(choosing) = &mut self.choosing {
            choosing.choice.on_lost(peer);
        }
    }

    /// Looks what averaging costs, and does what was chosen.
    pub(super) fn choose(&mut self, now: Time) {
        let is_due = self.choosing.as_ref().is_some_and(|choosing| now >= choosing.next_deadline());
        let own = is_due.then(|| self.own_costs(now));
        let choosing = self.choosing.as_mut().zip(own);
        let order = choosing.and_then(|(choosing, own)| choosing.choice.look(now, &own, &mut self.outbox));
        if let Some(order) = order {
            self.on_new_scheme(None, order);
        }
        self.follow_scheme(now);
    }

    fn own_costs(&self, now: Time) -> Own {
        let contribution = self.synchronous.as_ref().and_then(Synchronous::contribution_seconds);
        let is_training = self.phase == Phase::Training && !self.is_resting && !self.is_rejoining();
        Own {
            me: self.me,
            costs: self.pairwise.costs(contribution).filter(|_| is_training),
            connected: self.membership.directly_connected().collect(),
            known: self.membership.member_count(now),
            finished: self.synchronous.as_ref().map(|synchronous| synchronous.finished(now)),
        }
    }

    fn on_new_scheme(&mut self, from: Option<PeerId>, order: SchemeOrder) {
        let SchemeOrder { scheme, by, reason, .. } = order;
        self.outbox.notice(Notice::SchemeChanged { scheme, by, reason });
        let others: Vec<PeerId> = self.membership.connected().filter(|peer| Some(*peer) != from).collect();
        others.into_iter().for_each(|peer| self.outbox.send(peer, Message::Scheme(order)));
    }

    fn follow_scheme(&mut self, now: Time) {
        let Some(choosing) = &self.choosing else { return };
        let is_there = self.synchronous.is_some();
        let is_ready = match self.phase {
            Phase::Joining => !self.joining.is_loading(),
            Phase::Training => !self.is_rejoining() && self.pairwise.is_done() && !self.outbox.is_correction_pending(),
            _ => false,
        };
        match choosing.choice.scheme() {
            Scheme::AllReduce if !is_there && is_ready && !self.is_resting => self.begin_all_reduces(now),
            // Who has ended lets others' models in from then on.
            Scheme::Pairs if is_there && self.phase != Phase::Leaving => self.end_all_reduces(now),
            _ => {}
        }
    }

    fn begin_all_reduces(&mut self, now: Time) {
        let Some(choosing) = &mut self.choosing else { return };
        choosing.next_epoch += 1;
        let progress = (self.phase == Phase::Training).then_some(self.pairwise.training().progress);
        let (who, state) = ((self.me, choosing.values), (choosing.next_epoch, progress));
        let member = Synchronous::seeking(&choosing.spec, who, state, now + LISTENING);
        let mut member = member.map(|member| member.after(choosing.earlier));
        self.joining.give_up(&mut self.outbox);
        self.outbox.push(TrainerOrder::Average(Scheme::AllReduce));
        if let Some(member) = &mut member {
            member.on_reachable(now, self.membership.directly_connected(), &mut self.outbox);
        }
        self.synchronous = member;
    }

    fn end_all_reduces(&mut self, now: Time) {
        let Some((choosing, synchronous)) = self.choosing.as_mut().zip(self.synchronous.take()) else { return };
        choosing.next_epoch = choosing.next_epoch.max(synchronous.epoch_number().min(EPOCH_NUMBER_MAX / 2));
        choosing.earlier = synchronous.counts(now);
        self.outbox.forget(|purpose| purpose.is_of_all_reduce());
        self.outbox.push(TrainerOrder::Average(Scheme::Pairs));
        match self.phase {
            Phase::Training => {
                self.pairwise.on_return_to_pairs(synchronous.contribution_seconds(), &mut self.outbox);
            }
            Phase::Settling | Phase::Completed => {
                self.pairwise.on_model_replaced(&mut self.outbox);
                self.end_in_pairs();
                // What it has learned is in all replicas.
                self.final_exchanges_left.clear();
            }
            Phase::Joining | Phase::Leaving | Phase::Left => {}
        }
    }
}
