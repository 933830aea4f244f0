//! What is simulated: who takes part, how the network behaves, what goes wrong and when.

use std::time::Duration;

use murmur_protocol::manifest::GossipSpec;
use murmur_protocol::{Event, ModelLayout, Start};

use crate::network::NetworkSpec;
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
    /// The hosts, by index.
    pub nodes: Vec<NodePlan>,
    /// The problem that all trainers work on.
    pub trainer: TrainerSpec,
    /// How long numerics take.
    pub worker: WorkerSpec,
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
}

/// The worker pool of a host.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Shortest and longest time of an encoding or a merge.
    pub delay: (Duration, Duration),
    /// Share of orders that find the queue full.
    pub overload: f64,
    /// For studies: every exchange with the 16-bit codes and the fine steps of a first one, whatever was agreed. Steps
    /// are then a thousandth of a block's rms value, so that what remains is averaging without quantization.
    pub full_precision: bool,
}

/// Something that happens to the swarm at a set time.
#[derive(Clone, Debug)]
pub enum Incident {
    /// The host's process is killed: everything of the node is gone.
    Crash(HostIndex),
    /// A new life with an empty disk: it copies a model. Crashes the old life first where there is one.
    Restart {
        /// Which host.
        host: HostIndex,
        /// Whether the identity survived; else it comes back as a stranger at the same address.
        same_identity: bool,
    },
    /// The user asks the node to leave.
    Leave(HostIndex),
    /// The process stands still, its trainer too, and then catches up.
    Pause(HostIndex, Duration),
    /// The connection of two hosts breaks, where there is one.
    Break(HostIndex, HostIndex),
    /// These hosts and all others cannot reach each other any more.
    Split(Vec<HostIndex>),
    /// The end of a split.
    Heal,
    /// From now on the network behaves like this.
    NetworkBecomes(NetworkSpec),
    /// From now on steps move no model: what remains is averaging.
    StopLearning,
    /// Trainers go on but report no steps, so no new exchange becomes due.
    StopReporting,
    /// A fact out of nowhere, for experiments with hostile peers.
    Tell(HostIndex, Box<Event>),
}

impl NodePlan {
    /// A founder with 100 ms a step that is told the addresses of `bootstrap`.
    pub fn founder(bootstrap: Vec<HostIndex>) -> NodePlan {
        NodePlan {
            start: Start::WithModel,
            begins_at: Duration::ZERO,
            bootstrap,
            step_time: Duration::from_millis(100),
            tokens_per_second: 1000.0,
            steps_max: None,
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
            nodes: (0..count).map(|index| NodePlan::founder(neighbour(index))).collect(),
            trainer: TrainerSpec::default(),
            worker: WorkerSpec::default(),
            network: NetworkSpec::calm(),
            incidents: Vec::new(),
        }
    }

    /// Where each parameter of the model lies.
    pub fn layout(&self) -> ModelLayout {
        self.trainer.layout(self.parameters)
    }

    /// Adds an incident.
    pub fn at(mut self, time: Duration, incident: Incident) -> Scenario {
        self.incidents.push((time, incident));
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
}
