//! Scenario files: TOML in which every number is a value or a range, from which a seed draws a whole run.
//!
//! A run is decided by its file and its seed alone, so the two reproduce it anywhere. It has two phases: faults, in
//! which only safety may be asked of the swarm, then calm, after which it must also have come together again.
//!
//! ```text
//!   TOML ──► ScenarioFile ──validate──► draw(seed) ──► Plan: Scenario, phases, expectations
//! ```

mod built_in;
mod dice;
mod draw;
mod drawn;
mod faults;
mod machines;
mod schedule;
mod validate;

pub use built_in::{BuiltIn, built_in, built_ins};
pub use draw::{Expectations, Plan};
pub use drawn::Drawn;
pub use faults::*;
pub use validate::{MEMORY_BYTES_MAX, Mistake, NODES};

use murmur_protocol::bounds::STATE_CHUNK_VALUES;
use murmur_protocol::manifest::{GossipKind, ModelSpec, OptimizerSpec, ScheduleSpec};
use serde::Deserialize;

/// A scenario file. Every section and key is optional; without any it is eight nodes on a calm network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScenarioFile {
    /// What it is about.
    pub scenario: AboutSection,
    /// Who takes part.
    pub swarm: SwarmSection,
    /// What they learn.
    pub trainer: TrainerSection,
    /// The transformer, as in a run file.
    pub model: Option<ModelSpec>,
    /// The transformer's inner optimizer, as in a run file.
    pub optimizer: Option<OptimizerSpec>,
    /// The transformer's learning rate over swarm progress, as in a run file.
    pub schedule: Option<ScheduleSpec>,
    /// How they average.
    pub gossip: GossipSection,
    /// How long the phases are.
    pub phases: PhasesSection,
    /// What is asked of the end.
    pub checks: ChecksSection,
    /// How the network behaves while there are faults.
    pub network: NetworkSection,
    /// What the hosts' lines carry.
    pub lines: LinesSection,
    /// How the hosts' worker pools behave.
    pub worker: WorkerSection,
    /// What the hosts' trainers and networks refuse while there are faults.
    pub drivers: DriversSection,
    /// Processes that are killed.
    pub crashes: Option<CrashesSection>,
    /// Nodes that leave in order.
    pub leaves: Option<LeavesSection>,
    /// Nodes that are replaced, over and over.
    pub churn: Option<ChurnSection>,
    /// Processes that stand still and then catch up.
    pub pauses: Option<PausesSection>,
    /// Connections that break.
    pub breaks: Option<BreaksSection>,
    /// A network that falls apart.
    pub partition: Option<PartitionSection>,
    /// Slow machines.
    pub stragglers: Option<StragglersSection>,
    /// Machines that become slow for a while.
    pub slowdowns: Option<SlowdownsSection>,
    /// Slow lines.
    pub slow_lines: Option<SlowLinesSection>,
    /// Slow and lossy ways between two hosts.
    pub bad_links: Option<BadLinksSection>,
    /// Clocks that run fast or slow.
    pub clocks: Option<ClocksSection>,
    /// Disks without room.
    pub full_disks: Option<SpellSection>,
    /// Owners who want the network left alone.
    pub rests: Option<SpellSection>,
    /// Pairs of hosts whose path leads through a relay for a while: it carries messages and no payloads.
    pub relays: Option<SpellSection>,
    /// Trainers that go back to an older model.
    pub outdated: Option<OutdatedSection>,
    /// Identities that run twice.
    pub doubles: Option<DoublesSection>,
    /// Addresses at which a node cannot be reached for a while.
    pub lost_addresses: Option<SpellSection>,
    /// Hints of where members may be.
    pub hints: Option<HintsSection>,
    /// Hosts that deceive.
    pub liars: Option<LiarsSection>,
    /// Many that join at once.
    pub crowd: Option<CrowdSection>,
    /// A founder who ends the run.
    pub finish: Option<FinishSection>,
}

/// What a scenario is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AboutSection {
    /// One line, for `murmur sim list`.
    pub about: String,
}

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmSection {
    /// Nodes at first, 2 to 4096.
    pub nodes: Drawn<usize>,
    /// Length of the model, 1 to 100,000,000.
    pub parameters: Drawn<usize>,
    /// Time of a training step, above 0, at most 3600 s. Each node draws its own.
    pub step_seconds: Drawn<f64>,
    /// Values in a chunk of the state that a joiner copies, 1 to 100,000,000: small ones come from several donors.
    pub state_chunk: Drawn<usize>,
    /// Members whose addresses a node is given, 1 to 64.
    pub addresses: Drawn<usize>,
    /// Ranges of addresses in which the nodes are reached, 0 to 4096; 0: they are not told of any.
    pub ranges: Drawn<usize>,
    /// Share of the nodes that begin later and copy a model, 0 to 1; the first node never does.
    pub late_share: Drawn<f64>,
    /// When they begin. Each draws its own.
    pub late_seconds: Drawn<f64>,
    /// Share of the nodes that hold only some fragments of the model, 0 to 1; the first node never does.
    pub partial_share: Drawn<f64>,
    /// How often what such a node holds changes while there are faults, 0 to 1000. Each draws its own moments.
    pub holding_changes: Drawn<usize>,
}

/// Which problem the trainers work on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainerKind {
    /// A noisy quadratic; each node has an optimum of its own.
    #[default]
    Quadratic,
    /// A byte-level transformer on the built-in stories, trained by the daemon's own engine: for tens of nodes.
    Transformer,
}

/// What the nodes learn.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerSection {
    /// Which problem.
    pub kind: TrainerKind,
    /// Of the quadratic: share of the way to the optimum that a step takes, above 0, at most 1.
    pub learning_rate: Drawn<f64>,
    /// Of the quadratic: how far the nodes' optima lie from their centre in each coordinate, 0 to 1000.
    pub spread: Drawn<f64>,
    /// Of the quadratic: noise of a step in each coordinate, 0 to 1000.
    pub noise: Drawn<f64>,
    /// Of the transformer: held-out windows on which every point of the plots evaluates every node, 1 to 65,536.
    pub validation_sequences: u32,
}

/// How the nodes average; the ranges are those of a run file's `[gossip]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GossipSection {
    /// Steps between the exchanges that a node starts.
    pub interval_steps: Drawn<u32>,
    /// Each seed takes one of these widths of a code.
    pub bits: Vec<u8>,
    /// A model is exchanged in so many fragments, one per exchange.
    pub fragments: Drawn<u16>,
    /// The share of the difference that each partner gives way.
    pub gamma: Drawn<f64>,
    /// Scale of the codes as a fraction of the running rms difference.
    pub step_fraction: Drawn<f64>,
    /// Corrections are clipped at this multiple of the median of recent ones.
    pub clip_factor: Drawn<f64>,
    /// 0 turns the outer momentum off.
    pub outer_learning_rate: Drawn<f64>,
    /// The outer momentum.
    pub outer_momentum: Drawn<f64>,
    /// Each seed takes one of these kinds of exchanges.
    pub kind: Vec<GossipKind>,
    /// Each seed takes one of these widths for averaging the outer momentum; 0 leaves it alone.
    pub momentum_bits: Vec<u8>,
}

/// How long a run is. Half a minute of silence follows, so that nothing is in flight when the checks look.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PhasesSection {
    /// Learning under faults, 1 to 1,000,000 s.
    pub faults_seconds: Drawn<f64>,
    /// Averaging alone on a calm network, 1 to 1,000,000 s.
    pub calm_seconds: Drawn<f64>,
}

/// What is asked of the end of a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChecksSection {
    /// After the calm no model is further than this from the mean: the root mean square over its parameters; above 0.
    pub disagreement_max: f64,
}

/// How the network behaves while there are faults. In the calm phase it is a home network that loses nothing.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSection {
    /// Time of a packet's way: half of all packets take longer.
    pub latency_seconds_median: Drawn<f64>,
    /// Standard deviation of its logarithm, 0 to 2: 0 for always the median, 0.5 for a home line, 1 for a very bad one.
    pub latency_spread: Drawn<f64>,
    /// Share of control messages that vanish.
    pub loss: Drawn<f64>,
    /// Share that arrives twice.
    pub duplication: Drawn<f64>,
    /// Share that is held back and overtaken.
    pub reordering: Drawn<f64>,
    /// The longest that one is held back.
    pub held_back_seconds_max: Drawn<f64>,
    /// Share of payloads that their sender believes lost; half of those arrived.
    pub transfer_failure: Drawn<f64>,
    /// Share of dials that come to nothing.
    pub dial_failure: Drawn<f64>,
    /// Share of dials that get through and whose greeting is not answered.
    pub handshake_failure: Drawn<f64>,
    /// Share of messages and payloads with which their connection breaks.
    pub breakage: Drawn<f64>,
    /// The longest until an end notices that a connection is gone.
    pub detection_seconds_max: Drawn<f64>,
}

/// What the hosts' lines carry, in the calm phase too; above 0. Each host draws its own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinesSection {
    /// Away from the host, shared by its payloads one after the other.
    pub uplink_bytes_per_second: Drawn<f64>,
    /// To the host.
    pub downlink_bytes_per_second: Drawn<f64>,
}

/// How the hosts' worker pools behave, in the calm phase too.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSection {
    /// The longest time of an encoding or a merge.
    pub delay_seconds_max: Drawn<f64>,
    /// Share of orders that find the queue full.
    pub overload: Drawn<f64>,
}

/// What the hosts' trainers and networks refuse while there are faults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DriversSection {
    /// Share of snapshots, corrections and states that a trainer does not carry out.
    pub refusal: Drawn<f64>,
    /// Share of transfers that find the network's queue full.
    pub full_queue: Drawn<f64>,
}

impl Default for SwarmSection {
    fn default() -> Self {
        SwarmSection {
            nodes: Drawn::fixed(8),
            parameters: Drawn::fixed(300),
            step_seconds: Drawn::fixed(0.1),
            state_chunk: Drawn::fixed(STATE_CHUNK_VALUES),
            addresses: Drawn::fixed(3),
            ranges: Drawn::fixed(0),
            late_share: Drawn::fixed(0.0),
            late_seconds: Drawn::between(1.0, 20.0),
            partial_share: Drawn::fixed(0.0),
            holding_changes: Drawn::fixed(0),
        }
    }
}

impl Default for TrainerSection {
    fn default() -> Self {
        TrainerSection {
            kind: TrainerKind::Quadratic,
            learning_rate: Drawn::fixed(0.02),
            spread: Drawn::fixed(0.5),
            noise: Drawn::fixed(0.5),
            validation_sequences: 8,
        }
    }
}

impl Default for GossipSection {
    fn default() -> Self {
        let defaults = murmur_protocol::manifest::GossipSpec::default();
        GossipSection {
            interval_steps: Drawn::fixed(defaults.interval_steps),
            bits: vec![defaults.bits],
            fragments: Drawn::fixed(1),
            gamma: Drawn::fixed(defaults.gamma),
            step_fraction: Drawn::fixed(defaults.step_fraction),
            clip_factor: Drawn::fixed(defaults.clip_factor),
            outer_learning_rate: Drawn::fixed(defaults.outer_learning_rate),
            outer_momentum: Drawn::fixed(defaults.outer_momentum),
            kind: vec![defaults.kind],
            momentum_bits: vec![defaults.momentum_bits],
        }
    }
}

impl Default for PhasesSection {
    fn default() -> Self {
        PhasesSection { faults_seconds: Drawn::fixed(60.0), calm_seconds: Drawn::fixed(60.0) }
    }
}

impl Default for ChecksSection {
    fn default() -> Self {
        ChecksSection { disagreement_max: 0.0005 }
    }
}

impl Default for NetworkSection {
    fn default() -> Self {
        let calm = crate::NetworkSpec::calm();
        let seconds = |duration: std::time::Duration| Drawn::fixed(duration.as_secs_f64());
        NetworkSection {
            latency_seconds_median: Drawn::fixed(0.015),
            latency_spread: Drawn::fixed(0.5),
            loss: Drawn::fixed(calm.loss),
            duplication: Drawn::fixed(calm.duplication),
            reordering: Drawn::fixed(calm.reordering),
            held_back_seconds_max: Drawn::fixed(8.0),
            transfer_failure: Drawn::fixed(calm.transfer_failure),
            dial_failure: Drawn::fixed(calm.dial_failure),
            breakage: Drawn::fixed(calm.breakage),
            handshake_failure: Drawn::fixed(calm.handshake_failure),
            detection_seconds_max: seconds(calm.detection.1),
        }
    }
}

impl Default for LinesSection {
    fn default() -> Self {
        // A home line, 80 Mbit/s both ways. A guess at what is common.
        LinesSection { uplink_bytes_per_second: Drawn::fixed(10e6), downlink_bytes_per_second: Drawn::fixed(10e6) }
    }
}

impl Default for WorkerSection {
    fn default() -> Self {
        let defaults = crate::WorkerSpec::default();
        WorkerSection {
            delay_seconds_max: Drawn::fixed(defaults.delay.1.as_secs_f64()),
            overload: Drawn::fixed(defaults.overload),
        }
    }
}

impl Default for DriversSection {
    fn default() -> Self {
        DriversSection { refusal: Drawn::fixed(0.0), full_queue: Drawn::fixed(0.0) }
    }
}
