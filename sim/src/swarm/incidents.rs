//! What a scenario does to its swarm.

use std::time::Duration;

use murmur_protocol::{Ending, Event};

use super::Swarm;
use crate::happening::Happening;
use crate::record::OrderedEnd;
use crate::scenario::{Disk, HostIndex, Incident};

impl Swarm {
    pub(super) fn on_incident(&mut self, incident: Incident) {
        if let Some(host) = incident.addressee()
            && let resumes_at = self.paused_until[host]
            && resumes_at > self.queue.now()
        {
            let life = self.hosts[host].as_ref().map(|host| host.life);
            let postponed = life.map(|life| Happening::Postponed { host, life, incident: Box::new(incident) });
            return postponed.into_iter().for_each(|postponed| self.queue.push(resumes_at, postponed));
        }
        match incident {
            Incident::Crash(host) => self.crash(host),
            Incident::Restart { host, same_identity, disk } => self.restart(host, same_identity, disk),
            Incident::Leave(host) => self.tell(host, Event::LeaveRequested),
            Incident::Pause(host, duration) => self.pause(host, duration),
            Incident::SlowTrainer(host, factor) => self.slow_down(host, factor),
            Incident::DiskFull(host) => self.disks[host].is_full = true,
            Incident::DiskFreed(host) => self.disks[host].is_full = false,
            Incident::Break(one, other) => {
                self.network.links_between(one, other).into_iter().for_each(|link| self.break_link(link));
            }
            Incident::PathBecomes { ends, is_direct } => self.change_path(ends, is_direct),
            Incident::LinkBecomes(one, other, spec) => {
                self.network.set_way(one, other, spec);
                self.cut_links();
            }
            Incident::Split(hosts) => {
                self.network.split(&hosts);
                self.cut_links();
            }
            Incident::SplitOneWay(hosts) => {
                self.network.split_one_way(&hosts);
                self.cut_links();
            }
            Incident::Heal => self.network.heal(),
            Incident::NetworkBecomes(spec) => self.network.spec = spec,
            Incident::StopLearning => {
                self.catch_up_everywhere();
                self.is_learning = false;
            }
            Incident::StopReporting => {
                self.catch_up_everywhere();
                self.is_reporting = false;
                self.reports_end = Some(self.queue.now());
                for host in self.hosts.iter_mut().flatten() {
                    host.measure_node(&mut self.history.peaks);
                    host.tally.counts_rounds = false;
                }
            }
            Incident::Outdated(host) => self.go_back(host),
            Incident::Holds(host, holding) => self.hold(host, holding),
            Incident::Finish { at, steps } => self.finish(at, steps),
            Incident::Tell(host, event) => self.tell(host, *event),
        }
    }

    /// Both ends learn of it at once, where they are connected; payloads on their way are lost with the direct path.
    fn change_path(&mut self, (one, other): (HostIndex, HostIndex), is_direct: bool) {
        self.network.set_path(one, other, is_direct);
        for (index, other) in [(one, other), (other, one)] {
            let Some(peer) = self.peer_of(other) else { continue };
            let host = self.hosts[index].as_ref();
            let Some((life, link)) = host.and_then(|host| Some((host.life, host.link_to(peer)?))) else { continue };
            if !is_direct {
                self.break_off_transfers(index, life, link);
            }
            let range = self.scenario.nodes[other].range.filter(|_| is_direct);
            let range = range.map(|range| Event::RangeFound { peer, range });
            // One that stands still hears of it when it goes on.
            for event in [Some(Event::PathChanged { peer, is_direct }), range].into_iter().flatten() {
                self.reply(index, Duration::ZERO, event);
            }
        }
    }

    /// The founder's key is used at a host, where one runs that has a model.
    fn finish(&mut self, index: HostIndex, steps: f64) {
        self.catch_up(index);
        let Some(host) = self.hosts[index].as_ref().filter(|host| host.trainer.has_model) else { return };
        let from = host.trainer.progress;
        let until = from + steps;
        let order = self.founder.order(self.queue.now(), Ending { from, until });
        self.catch_up_everywhere();
        self.history.end = Some(OrderedEnd { until, disagreement: self.disagreement() });
        self.tell(index, Event::FinishOrdered { order });
    }

    /// Checkpoints are made only for those who read them: restarts, and copies.
    pub(super) fn mark_disks_that_are_read(&mut self) {
        let readers = self.scenario.incidents.iter().filter_map(|(_, incident)| match incident {
            Incident::Restart { host, disk: Disk::Kept, .. } => Some(*host),
            _ => None,
        });
        let copied = self.scenario.nodes.iter().filter_map(|plan| plan.double_of);
        let readers: Vec<HostIndex> = readers.chain(copied).collect();
        readers.into_iter().for_each(|host| self.disks[host].is_read = true);
    }

    /// What is cut lasts until nothing was heard for too long.
    fn cut_links(&mut self) {
        for link in self.network.cut() {
            // A network falls apart way by way: what is cut already has its time.
            if self.network.set_starving(link, true) {
                self.starve(link);
            }
        }
    }
}
