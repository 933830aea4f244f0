//! What is simulated: who takes part, how the network behaves, what goes wrong and when.

use std::time::Duration;

use murmur_protocol::bounds::{LEAVE_TIMEOUT, STATE_CHUNK_VALUES};
use murmur_protocol::manifest::{GossipSpec, SynchronousSpec};
use murmur_protocol::{AddressRange, Event, Fragments, Holding, ModelLayout, Start};

use serde::Deserialize;

use crate::network::{LinkSpec, NetworkSpec};
use crate::trainer::TrainerSpec;

/// Names a host of the scenario, from 0. Its address is `sim/<index>` in every life.
pub type HostIndex = usize;

/// A swarm and its fate. With a seed, it decides a run completely.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Length of the flat parameter vector of a quadratic; a transformer has its own, see [`layout`](Self::layout).
    pub parameters: usize,
    /// How the run averages.
    pub gossip: GossipSpec,
    /// Whether all average gradients at once instead.
    pub synchronous: SynchronousSpec,
    /// The hosts, by index.
    pub nodes: Vec<NodePlan>,
    /// The problem that all trainers work on.
    pub trainer: TrainerSpec,
    /// Values in a chunk of the state that a joiner copies, from 1.
    pub state_chunk: usize,
    /// How long leaving may take, with the last exchange.
    pub leaving_max: Duration,
    /// How long numerics take.
    pub worker: WorkerSpec,
    /// What a host's trainer and network refuse.
    pub drivers: DriverSpec,
    /// Time between two checkpoints of a host, shortened as the runs are: what a [`Disk::Kept`] brings back.
    pub checkpoint_period: Duration,
    /// How the network behaves at first.
    pub network: NetworkSpec,
    /// What happens when, since the beginning.
    pub incidents: Vec<(Duration, Incident)>,
}

/// One host.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// How it comes by its model.
    pub start: Start,
    /// Which fragments of the model it holds at first.
    pub holding: Holding,
    /// Whose helper it is: it works with the trainer of that host, which takes the steps of both. That one begins before it,
    /// and neither is killed.
    pub helps: Option<HostIndex>,
    /// Whose identity it has, and what that one's last checkpoint holds: its data directory is a copy. That host does not begin anew.
    pub double_of: Option<HostIndex>,
    /// When its first life begins.
    pub begins_at: Duration,
    /// Whose addresses it is given; the identities behind them are unknown to it.
    pub bootstrap: Vec<HostIndex>,
    /// Time of one training step.
    pub step_time: Duration,
    /// Declared speed.
    pub tokens_per_second: f64,
    /// Steps after which its training is complete; `None` for a run without end.
    pub steps_max: Option<u64>,
    /// Seconds of the node's clock in one true second, above 0: 1 for a good clock.
    pub clock_rate: f64,
    /// How far its clock is set back before each later life, as with a machine that is restored from a backup.
    pub clock_set_back: Duration,
    /// What its line carries away, shared by its payloads one after the other; above 0.
    pub uplink_bytes_per_second: f64,
    /// What its line brings, shared by the payloads for it one after the other; above 0.
    pub downlink_bytes_per_second: f64,
    /// The range of addresses in which its peers reach it; `None` where they are not told of it.
    pub range: Option<AddressRange>,
    /// How it deceives its peers; `None` for an honest host.
    pub lie: Option<Lie>,
}

/// How a host deceives its peers. Its node runs the honest code; its model and words are falsified on the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// Shows a model of ten times the length.
    WrongNorm,
    /// Shows a model of the opposite sign.
    SignFlip,
    /// Shows a model drowned in noise.
    Noise,
    /// Shows a model shifted always in one direction, by just less than what is clipped.
    Stealth,
    /// Repeats old proposals, replies and payloads, to whom they were for and to others.
    Replay,
    /// Declares an absurd progress and speed, each within the range of the wire format.
    ForgedProgress,
    /// Sends bytes that are no message now and then, which its peers' drivers report.
    Garbage,
    /// Sends payloads of which one bit fell over now and then: its memory fails.
    BitFlips,
    /// Accepts exchanges, takes what is sent, and never answers.
    Silent,
}

impl Lie {
    /// All of them.
    pub const ALL: [Lie; 9] = [
        Lie::WrongNorm,
        Lie::SignFlip,
        Lie::Noise,
        Lie::Stealth,
        Lie::Replay,
        Lie::ForgedProgress,
        Lie::Garbage,
        Lie::BitFlips,
        Lie::Silent,
    ];
}

/// The worker pool of a host.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Shortest and longest time of an encoding or a merge.
    pub delay: (Duration, Duration),
    /// Share of orders that find the queue full, while there is learning.
    pub overload: f64,
    /// For studies: every exchange with the 16-bit codes and the fine steps of a first one, whatever was agreed. Steps
    /// are then a thousandth of a block's rms value, so that what remains is averaging without quantization.
    pub full_precision: bool,
}

/// What the drivers of a host refuse while there is learning. Shares are probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriverSpec {
    /// Share of snapshots, corrections and states that the trainer does not carry out: half of them find its queue full, the
    /// others fail at the step boundary, as where memory is short or a team waits for a helper.
    pub refusal: f64,
    /// Share of transfers that find the network's queue full.
    pub full_queue: f64,
}

/// What a restarted host finds on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The last checkpoint: model, steps, progress and known members. Without one it is as if lost.
    Kept,
    /// Nothing: it copies a model.
    Lost,
}

/// Something that happens to the swarm at a set time.
#[derive(Clone, Debug)]
pub enum Incident {
    /// The host's process is killed: everything that is not on its disk is gone.
    Crash(HostIndex),
    /// A new life. Crashes the old life first where there is one.
    Restart {
        /// Which host.
        host: HostIndex,
        /// Whether the identity survived; else it comes back as a stranger at the same address.
        same_identity: bool,
        /// What else survived.
        disk: Disk,
    },
    /// The user asks the node to leave.
    Leave(HostIndex),
    /// The process stands still, its trainer too, and then catches up.
    Pause(HostIndex, Duration),
    /// From now on a step takes this many times its planned time; 1 makes it as planned again.
    SlowTrainer(HostIndex, f64),
    /// Checkpoints of this host fail from now on; what was written last stays.
    DiskFull(HostIndex),
    /// There is room for checkpoints again.
    DiskFreed(HostIndex),
    /// The connection of two hosts breaks, where there is one.
    Break(HostIndex, HostIndex),
    /// From now on the path between the two hosts leads through a relay, which carries messages and no payloads; or is
    /// direct again.
    PathBecomes {
        /// Which two.
        ends: (HostIndex, HostIndex),
        /// Without a relay.
        is_direct: bool,
    },
    /// From now on the way from the first host to the second is like this; the way back stays.
    LinkBecomes(HostIndex, HostIndex, LinkSpec),
    /// These hosts and all others cannot reach each other any more.
    Split(Vec<HostIndex>),
    /// What these hosts send reaches all others; nothing that the others send reaches them.
    SplitOneWay(Vec<HostIndex>),
    /// The end of all splits, and of everything that [`LinkBecomes`](Incident::LinkBecomes) did.
    Heal,
    /// From now on the network behaves like this.
    NetworkBecomes(NetworkSpec),
    /// From now on steps move no model: what remains is averaging.
    StopLearning,
    /// Trainers go on but report no steps, so no new exchange becomes due.
    StopReporting,
    /// The host's trainer goes back to an older copy of what it holds, the model that it began with, and its node is told: as
    /// with a team's captain, whose helper is gone with the newer values.
    Outdated(HostIndex),
    /// The host has these fragments of the model in its memory from now on, with the values that are in its model; so it has
    /// when it comes back.
    Holds(HostIndex, Holding),
    /// The founder orders at this host that the run be finished.
    Finish {
        /// The host.
        at: HostIndex,
        /// Steps of swarm progress from then on until the run is complete.
        steps: f64,
    },
    /// A fact out of nowhere, for experiments with hostile peers.
    Tell(HostIndex, Box<Event>),
}

impl Incident {
    /// Whose process does it, and so not while it stands still; `None` for what happens to a host from outside.
    pub(crate) fn addressee(&self) -> Option<HostIndex> {
        match self {
            Incident::Leave(host)
            | Incident::Outdated(host)
            | Incident::Holds(host, _)
            | Incident::Finish { at: host, .. }
            | Incident::Tell(host, _) => Some(*host),
            Incident::Crash(_)
            | Incident::Restart { .. }
            | Incident::Pause(..)
            | Incident::SlowTrainer(..)
            | Incident::DiskFull(_)
            | Incident::DiskFreed(_)
            | Incident::Break(..)
            | Incident::PathBecomes { .. }
            | Incident::LinkBecomes(..)
            | Incident::Split(_)
            | Incident::SplitOneWay(_)
            | Incident::Heal
            | Incident::NetworkBecomes(_)
            | Incident::StopLearning
            | Incident::StopReporting => None,
        }
    }
}

/// A home line, both ways: 80 Mbit/s. A guess at what is common.
const LINE_BYTES_PER_SECOND: f64 = 10e6;

impl NodePlan {
    /// A founder with 100 ms a step that is told the addresses of `bootstrap`.
    pub fn founder(bootstrap: Vec<HostIndex>) -> NodePlan {
        NodePlan {
            start: Start::WithModel,
            holding: Holding::ALL,
            helps: None,
            double_of: None,
            begins_at: Duration::ZERO,
            bootstrap,
            step_time: Duration::from_millis(100),
            tokens_per_second: 1000.0,
            steps_max: None,
            clock_rate: 1.0,
            clock_set_back: Duration::ZERO,
            uplink_bytes_per_second: LINE_BYTES_PER_SECOND,
            downlink_bytes_per_second: LINE_BYTES_PER_SECOND,
            range: None,
            lie: None,
        }
    }

    /// One that appears at `begins_at` and copies the model.
    pub fn joiner(begins_at: Duration, bootstrap: Vec<HostIndex>) -> NodePlan {
        NodePlan { start: Start::FromPeer, begins_at, ..NodePlan::founder(bootstrap) }
    }
}

impl Default for WorkerSpec {
    fn default() -> Self {
        WorkerSpec {
            delay: (Duration::from_millis(1), Duration::from_millis(20)),
            overload: 0.0,
            full_precision: false,
        }
    }
}

impl Scenario {
    /// `count` founders with one model, each told the address of the one before it, on a calm network.
    pub fn calm(count: usize) -> Scenario {
        let neighbour = |index: usize| index.checked_sub(1).into_iter().collect();
        Scenario {
            parameters: 300,
            gossip: GossipSpec::default(),
            synchronous: SynchronousSpec::default(),
            nodes: (0..count).map(|index| NodePlan::founder(neighbour(index))).collect(),
            trainer: TrainerSpec::default(),
            state_chunk: STATE_CHUNK_VALUES,
            leaving_max: LEAVE_TIMEOUT,
            worker: WorkerSpec::default(),
            drivers: DriverSpec::default(),
            checkpoint_period: Duration::from_secs(10),
            network: NetworkSpec::calm(),
            incidents: Vec::new(),
        }
    }

    /// Where each parameter of the model lies.
    pub fn layout(&self) -> ModelLayout {
        self.trainer.layout(self.parameters)
    }

    /// How the model is cut into fragments.
    pub fn fragments(&self) -> Fragments {
        Fragments::of(&self.gossip, &self.layout())
    }

    /// Adds an incident.
    pub fn at(mut self, time: Duration, incident: Incident) -> Scenario {
        self.incidents.push((time, incident));
        self
    }

    /// Gives all hosts a line of so many bytes a second, both ways.
    pub fn with_bandwidth(mut self, bytes_per_second: f64) -> Scenario {
        for plan in &mut self.nodes {
            (plan.uplink_bytes_per_second, plan.downlink_bytes_per_second) = (bytes_per_second, bytes_per_second);
        }
        self
    }

    /// Ends the local movement at `learning_ends`, makes the network calm and whole, and stops new exchanges at
    /// `exchanges_end`; 25 s later nothing is in flight any more.
    pub fn then_calm(self, learning_ends: Duration, exchanges_end: Duration) -> Scenario {
        self.at(learning_ends, Incident::StopLearning)
            .at(learning_ends, Incident::Heal)
            .at(learning_ends, Incident::NetworkBecomes(NetworkSpec::calm()))
            .at(exchanges_end, Incident::StopReporting)
    }

    /// Hosts that deceive nobody.
    pub fn honest(&self) -> impl Iterator<Item = HostIndex> + '_ {
        self.nodes.iter().enumerate().filter(|(_, plan)| plan.lie.is_none()).map(|(host, _)| host)
    }
}
