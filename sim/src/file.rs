//! Scenario files: TOML in which every number is a value or a range, from which a seed draws a whole run.
//!
//! A run is decided by its file and its seed alone, so the two reproduce it anywhere. It has two phases: faults, in
//! which only safety may be asked of the swarm, then calm, after which it must also have come together again.
//!
//! ```text
//!   TOML ──► ScenarioFile ──validate──► draw(seed) ──► Plan: Scenario, phases, expectations
//! ```

/// Declares sections of a file: structs of optional keys, each with what it is where it is left out, and what it may be.
macro_rules! sections {
    ($($(#[$about:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $key:ident: $kind:ty = $default:expr $(=> $limits:expr)?,)+
    })+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$doc])* pub $key: $kind,)+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($key: $default,)+ }
            }
        }

        impl $name {
            /// Checks each key by itself. `time`: the phase of faults.
            pub(super) fn check(&self, section: &str, time: Drawn<f64>) -> Checked {
                let _ = (section, time);
                $($($limits.check(section, stringify!($key), self.$key, time)?;)?)+
                Ok(())
            }
        }
    )+};
}

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
use murmur_protocol::manifest::{GossipKind, GossipSpec, ModelSpec, OptimizerSpec, ScheduleSpec};
use serde::Deserialize;

use crate::network::NetworkSpec;
use crate::scenario::WorkerSpec;
use validate::{Checked, SHARE, within};

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
    pub leaves: Option<OnceSection>,
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
    pub outdated: Option<OnceSection>,
    /// Identities that run twice.
    pub doubles: Option<OnceSection>,
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

sections! {
    /// Who takes part.
    pub struct SwarmSection {
        /// Nodes at first, 2 to 4096.
        pub nodes: Drawn<usize> = Drawn::fixed(8) => within(*NODES.start() as f64, *NODES.end() as f64),
        /// Length of the model, 1 to 100,000,000.
        pub parameters: Drawn<usize> = Drawn::fixed(300) => within(1.0, 1e8),
        /// Time of a training step, above 0, at most 3600 s. Each node draws its own.
        pub step_seconds: Drawn<f64> = Drawn::fixed(0.1) => within(0.001, 3600.0),
        /// Values in a chunk of the state that a joiner copies, 1 to 100,000,000: small ones come from several donors.
        pub state_chunk: Drawn<usize> = Drawn::fixed(STATE_CHUNK_VALUES) => within(1.0, 1e8),
        /// Members whose addresses a node is given, 1 to 64.
        pub addresses: Drawn<usize> = Drawn::fixed(3) => within(1.0, 64.0),
        /// Ranges of addresses in which the nodes are reached, 0 to 4096; 0: they are not told of any.
        pub ranges: Drawn<usize> = Drawn::fixed(0) => within(0.0, 4096.0),
        /// Share of the nodes that begin later and copy a model, 0 to 1; the first node never does.
        pub late_share: Drawn<f64> = Drawn::fixed(0.0) => SHARE,
        /// When they begin. Each draws its own.
        pub late_seconds: Drawn<f64> = Drawn::between(1.0, 20.0),
        /// Share of the nodes that hold only some fragments of the model, 0 to 1; the first node never does.
        pub partial_share: Drawn<f64> = Drawn::fixed(0.0) => SHARE,
        /// How often what such a node holds changes while there are faults, 0 to 1000. Each draws its own moments.
        pub holding_changes: Drawn<usize> = Drawn::fixed(0) => within(0.0, 1000.0),
    }

    /// What the nodes learn.
    pub struct TrainerSection {
        /// Which problem.
        pub kind: TrainerKind = TrainerKind::Quadratic,
        /// Of the quadratic: share of the way to the optimum that a step takes, above 0, at most 1.
        pub learning_rate: Drawn<f64> = Drawn::fixed(0.02) => within(1e-6, 1.0),
        /// Of the quadratic: how far the nodes' optima lie from their centre in each coordinate, 0 to 1000.
        pub spread: Drawn<f64> = Drawn::fixed(0.5) => within(0.0, 1000.0),
        /// Of the quadratic: noise of a step in each coordinate, 0 to 1000.
        pub noise: Drawn<f64> = Drawn::fixed(0.5) => within(0.0, 1000.0),
        /// Of the transformer: held-out windows on which every point of the plots evaluates every node, 1 to 65,536.
        pub validation_sequences: u32 = 8,
    }

    /// How the nodes average; the ranges are those of a run file's `[gossip]`.
    pub struct GossipSection {
        /// Steps between the exchanges that a node starts.
        pub interval_steps: Drawn<u32> = Drawn::fixed(GossipSpec::default().interval_steps),
        /// Each seed takes one of these widths of a code.
        pub bits: Vec<u8> = vec![GossipSpec::default().bits],
        /// A model is exchanged in so many fragments, one per exchange.
        pub fragments: Drawn<u16> = Drawn::fixed(1),
        /// The share of the difference that each partner gives way.
        pub gamma: Drawn<f64> = Drawn::fixed(GossipSpec::default().gamma),
        /// Scale of the codes as a fraction of the running rms difference.
        pub step_fraction: Drawn<f64> = Drawn::fixed(GossipSpec::default().step_fraction),
        /// Corrections are clipped at this multiple of the median of recent ones.
        pub clip_factor: Drawn<f64> = Drawn::fixed(GossipSpec::default().clip_factor),
        /// 0 turns the outer momentum off.
        pub outer_learning_rate: Drawn<f64> = Drawn::fixed(GossipSpec::default().outer_learning_rate),
        /// The outer momentum.
        pub outer_momentum: Drawn<f64> = Drawn::fixed(GossipSpec::default().outer_momentum),
        /// Each seed takes one of these kinds of exchanges.
        pub kind: Vec<GossipKind> = vec![GossipSpec::default().kind],
        /// Each seed takes one of these widths for averaging the outer momentum; 0 leaves it alone.
        pub momentum_bits: Vec<u8> = vec![GossipSpec::default().momentum_bits],
    }

    /// How long a run is. Half a minute of silence follows, so that nothing is in flight when the checks look.
    pub struct PhasesSection {
        /// Learning under faults, 1 to 1,000,000 s.
        pub faults_seconds: Drawn<f64> = Drawn::fixed(60.0) => within(1.0, 1e6),
        /// Averaging alone on a calm network, 1 to 1,000,000 s.
        pub calm_seconds: Drawn<f64> = Drawn::fixed(60.0) => within(1.0, 1e6),
    }

    /// What is asked of the end of a run.
    pub struct ChecksSection {
        /// After the calm no model is further than this from the mean: the root mean square over its parameters; above 0.
        pub disagreement_max: f64 = 0.0005 => within(f64::MIN_POSITIVE, f64::MAX),
    }

    /// How the network behaves while there are faults. In the calm phase it is a home network that loses nothing.
    pub struct NetworkSection {
        /// Time of a packet's way: half of all packets take longer.
        pub latency_seconds_median: Drawn<f64> = Drawn::fixed(0.015) => within(0.0, 3600.0),
        /// Standard deviation of its logarithm, 0 to 2: 0 for always the median, 0.5 for a home line, 1 for a very bad
        /// one.
        pub latency_spread: Drawn<f64> = Drawn::fixed(0.5) => within(0.0, 2.0),
        /// Share of control messages that vanish.
        pub loss: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().loss) => SHARE,
        /// Share that arrives twice.
        pub duplication: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().duplication) => SHARE,
        /// Share that is held back and overtaken.
        pub reordering: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().reordering) => SHARE,
        /// The longest that one is held back.
        pub held_back_seconds_max: Drawn<f64> = Drawn::fixed(8.0) => within(0.0, 3600.0),
        /// Share of payloads that their sender believes lost; half of those arrived.
        pub transfer_failure: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().transfer_failure) => SHARE,
        /// Share of dials that come to nothing.
        pub dial_failure: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().dial_failure) => SHARE,
        /// Share of dials that get through and whose greeting is not answered.
        pub handshake_failure: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().handshake_failure) => SHARE,
        /// Share of messages and payloads with which their connection breaks.
        pub breakage: Drawn<f64> = Drawn::fixed(NetworkSpec::calm().breakage) => SHARE,
        /// The longest until an end notices that a connection is gone.
        pub detection_seconds_max: Drawn<f64> =
            Drawn::fixed(NetworkSpec::calm().detection.1.as_secs_f64()) => within(0.0, 3600.0),
    }

    /// What the hosts' lines carry, in the calm phase too; above 0. Each host draws its own. Left out, it is a home
    /// line of 80 Mbit/s both ways: a guess at what is common.
    pub struct LinesSection {
        /// Away from the host, shared by its payloads one after the other.
        pub uplink_bytes_per_second: Drawn<f64> = Drawn::fixed(10e6) => within(1.0, 1e12),
        /// To the host.
        pub downlink_bytes_per_second: Drawn<f64> = Drawn::fixed(10e6) => within(1.0, 1e12),
    }

    /// How the hosts' worker pools behave.
    pub struct WorkerSection {
        /// The longest time of an encoding or a merge, in the calm phase too.
        pub delay_seconds_max: Drawn<f64> =
            Drawn::fixed(WorkerSpec::default().delay.1.as_secs_f64()) => within(0.0, 3600.0),
        /// Share of orders that find the queue full, while there are faults.
        pub overload: Drawn<f64> = Drawn::fixed(WorkerSpec::default().overload) => SHARE,
    }

    /// What the hosts' trainers and networks refuse while there are faults.
    pub struct DriversSection {
        /// Share of snapshots, corrections and states that a trainer does not carry out.
        pub refusal: Drawn<f64> = Drawn::fixed(0.0) => SHARE,
        /// Share of transfers that find the network's queue full.
        pub full_queue: Drawn<f64> = Drawn::fixed(0.0) => SHARE,
    }
}
