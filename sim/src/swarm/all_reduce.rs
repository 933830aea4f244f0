//! Trainers while all members average at once: they stand still until the node orders a contribution, which is the gradient of a batch,
//! and step with the sum of all.
//!
//! A contribution takes as long as a step. What the node orders meanwhile takes the place of it.

use std::time::Duration;

use murmur_protocol::collective::Members;
use murmur_protocol::numerics::state_digest;
use murmur_protocol::scheme::Scheme;
use murmur_protocol::{Event, Payload, RequestId, Snapshot, TrainerOrder};

use super::{Sabotage, Swarm};
use crate::checks::SumTaken;
use crate::happening::{Happening, Life};
use crate::scenario::HostIndex;

/// How long a trainer takes to load a replica. A guess.
const LOADING: Duration = Duration::from_millis(1);

impl Swarm {
    /// From now on the trainer computes what it is asked for, or steps by itself.
    pub(super) fn average(&mut self, index: HostIndex, scheme: Scheme) {
        self.catch_up(index);
        let (now, is_synchronous) = (self.queue.now(), self.scenario.synchronous.is_on());
        let Some(host) = self.hosts[index].as_mut() else { return };
        host.scheme = scheme;
        // What was to be contributed is void.
        host.contribution += 1;
        match scheme {
            Scheme::AllReduce if is_synchronous => host.step_clock.end(now),
            Scheme::AllReduce => host.step_clock.stop(now),
            Scheme::Pairs if host.trainer.is_training => host.step_clock.begin(now),
            Scheme::Pairs => {}
        }
        self.schedule_trainer(index);
        self.set_idle_boundary(index);
    }

    pub(super) fn order_member(&mut self, index: HostIndex, order: TrainerOrder) {
        match order {
            TrainerOrder::Contribute { request } => self.plan_contribution(index, request),
            TrainerOrder::TakeUp { sum, members, progress } => self.take_up(index, &sum, members, progress),
            TrainerOrder::LoadReplica { request, replica, progress } => {
                self.load_replica(index, request, &replica, progress);
            }
            _ => {}
        }
    }

    fn plan_contribution(&mut self, index: HostIndex, request: RequestId) {
        let now = self.queue.now();
        let Some(host) = self.hosts[index].as_mut().filter(|host| !host.trainer.is_run_over()) else { return };
        host.contribution += 1;
        let (life, number) = (host.life, host.contribution);
        let due = now + host.step_clock.step_time();
        self.queue.push(due, Happening::ContributionDue { host: index, life, number, request });
    }

    pub(super) fn on_contribution_due(&mut self, index: HostIndex, life: Life, number: u64, request: RequestId) {
        let Some(host) = self.living(index, life).filter(|host| host.contribution == number) else { return };
        let digest = state_digest(&host.trainer.values());
        let contribution = Snapshot::from(host.trainer.contribution());
        host.tally.contributing += host.step_clock.step_time();
        let report = host.trainer.report();
        self.tell_life(index, life, Event::Contributed { request, contribution, digest, report });
    }

    fn take_up(&mut self, index: HostIndex, sum: &Snapshot, members: u32, progress: f64) {
        let at = self.queue.now();
        let Some(host) = self.hosts[index].as_mut() else { return };
        let times = if host.node.is(Sabotage::TakesSumsUpTwice) && index == 1 { 2 } else { 1 };
        for _ in 0..times {
            host.trainer.take_up(sum, members, progress);
        }
        let replica = state_digest(&host.trainer.values());
        let group: Members = host.group.iter().copied().collect();
        let sum = state_digest(sum.values());
        let verdict = self.one_replica.taken(SumTaken { host: index, at, progress, members, group, sum, replica });
        self.history.find(verdict);
        self.end_where_it_is_over(index);
    }

    fn load_replica(&mut self, index: HostIndex, request: RequestId, replica: &Payload, progress: f64) {
        let Some(host) = self.hosts[index].as_mut() else { return };
        // A contribution on its way is of the replica before.
        host.contribution += 1;
        let accepted = host.trainer.load_replica(replica, progress);
        let report = host.trainer.report();
        self.reply(index, LOADING, Event::StateLoaded { request, accepted, report });
        self.end_where_it_is_over(index);
    }

    fn end_where_it_is_over(&mut self, index: HostIndex) {
        let Some(host) = self.hosts[index].as_mut().filter(|host| host.trainer.is_run_over()) else { return };
        host.contribution += 1;
        let report = host.trainer.report();
        self.reply(index, 2 * LOADING, Event::TrainingCompleted(report));
    }
}
