//! What one run trains, by which method, over which links and through which fault.

use std::time::Duration;

use murmur_protocol::collective::{LISTENING, Timeouts};

use super::Method;
use crate::{LatencySpec, NetworkSpec, NodePlan, TransformerSpec};

/// The lines of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Name, for people.
    pub name: String,
    /// Time of a packet's way.
    pub latency: LatencySpec,
    /// Bytes a second that a node sends, above 0.
    pub up_bytes_per_second: f64,
    /// Bytes a second that a node receives, above 0.
    pub down_bytes_per_second: f64,
    /// Share of messages and transfers that are lost and sent again, 0 to 0.5.
    pub loss: f64,
}

impl Links {
    /// The built-in ones: `lan` (1 Gbit/s, 0.3 ms), `home` (10 Mbit/s up, 50 down, 20 ms), `world` (20 Mbit/s up, 100 down,
    /// 120 ms). Guesses at what is common.
    pub fn named(name: &str) -> Option<Links> {
        let megabit = 1e6 / 8.0;
        let (milliseconds, spread, up, down) = match name {
            "lan" => (0.3, 0.1, 1000.0, 1000.0),
            "home" => (20.0, 0.3, 10.0, 50.0),
            "world" => (120.0, 0.5, 20.0, 100.0),
            _ => return None,
        };
        Some(Links {
            name: name.to_owned(),
            latency: LatencySpec { median: Duration::from_secs_f64(milliseconds / 1000.0), spread },
            up_bytes_per_second: up * megabit,
            down_bytes_per_second: down * megabit,
            loss: 0.0,
        })
    }

    /// The network that they make.
    pub(crate) fn network(&self) -> NetworkSpec {
        NetworkSpec {
            latency: self.latency,
            loss: self.loss,
            transfer_failure: self.loss,
            fills_gaps: true,
            ..NetworkSpec::calm()
        }
    }
}

/// What goes wrong, once, after the seconds in which a node of speed 1 that never waits takes a third of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing goes wrong.
    None,
    /// The last node's process is killed and stays away.
    Kill,
    /// The first node's is: the aggregator of a star, the server of a parameter server.
    KillFirst,
    /// The last node's steps take four times as long from then on.
    Straggler,
    /// The last third of the nodes is cut off for the seconds in which such a node takes a quarter of the steps.
    Partition,
}

impl Fault {
    /// All but none.
    pub const ALL: [Fault; 4] = [Fault::Kill, Fault::KillFirst, Fault::Straggler, Fault::Partition];

    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Kill => "kill",
            Fault::KillFirst => "kill-first",
            Fault::Straggler => "straggler",
            Fault::Partition => "partition",
        }
    }

    /// In a few words.
    pub fn title(self) -> &'static str {
        match self {
            Fault::None => "nothing",
            Fault::Kill => "the last node is killed",
            Fault::KillFirst => "the first node is killed",
            Fault::Straggler => "the last node becomes four times slower",
            Fault::Partition => "a third of the nodes is cut off for a while",
        }
    }
}

/// How many times slower a straggler becomes.
pub const STRAGGLER: f64 = 4.0;

/// A run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How nodes learn from each other.
    pub method: Method,
    /// Model, data and schedule; its learning rate is the peak.
    pub trainer: TransformerSpec,
    /// Nodes, 2 to 64.
    pub nodes: usize,
    /// Steps of each node, on average.
    pub steps: u64,
    /// Time of a step on a node of speed 1.
    pub step_time: Duration,
    /// Speeds of the nodes, repeated as often as it takes; above 0.
    pub speeds: Vec<f64>,
    /// The lines of all nodes, both ways.
    pub links: Links,
    /// What goes wrong.
    pub fault: Fault,
    /// Seeds model, data and network.
    pub seed: u64,
    /// For tests of the laws: what is done wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// What a host does wrong on purpose, to show that a law finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Node 1 leaves one result of a reduction out.
    SkipsAResult,
    /// Node 1 takes one result up twice.
    TakesAResultTwice,
    /// Members send rounded slices, and keep their own values.
    KeepsWhatItRounds,
    /// The server forgets its bound on staleness.
    ForgetsTheBound,
    /// Nobody looks at the clock.
    NeverLooks,
}

impl Setting {
    /// When the fault happens.
    pub fn fault_at(&self) -> Duration {
        self.step_time.mul_f64(self.steps as f64 / 3.0)
    }

    /// How long a partition lasts.
    pub fn partition_lasts(&self) -> Duration {
        self.step_time.mul_f64(self.steps as f64 / 4.0)
    }

    /// Who is cut off.
    pub fn cut_off(&self) -> Vec<usize> {
        (self.nodes - (self.nodes / 3).max(1)..self.nodes).collect()
    }

    /// Time of a node's step.
    pub fn step_time_of(&self, node: usize) -> Duration {
        self.step_time.div_f64(self.speeds[node % self.speeds.len()])
    }

    /// Time of a step of the slowest node.
    pub(crate) fn slowest_step_time(&self) -> Duration {
        (0..self.nodes).map(|node| self.step_time_of(node)).max().unwrap_or(self.step_time)
    }

    /// Time in which all nodes together do as many steps as there are nodes.
    pub(crate) fn mean_step_time(&self) -> Duration {
        let rate: f64 = (0..self.nodes).map(|node| self.step_time_of(node).as_secs_f64().recip()).sum();
        Duration::from_secs_f64(self.nodes as f64 / rate)
    }

    /// Hosts with these lines.
    pub(crate) fn plans(&self) -> Vec<NodePlan> {
        let plan = |node: usize| NodePlan {
            uplink_bytes_per_second: self.links.up_bytes_per_second,
            downlink_bytes_per_second: self.links.down_bytes_per_second,
            step_time: self.step_time_of(node),
            ..NodePlan::founder(node.checked_sub(1).into_iter().collect())
        };
        (0..self.nodes).map(plan).collect()
    }

    /// Before anything is learned a member waits as long as 30 steps take; never less than two steps. Members listen to each
    /// other as daemons do.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let (initial, floor) = (self.step_time * 30, self.step_time * 2);
        Timeouts { initial, floor, listening: Some(LISTENING), ..Timeouts::default() }
    }

    /// Bytes, tokens or images of one step.
    pub(crate) fn tokens_per_step(&self) -> u64 {
        u64::from(self.trainer.optimizer.batch_sequences) * u64::from(self.trainer.model.context)
    }
}
