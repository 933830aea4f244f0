//! The simulation itself: takes the next happening, tells the node concerned, carries out what it orders.
//!
//! The loop is the driver of the core's contract, many times over: one event, all effects, the next deadline.

mod delivery;
mod effects;
mod life;

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_protocol::random::{Generator, stream};
use murmur_protocol::{Event, ModelLayout, PeerId, Status, Time};
use std::sync::Arc;

use crate::happening::{Happening, Life};
use crate::host::Host;
use crate::network::Network;
use crate::queue::Queue;
use crate::record::{LifeRecord, Record};
use crate::scenario::{HostIndex, Incident, Scenario};
use crate::trace::Trace;

/// How often a host is woken in one instant before it counts as busy for nothing.
const WAKES_IN_ONE_INSTANT_MAX: u32 = 3;

/// A simulated swarm.
#[derive(Debug)]
pub struct Swarm {
    scenario: Scenario,
    seed: u64,
    layout: Arc<ModelLayout>,
    queue: Queue,
    network: Network,
    /// The running processes.
    hosts: Vec<Option<Host>>,
    /// Whose identity is whose host; of all lives.
    identities: BTreeMap<PeerId, HostIndex>,
    /// How often each host lost its identity.
    strangers: Vec<u64>,
    /// Until when each host stands still.
    paused_until: Vec<Time>,
    worker_dice: Generator,
    next_life: Life,
    is_learning: bool,
    is_reporting: bool,
    keeps_merges: bool,
    /// Wakes of one host in one instant.
    wakes: (HostIndex, Time, u32),
    dead: Vec<LifeRecord>,
    /// All but the lives, which [`record`](Self::record) adds.
    history: Record,
    trace: Trace,
}

impl Swarm {
    /// A swarm at the beginning of its scenario. `seed` decides everything that the scenario leaves open.
    ///
    /// # Panics
    /// Later on, when a transformer's specification does not pass [`TransformerSpec::check`](crate::TransformerSpec::check).
    pub fn new(scenario: Scenario, seed: u64) -> Swarm {
        let count = scenario.nodes.len();
        let mut swarm = Swarm {
            seed,
            layout: Arc::new(scenario.layout()),
            queue: Queue::default(),
            network: Network::new(scenario.network.clone(), seed),
            hosts: (0..count).map(|_| None).collect(),
            identities: BTreeMap::new(),
            strangers: vec![0; count],
            paused_until: vec![Time::ZERO; count],
            worker_dice: stream(seed, "simulated workers", &[]),
            next_life: 0,
            is_learning: true,
            is_reporting: true,
            keeps_merges: true,
            wakes: (0, Time::ZERO, 0),
            dead: Vec::new(),
            history: Record::default(),
            trace: Trace::default(),
            scenario,
        };
        for (host, plan) in swarm.scenario.nodes.iter().enumerate() {
            swarm.queue.push(Time::from_start(plan.begins_at), Happening::Begins { host });
        }
        for (time, incident) in &swarm.scenario.incidents {
            swarm.queue.push(Time::from_start(*time), Happening::Incident(incident.clone()));
        }
        swarm
    }

    /// Keeps no record of corrections, two bytes a parameter and exchange: for long runs of large models without checks.
    pub fn without_merges(mut self) -> Swarm {
        self.keeps_merges = false;
        self
    }

    /// Lets everything happen up to and including `time`.
    pub fn run_until(&mut self, time: Duration) {
        let limit = Time::from_start(time);
        while let Some(happening) = self.queue.pop_until(limit) {
            self.happen(happening);
        }
    }

    /// What checks look at, as of now.
    pub fn record(&self) -> Record {
        let living = self.hosts.iter().flatten().map(|host| host.record(self.queue.now(), true));
        Record { lives: self.dead.iter().cloned().chain(living).collect(), ..self.history.clone() }
    }

    /// BLAKE3 over all events and effects so far, and their number.
    pub fn fingerprint(&self) -> ([u8; 32], u64) {
        (self.trace.digest(), self.trace.entries)
    }

    /// The last events (`<`) and effects (`>`), a line each, for people.
    pub fn last_lines(&self) -> impl Iterator<Item = &str> {
        self.trace.last_lines()
    }

    /// A picture of a running node.
    pub fn status(&self, host: HostIndex) -> Option<Status> {
        self.hosts[host].as_ref().map(|host| host.node.status())
    }

    /// Whether a host's process runs: it has begun and neither crashed nor stopped.
    pub fn is_running(&self, host: HostIndex) -> bool {
        self.hosts[host].as_ref().is_some_and(|host| !host.has_stopped)
    }

    /// The host with this identity, in any life.
    pub fn host_of(&self, peer: PeerId) -> Option<HostIndex> {
        self.identities.get(&peer).copied()
    }

    fn happen(&mut self, happening: Happening) {
        let resumes_at = happening.addressee().map(|host| self.paused_until[host]);
        if let Some(resumes_at) = resumes_at
            && resumes_at > self.queue.now()
        {
            self.queue.push(resumes_at, happening);
            return;
        }
        match happening {
            Happening::Begins { host } => self.begin(host, self.scenario.nodes[host].start),
            Happening::Incident(incident) => self.on_incident(incident),
            Happening::Told { host, life, event } => self.tell_life(host, life, event),
            Happening::Woken { host, life, wake } => self.on_woken(host, life, wake),
            Happening::StepEnded { host, life, stint } => self.on_step_ended(host, life, stint),
            Happening::IdleBoundary { host, life } => self.on_idle_boundary(host, life),
            Happening::DialArrived { dialler, life, target, expected, addresses } => {
                self.on_dial_arrived((dialler, life), target, expected, addresses);
            }
            Happening::LinkOpened { host, life, link } => self.on_link_opened(host, life, link),
            Happening::LinkLost { host, life, link } => self.on_link_lost(host, life, link),
            Happening::MessageArrived { link, to, message } => self.on_message_arrived(link, to, message),
            Happening::TransferArrived { link, to, from, transfer, header, payload, confirmed } => {
                self.on_transfer_arrived(link, to, from, (transfer, confirmed), header, payload);
            }
            Happening::TransferEnded { host, life, transfer, finished } => {
                self.on_transfer_ended(host, life, transfer, finished);
            }
            Happening::LinksClosed { host, life } => self.on_links_closed(host, life),
        }
    }

    fn on_incident(&mut self, incident: Incident) {
        match incident {
            Incident::Crash(host) => self.crash(host),
            Incident::Restart { host, same_identity } => self.restart(host, same_identity),
            Incident::Leave(host) => self.tell(host, Event::LeaveRequested),
            Incident::Pause(host, duration) => self.pause(host, duration),
            Incident::Break(one, other) => {
                let joined = self.network.links.iter().filter(|(_, link)| link.joins(one, other) && !link.broken);
                joined.map(|(link, _)| *link).collect::<Vec<_>>().into_iter().for_each(|link| self.break_link(link));
            }
            Incident::Split(hosts) => {
                let cut = self.network.split(&hosts);
                cut.into_iter().for_each(|link| self.break_link(link));
            }
            Incident::Heal => self.network.heal(),
            Incident::NetworkBecomes(spec) => self.network.spec = spec,
            Incident::StopLearning => self.is_learning = false,
            Incident::StopReporting => self.is_reporting = false,
            Incident::Tell(host, event) => self.tell(host, *event),
        }
    }

    fn on_woken(&mut self, host: HostIndex, life: Life, wake: u64) {
        let now = self.queue.now();
        if self.living(host, life).is_none_or(|host| host.wake.0 != wake) {
            return;
        }
        self.wakes = match self.wakes {
            (last, time, count) if last == host && time == now => (host, now, count + 1),
            _ => (host, now, 1),
        };
        if self.wakes.2 > WAKES_IN_ONE_INSTANT_MAX {
            // Leaves the node asleep until something else happens, so that the run ends and the check can tell.
            self.history.busy_wakes += 1;
            return;
        }
        if let Some(host) = &self.hosts[host] {
            host.measure_node(&mut self.history.peaks);
        }
        self.tell(host, Event::TimePassed);
    }

    /// Tells one life; a fact for an earlier one is void.
    fn tell_life(&mut self, host: HostIndex, life: Life, event: Event) {
        if self.living(host, life).is_some() {
            self.tell(host, event);
        }
    }

    /// One event, all effects, the next deadline.
    fn tell(&mut self, index: HostIndex, event: Event) {
        let now = self.queue.now();
        let Some(host) = self.hosts[index].as_mut().filter(|host| !host.has_stopped) else { return };
        self.trace.write(now, index, '<', &event);
        let merged = host.note_reply(&event);
        host.node.handle(now, event);
        self.drain(index, merged);
    }

    fn living(&mut self, host: HostIndex, life: Life) -> Option<&mut Host> {
        self.hosts[host].as_mut().filter(|host| host.life == life && !host.has_stopped)
    }
}
