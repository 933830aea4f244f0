//! Beginning, pausing and ending processes, and the steps of their trainers.

use std::time::Duration;

use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Bootstrap, Config, Event, Node, PeerId, Start, Time, TrainingReport};

use super::Swarm;
use crate::happening::{Happening, Life};
use crate::host::{Host, address_of, identity};
use crate::scenario::HostIndex;
use crate::trainer::Trainer;

/// A trainer that does not train looks at its requests this soon.
const IDLE_BOUNDARY: Duration = Duration::from_millis(1);

impl Swarm {
    pub(super) fn begin(&mut self, index: HostIndex, start: Start) {
        let now = self.queue.now();
        let life = self.next_life;
        self.next_life += 1;
        let plan = self.scenario.nodes[index].clone();
        let peer = identity(self.seed, index, self.strangers[index]);
        self.identities.insert(peer, index);
        // Another seed in each life, as a daemon has.
        let life_seed: u64 = stream(self.seed, "simulated life", &[&life.to_le_bytes()]).random();
        let config = Config {
            gossip: self.scenario.gossip.clone(),
            start,
            training: TrainingReport::default(),
            bootstrap: plan.bootstrap.iter().map(|host| Bootstrap { peer: None, address: address_of(*host) }).collect(),
            remembered: Vec::new(),
            first_exchange: now.since_start().as_micros() as u64,
        };
        let trainer = Trainer::new(&self.scenario, index, (self.seed, life_seed), start == Start::WithModel);
        let node = Node::new(config, peer, self.layout.clone(), life_seed, now);
        self.hosts[index] = Some(Host::new((index, life), peer, node, trainer, &plan));
        self.drain(index, None);
        self.tell(index, Event::AddressFound { address: address_of(index) });
    }

    /// Kill -9, then another beginning from an empty disk.
    pub(super) fn restart(&mut self, host: HostIndex, same_identity: bool) {
        self.crash(host);
        self.strangers[host] += u64::from(!same_identity);
        self.begin(host, Start::FromPeer);
    }

    /// The process is gone; its peers find out in their own time.
    pub(super) fn crash(&mut self, host: HostIndex) {
        if let Some(dead) = self.hosts[host].take() {
            // The step that it was about to end counts for nothing.
            let mut life = dead.record(self.queue.now(), false);
            life.interruptions += 1;
            self.dead.push(life);
            self.paused_until[host] = Time::ZERO;
            dead.links.iter().for_each(|link| self.break_link(*link));
        }
    }

    pub(super) fn pause(&mut self, index: HostIndex, duration: Duration) {
        let now = self.queue.now();
        let Some(host) = self.hosts[index].as_mut() else { return };
        let paused_until = &mut self.paused_until[index];
        let until = (*paused_until).max(now + duration);
        if host.trainer.is_training {
            host.paused_while_training += until - (*paused_until).max(now);
            host.interruptions += 1;
        }
        *paused_until = until;
    }

    /// The node has left: its process flushes what it has written, then closes.
    pub(super) fn stop(&mut self, index: HostIndex) {
        let now = self.queue.now();
        let flushed_at = now + self.network.spec.latency.1;
        let Some(host) = self.hosts[index].as_mut() else { return };
        host.end_training(now);
        host.has_stopped = true;
        let life = host.life;
        self.queue.push(flushed_at, Happening::LinksClosed { host: index, life });
    }

    pub(super) fn on_links_closed(&mut self, index: HostIndex, life: Life) {
        if self.hosts[index].as_ref().is_some_and(|host| host.life == life) {
            self.crash(index);
        }
    }

    pub(super) fn begin_steps(&mut self, index: HostIndex) {
        let now = self.queue.now();
        let host = self.hosts[index].as_mut().expect("ordered by its node");
        host.begin_training(now);
        let (life, stint, step_time) = (host.life, host.stint, host.step_time);
        self.queue.push(now + step_time, Happening::StepEnded { host: index, life, stint });
    }

    pub(super) fn on_step_ended(&mut self, index: HostIndex, life: Life, stint: u64) {
        let now = self.queue.now();
        let (is_learning, is_reporting) = (self.is_learning, self.is_reporting);
        let Some(host) = self.living(index, life) else { return };
        if !host.trainer.is_training || host.stint != stint {
            return;
        }
        host.trainer.step(1, is_learning, is_reporting);
        let report = host.trainer.report();
        // With a limit of its own the node goes on to it, whatever the others' pace.
        let is_over = host.steps_max.map_or(host.trainer.is_run_over(), |steps_max| host.trainer.steps >= steps_max);
        if is_over {
            host.end_training(now);
        } else {
            let next = now + host.step_time;
            self.queue.push(next, Happening::StepEnded { host: index, life, stint });
        }
        self.serve_orders(index);
        if is_over {
            self.tell_life(index, life, Event::TrainingCompleted(report));
        } else if is_reporting {
            self.tell_life(index, life, Event::StepsCompleted(report));
        }
    }

    pub(super) fn on_idle_boundary(&mut self, index: HostIndex, life: Life) {
        if let Some(host) = self.living(index, life) {
            host.idle_boundary_is_set = false;
            self.serve_orders(index);
        }
    }

    /// Makes sure that an order to a trainer that stands still finds a boundary.
    pub(super) fn set_idle_boundary(&mut self, index: HostIndex) {
        let soon = self.queue.now() + IDLE_BOUNDARY;
        let host = self.hosts[index].as_mut().expect("has orders");
        if !host.trainer.is_training && host.trainer.has_orders() && !host.idle_boundary_is_set {
            host.idle_boundary_is_set = true;
            let life = host.life;
            self.queue.push(soon, Happening::IdleBoundary { host: index, life });
        }
    }

    fn serve_orders(&mut self, index: HostIndex) {
        let Some(host) = self.hosts[index].as_mut() else { return };
        let life = host.life;
        let done = host.trainer.boundary();
        for outcome in done {
            if let Some(merge) = outcome.landed {
                self.history.merges[merge].landed = true;
            }
            if let Some(reply) = outcome.reply {
                self.tell_life(index, life, reply);
            }
        }
    }

    /// The present identity at an address.
    pub(super) fn peer_of(&self, host: HostIndex) -> Option<PeerId> {
        self.hosts[host].as_ref().filter(|host| !host.has_stopped).map(|host| host.peer)
    }
}
