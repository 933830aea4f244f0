//! Beginning, pausing and ending processes, and what they find on their disks.

use std::time::Duration;

use murmur_protocol::random::{RngExt, stream};
use murmur_protocol::{Bootstrap, Config, Event, Holding, RunEnd, Start, Time};

use super::sabotage::Sabotage;
use super::{Core, Swarm};
use crate::happening::{Happening, Life};
use crate::host::{Clock, Host, address_of, identity};
use crate::liar::Liar;
use crate::network::LinkId;
use crate::scenario::{Disk, HostIndex};
use crate::trainer::Trainer;

impl Swarm {
    pub(super) fn begin(&mut self, index: HostIndex, start: Start) {
        let now = self.queue.now();
        let life = self.next_life;
        self.next_life += 1;
        let plan = self.scenario.nodes[index].clone();
        // Whose data directory it is.
        let owner = plan.double_of.unwrap_or(index);
        let peer = identity(self.seed, owner, self.strangers[owner]);
        self.identities.entry(peer).or_insert(index);
        self.ended_at.remove(&peer);
        // Another seed in each life, as a daemon has.
        let life_seed: u64 = stream(self.seed, "simulated life", &[&life.to_le_bytes()]).random();
        let (start, saved) = match self.disks[owner].saved.clone() {
            Some(saved) => (Start::WithModel, Some(saved)),
            None => (start, None),
        };
        let mut trainer = match plan.helps.and_then(|captain| self.hosts[captain].as_ref()) {
            Some(captain) => Trainer::of_helper(&captain.trainer, &self.scenario, index),
            None => Trainer::new(&self.scenario, index, (self.seed, life_seed), start == Start::WithModel),
        };
        if let Some((saved, _)) = &saved {
            trainer.resume(saved);
        }
        if self.history.first_loss == 0.0 {
            self.history.first_loss = self.objective.loss(&trainer.values());
            self.history.alone_loss = self.scenario.trainer.alone_loss();
        }
        let is_later = self.dead.iter().any(|dead| dead.host == index);
        let set_back = if is_later { plan.clock_set_back } else { Duration::ZERO };
        let shown = Clock::new(plan.clock_rate).shows(now);
        let knows_holding = self.sabotage != Some(Sabotage::ExchangesAll);
        let config = Config {
            name: None,
            gossip: self.scenario.gossip.clone(),
            synchronous: self.scenario.synchronous.clone(),
            weighs_members: false,
            end: RunEnd { order: self.disks[owner].finish.clone(), ..self.founder.end() },
            holding: if knows_holding { plan.holding } else { Holding::ALL },
            start,
            training: trainer.report(),
            bootstrap: plan.bootstrap.iter().map(|host| Bootstrap { peer: None, address: address_of(*host) }).collect(),
            remembered: saved.map(|(_, known)| known).unwrap_or_default(),
            first_number: now.since_start().saturating_sub(set_back).as_micros() as u64,
            state_chunk: self.scenario.state_chunk,
            upload_bytes_per_second: None,
            leaving_max: self.scenario.leaving_max,
        };
        let node = Core::new(config, peer, self.layout.clone(), life_seed, shown, self.sabotage);
        let mut host = Host::new((index, life), peer, node, trainer, &plan, now);
        host.liar = plan.lie.map(|lie| Box::new(Liar::new(lie, self.seed, index, self.layout.parameters())));
        self.hosts[index] = Some(Box::new(host));
        if self.disks[index].is_read {
            self.queue.push(now + self.scenario.checkpoint_period, Happening::Checkpoint { host: index, life });
        }
        self.drain(index, None);
        self.tell(index, Event::AddressFound { address: address_of(index) });
    }

    /// Kill -9, then another beginning from what is left on the disk.
    pub(super) fn restart(&mut self, host: HostIndex, same_identity: bool, disk: Disk) {
        self.crash(host);
        self.strangers[host] += u64::from(!same_identity);
        if disk == Disk::Lost {
            (self.disks[host].saved, self.disks[host].finish) = (None, None);
        }
        self.begin(host, Start::FromPeer);
    }

    /// The process is gone; its peers find out in their own time.
    pub(super) fn crash(&mut self, index: HostIndex) {
        let now = self.queue.now();
        self.catch_up(index);
        let Some(mut dead) = self.hosts[index].take() else { return };
        self.history.deaths += 1;
        if !self.lives(dead.peer) {
            self.ended_at.insert(dead.peer, now);
        }
        // The step that it was about to end counts for nothing.
        dead.end_training(now);
        dead.measure_node(&mut self.history.peaks);
        self.dead.push(dead.record((now, now), false, &self.objective, None));
        self.paused_until[index] = Time::ZERO;
        for (_, link) in &dead.links {
            self.break_link(*link);
            self.network.close_end(*link, index);
        }
    }

    pub(super) fn pause(&mut self, index: HostIndex, duration: Duration) {
        let now = self.queue.now();
        self.catch_up(index);
        let Some(host) = self.hosts[index].as_mut() else { return };
        let until = self.paused_until[index].max(now + duration);
        host.step_clock.pause(now, until);
        self.paused_until[index] = until;
        let links: Vec<LinkId> = host.links.iter().map(|(_, link)| *link).collect();
        links.into_iter().for_each(|link| self.starve(link));
        self.schedule_trainer(index);
    }

    pub(super) fn slow_down(&mut self, index: HostIndex, factor: f64) {
        let now = self.queue.now();
        self.catch_up(index);
        if let Some(host) = self.hosts[index].as_mut() {
            host.step_clock.slow_down(now, factor);
            self.schedule_trainer(index);
        }
    }

    /// The node has left: its process flushes what it has written, then closes.
    pub(super) fn stop(&mut self, index: HostIndex) {
        let now = self.queue.now();
        let flushed_at = now + self.network.spec.latency.longest();
        self.catch_up(index);
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

    /// The trainer takes other fragments up and gives the rest away, between two steps.
    pub(super) fn hold(&mut self, index: HostIndex, holding: Holding) {
        self.catch_up(index);
        self.scenario.nodes[index].holding = holding;
        let held = self.fragments.held(holding).collect();
        if let Some(host) = self.hosts[index].as_mut() {
            host.trainer.hold(held);
        }
        self.tell(index, Event::HoldingChanged { holding });
    }

    /// The trainer has an older copy of what it holds, and tells.
    pub(super) fn go_back(&mut self, index: HostIndex) {
        self.catch_up(index);
        let Some(host) = self.hosts[index].as_mut().filter(|host| host.trainer.has_model && !host.has_stopped) else {
            return;
        };
        host.trainer.go_back();
        self.tell(index, Event::ModelOutdated);
    }

    /// Writes what the next life resumes from. On a full disk the last checkpoint stays.
    pub(super) fn on_checkpoint(&mut self, index: HostIndex, life: Life) {
        self.catch_up(index);
        let next = self.queue.now() + self.scenario.checkpoint_period;
        let is_full = self.disks[index].is_full;
        let Some(host) = self.living(index, life) else { return };
        let saved = (!is_full && host.trainer.has_model).then(|| (host.trainer.save(), host.node.status().known));
        self.queue.push(next, Happening::Checkpoint { host: index, life });
        if saved.is_some() {
            self.disks[index].saved = saved;
        }
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::Snapshot;
    use murmur_protocol::manifest::TransformerModel;

    use super::*;
    use crate::{Lie, Scenario, TrainerSpec, TransformerSpec};

    #[test]
    fn a_liar_shows_all_of_a_transformer() {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 32, context: 32, ..Default::default() };
        let trainer = TrainerSpec::Transformer(TransformerSpec { model, ..TransformerSpec::default() });
        let mut scenario = Scenario { trainer, ..Scenario::calm(2) };
        scenario.nodes[0].lie = Some(Lie::Stealth);
        let mut swarm = Swarm::new(scenario, 1);
        swarm.run_until(Duration::ZERO);
        let truth = Snapshot::from(vec![1.0; swarm.layout.parameters()]);
        let liar = swarm.hosts[0].as_mut().and_then(|host| host.liar.as_mut()).expect("it deceives");
        assert_eq!(liar.shows(&truth).values().len(), truth.values().len());
    }
}
