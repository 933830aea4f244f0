//! What a collective's orders mean for the network, the trainer and the worker.

use super::Synchronous;
use crate::bulk::{Payload, Snapshot};
use crate::collective::{Order, Version};
use crate::effect::{TrainerOrder, WorkerOrder};
use crate::message::{Message, TransferHeader};
use crate::numerics::{Accumulator, ReduceJob, ReduceStep};
use crate::outbox::{Outbox, Purpose};
use crate::part::Selection;
use crate::time::Time;

impl Synchronous {
    pub(super) fn carry_out(&mut self, now: Time, order: Order, out: &mut Outbox) {
        match order {
            Order::Contribute { .. } => {
                self.contribution_number += 1;
                self.contribution_ordered = Some(now);
                let purpose = Purpose::Contribution(self.contribution_number);
                out.request(purpose, |request| TrainerOrder::Contribute { request });
            }
            Order::Begin { .. } => self.begin(out),
            Order::Send { to, name, what } => {
                let range = self.codec.elements(what.slices, self.values);
                match (&self.written, self.accumulator.take()) {
                    (Some((of, payload)), accumulator) if *of == range => {
                        self.accumulator = accumulator;
                        self.sending.push(to, TransferHeader::Slices(name), payload.clone());
                    }
                    (_, Some(accumulator)) => {
                        self.writing = Some((to, name, range.clone()));
                        self.order_step(ReduceStep::Write { accumulator, range, action: what.action }, out);
                    }
                    (_, None) => {}
                }
            }
            Order::Absorb { name, what } => {
                self.written = None;
                let range = self.codec.elements(what.slices, self.values);
                let bytes = self.codec.bytes(range.len());
                let fitting = self.kept.remove(&name).filter(|(_, payload)| payload.len() == bytes);
                if let (Some((_, received)), Some(accumulator)) = (fitting, self.accumulator.take()) {
                    let step = ReduceStep::Absorb { accumulator, range, received, action: what.action };
                    self.order_step(step, out);
                } else {
                    self.lose_sum(now);
                }
            }
            Order::Finish { operation, version, members } => {
                self.kept.retain(|name, _| name.operation > operation || name.epoch > version.epoch);
                (self.contribution, self.written) = (None, None);
                let progress = self.progress(version);
                let Some(Accumulator { sum, residual }) = self.accumulator.take() else {
                    return self.lose_replica(now);
                };
                self.residual = residual;
                self.collective.taken_up();
                out.push(TrainerOrder::TakeUp { sum, members: members.len() as u32, progress });
            }
            Order::GiveState { to, version, epoch } => {
                if self.copying != Some(version) {
                    self.copying = Some(version);
                    let (purpose, selection) = (Purpose::ReplicaCopy(version), Selection::Replica);
                    out.request(purpose, |request| TrainerOrder::TakeSnapshot { request, selection });
                }
                self.giving.retain(|(other, ..)| *other != to);
                self.giving.push_back((to, epoch, version));
            }
            Order::TakeState { version, epoch } => {
                let replica = self.replicas.remove(&(epoch, version));
                self.replicas.clear();
                // It is of contributions that another replica has not had.
                self.residual = Snapshot::from(Vec::new());
                match replica {
                    Some((from, replica)) => {
                        let progress = self.progress(version);
                        let purpose = Purpose::ReplicaLoad(from);
                        out.request(purpose, |request| TrainerOrder::LoadReplica { request, replica, progress });
                    }
                    None => self.lose_replica(now),
                }
            }
            Order::Say { to, word } => out.send(to, Message::Synchronous(word)),
        }
    }

    fn begin(&mut self, out: &mut Outbox) {
        self.written = None;
        let Some(contribution) = self.contribution.clone() else {
            self.accumulator = None;
            return;
        };
        let residual = self.residual.clone();
        if self.codec.rounds() {
            self.order_step(ReduceStep::Begin { contribution, residual }, out);
        } else {
            self.accumulator = Some(Accumulator { sum: contribution, residual });
        }
    }

    /// What follows waits for the worker's reply.
    fn order_step(&mut self, step: ReduceStep, out: &mut Outbox) {
        self.is_reducing = true;
        let job = ReduceJob { codec: self.codec, step };
        out.request(Purpose::Reduction, |request| WorkerOrder::Reduce { request, job });
    }

    pub(super) fn on_reduced(&mut self, accumulator: Accumulator, written: Option<Payload>) {
        self.accumulator = Some(accumulator);
        let Some(((to, name, range), payload)) = self.writing.take().zip(written) else { return };
        // Also where this node has finished and belongs to a later epoch: others may still need them.
        self.written = Some((range, payload.clone()));
        self.sending.push(to, TransferHeader::Slices(name), payload);
    }

    /// Sends the copy of the replica of this version, where there is one, to all that it was made for and that still belong to the
    /// epoch. Who has ended has an epoch with each.
    pub(super) fn give(&mut self, version: Version, replica: Option<&Snapshot>) {
        self.copying = self.copying.filter(|copying| *copying != version);
        let (those, others) = std::mem::take(&mut self.giving).into_iter().partition(|(.., of)| *of == version);
        self.giving = others;
        for (to, epoch, version) in Vec::from(those) {
            let is_wanted = epoch == self.collective.epoch() || self.collective.is_over();
            if let Some(replica) = replica.filter(|_| is_wanted) {
                self.sending.push(to, TransferHeader::Replica { epoch, version }, replica.to_payload());
            }
        }
    }
}
