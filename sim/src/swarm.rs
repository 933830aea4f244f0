//! The simulation itself: takes the next happening, tells the node concerned, carries out what it orders.
//!
//! The loop is the driver of the core's contract, many times over: one event, all effects, the next deadline.

mod all_reduce;
mod delivery;
mod doubles;
mod effects;
mod founder;
mod incidents;
mod life;
mod observation;
mod sabotage;
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::numerics::Buffers;
use murmur_protocol::random::{Generator, stream};
use murmur_protocol::{Event, FinishOrder, Fragments, Message, ModelLayout, PeerId, Status, Time};

use founder::Founder;
pub(crate) use sabotage::Core;
pub use sabotage::Sabotage;

use crate::checks::{self, OneReplica};
use crate::happening::{Happening, Life};
use crate::host::Host;
use crate::network::Network;
use crate::queue::Queue;
use crate::record::{Ledger, LifeRecord, Record};
use crate::scenario::{HostIndex, Scenario};
use crate::trace::Trace;
use crate::trainer::{Objective, Saved};

/// How often a host is woken in one instant before it counts as busy for nothing.
const WAKES_IN_ONE_INSTANT_MAX: u32 = 3;

/// What a node holds takes some time to count: that is done on one of so many wakes.
const WAKES_PER_MEASUREMENT: u64 = 16;

/// A simulated swarm.
#[derive(Debug)]
pub struct Swarm {
    scenario: Scenario,
    seed: u64,
    sabotage: Option<Sabotage>,
    founder: Founder,
    layout: Arc<ModelLayout>,
    fragments: Fragments,
    objective: Objective,
    queue: Queue,
    network: Network,
    /// The running processes.
    hosts: Vec<Option<Box<Host>>>,
    /// Whose identity is whose host; of all lives.
    identities: BTreeMap<PeerId, HostIndex>,
    /// When the last life of each identity that lives no more ended.
    ended_at: BTreeMap<PeerId, Time>,
    /// How often each host lost its identity.
    strangers: Vec<u64>,
    /// Until when each host stands still.
    paused_until: Vec<Time>,
    disks: Vec<DiskState>,
    worker_dice: Generator,
    /// What trainers and networks refuse.
    driver_dice: Generator,
    /// Memory of payloads and corrections, which goes round.
    buffers: Buffers,
    next_life: Life,
    is_learning: bool,
    is_reporting: bool,
    /// When trainers stopped reporting, after which nobody begins an exchange.
    reports_end: Option<Time>,
    dead: Vec<LifeRecord>,
    ledger: Ledger,
    /// What members of a synchronous run have taken up.
    one_replica: OneReplica,
    /// Whether exchanges are written into the ledger.
    has_books: bool,
    exchanges: (u64, u64),
    /// All but the lives and the sums of corrections, which [`record`](Self::record) adds.
    history: Record,
    trace: Trace,
}

/// What a host's disk holds.
#[derive(Clone, Debug, Default)]
struct DiskState {
    /// Whether a restart will ever ask for it: checkpoints that nobody reads are not made.
    is_read: bool,
    is_full: bool,
    /// The order to finish the run; written as soon as it is heard.
    finish: Option<FinishOrder>,
    saved: Option<(Saved, Vec<murmur_protocol::message::KnownPeer>)>,
}

impl Swarm {
    /// A swarm at the beginning of its scenario. `seed` decides everything that the scenario leaves open.
    ///
    /// # Panics
    /// Where a synchronous run averages models; later on, when a transformer's specification does not pass
    /// [`TransformerSpec::check`](crate::TransformerSpec::check).
    pub fn new(scenario: Scenario, seed: u64) -> Swarm {
        Swarm::sabotaged(scenario, seed, None)
    }

    /// One whose nodes all make the same mistake, if any, to prove that the checks find it.
    pub fn sabotaged(scenario: Scenario, seed: u64, sabotage: impl Into<Option<Sabotage>>) -> Swarm {
        let sabotage = sabotage.into();
        let count = scenario.nodes.len();
        let of_gradients = scenario.synchronous.averages_gradients();
        assert!(of_gradients || !scenario.synchronous.is_on(), "simulated members average gradients");
        let liars = (0..count).filter(|host| scenario.nodes[*host].lie.is_some()).collect();
        let mut swarm = Swarm {
            seed,
            sabotage,
            founder: Founder::new(seed),
            layout: Arc::new(scenario.layout()),
            fragments: scenario.fragments(),
            objective: Objective::new(&scenario.trainer, seed),
            queue: Queue::default(),
            network: Network::new(scenario.network.clone(), &scenario.nodes, seed),
            hosts: (0..count).map(|_| None).collect(),
            identities: BTreeMap::new(),
            ended_at: BTreeMap::new(),
            strangers: vec![0; count],
            paused_until: vec![Time::ZERO; count],
            disks: vec![DiskState::default(); count],
            buffers: Buffers::new(),
            worker_dice: stream(seed, "simulated workers", &[]),
            driver_dice: stream(seed, "simulated drivers", &[]),
            next_life: 0,
            is_learning: true,
            is_reporting: true,
            reports_end: None,
            dead: Vec::new(),
            ledger: Ledger::new(liars),
            one_replica: OneReplica::default(),
            has_books: true,
            exchanges: (0, 0),
            history: Record { traffic: vec![Default::default(); count], ..Record::default() },
            trace: Trace::default(),
            scenario,
        };
        for (host, plan) in swarm.scenario.nodes.iter().enumerate() {
            swarm.queue.push(Time::from_start(plan.begins_at), Happening::Begins { host });
        }
        for (time, incident) in &swarm.scenario.incidents {
            swarm.queue.push(Time::from_start(*time), Happening::Incident(Box::new(incident.clone())));
        }
        swarm.mark_disks_that_are_read();
        swarm
    }

    /// Keeps the last events and effects in words from now on, for [`last_lines`](Self::last_lines).
    pub fn keep_lines(&mut self, count: usize) {
        self.trace.keep_lines(count);
    }

    /// For measurements of size and speed: events and effects are counted, and the fingerprint says nothing; exchanges are
    /// not compared side by side, so that of the checks those of whole exchanges find nothing.
    pub fn without_books(mut self) -> Swarm {
        self.trace.only_counts = true;
        self.has_books = false;
        self
    }

    /// Lets everything happen up to and including `time`.
    pub fn run_until(&mut self, time: Duration) {
        let limit = Time::from_start(time);
        while let Some(happening) = self.queue.pop_until(limit) {
            self.happen(happening);
        }
    }

    /// The time reached.
    pub fn now(&self) -> Duration {
        self.queue.now().since_start()
    }

    /// BLAKE3 over all events and effects so far, and their number.
    pub fn fingerprint(&self) -> ([u8; 32], u64) {
        self.trace.fingerprint()
    }

    /// The last events (`<`) and effects (`>`), a line each, for people; none without
    /// [`keep_lines`](Self::keep_lines).
    pub fn last_lines(&self) -> impl Iterator<Item = &str> {
        self.trace.last_lines()
    }

    /// Names of the kinds of events that nodes were told so far; none in a swarm [without books](Self::without_books).
    pub fn kinds_of_events(&self) -> &BTreeSet<&'static str> {
        self.trace.kinds()
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
            Happening::Incident(incident) => self.on_incident(*incident),
            Happening::Postponed { host, life, incident } => {
                if self.living(host, life).is_some() {
                    self.on_incident(*incident);
                }
            }
            Happening::Told { host, life, event } => self.tell_life(host, life, *event),
            Happening::Woken { host, life, wake } => self.on_woken(host, life, wake),
            Happening::TrainerDue { host, life, due } => self.on_trainer_due(host, life, due),
            Happening::IdleBoundary { host, life } => self.on_idle_boundary(host, life),
            Happening::ContributionDue { host, life, number, request } => {
                self.on_contribution_due(host, life, number, request);
            }
            Happening::Checkpoint { host, life } => self.on_checkpoint(host, life),
            Happening::DialArrived(dial) => self.on_dial_arrived(*dial),
            Happening::LinkOpened { host, life, link, dialed } => self.on_link_opened(host, life, link, dialed),
            Happening::LinkLost { host, life, link } => self.on_link_lost(host, life, link),
            Happening::LinkStarved { link } => self.on_link_starved(link),
            Happening::MessageArrived { link, to, message } => self.on_message_arrived(link, to, *message),
            Happening::TransferArrived(transfer) => self.on_transfer_arrived(*transfer),
            Happening::TransferEnded { host, life, transfer, finished } => {
                self.on_transfer_ended(host, life, transfer, finished);
            }
            Happening::Yields { host, life } => self.on_yields(host, life),
            Happening::LinksClosed { host, life } => self.on_links_closed(host, life),
        }
    }

    fn on_woken(&mut self, host: HostIndex, life: Life, wake: u64) {
        let now = self.queue.now();
        let Some(woken) = self.living(host, life).filter(|host| host.wake.0 == wake) else { return };
        let (last, count) = woken.woken_at;
        woken.woken_at = if last == now { (now, count + 1) } else { (now, 1) };
        woken.wakes += 1;
        if woken.woken_at.1 > WAKES_IN_ONE_INSTANT_MAX {
            // Leaves the node asleep until something else happens, so that the run ends and the check can tell.
            self.history.busy_wakes += 1;
            return;
        }
        if let Some(woken) = self.hosts[host].as_mut().filter(|host| host.wakes % WAKES_PER_MEASUREMENT == 1) {
            woken.measure_node(&mut self.history.peaks);
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
        self.trace.event(now, index, &event);
        host.left_alone.hear(&event);
        if let Event::MessageReceived { peer, message: Message::Propose(propose) } = &event {
            host.hear_proposal(*peer, propose.exchange, propose.nonce);
        }
        let merged = host.note_reply(&event).and_then(|(is_awaited, merged)| {
            self.history.find(checks::replied_once(index, is_awaited, &event));
            merged
        });
        host.node.handle(host.clock.shows(now), event);
        self.drain(index, merged);
    }

    fn living(&mut self, host: HostIndex, life: Life) -> Option<&mut Box<Host>> {
        self.hosts[host].as_mut().filter(|host| host.life == life && !host.has_stopped)
    }
}
