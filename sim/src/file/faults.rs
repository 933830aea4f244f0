//! The kinds of faults of a scenario file: a section each, absent where the kind does not occur.
//!
//! Times are counted from the beginning of the run and lie within the phase of faults.

use serde::Deserialize;

use super::Drawn;
use crate::scenario::Lie;

/// Processes that are killed: everything of the node is gone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CrashesSection {
    /// Share of the nodes that this happens to, once each; 0 to 1. The first node is spared: someone must have the
    /// model.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
    /// Share of them that come back.
    pub back_share: Drawn<f64>,
    /// How long they are away. Each draws its own.
    pub back_after_seconds: Drawn<f64>,
    /// Share of those that come back as strangers, under a new identity.
    pub stranger_share: Drawn<f64>,
    /// Share of those that come back with an empty disk; the others find their last checkpoint.
    pub lost_disk_share: Drawn<f64>,
}

/// Nodes whose users ask them to leave.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeavesSection {
    /// Share of the nodes that this happens to; 0 to 1. The first node is spared.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
}

/// Nodes that are killed and replaced by strangers at the same address, again and again.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChurnSection {
    /// Share of the nodes that is replaced each time, 0 to below 1. The first node is spared.
    pub share: Drawn<f64>,
    /// Rounds between: the mean time in which a node starts one exchange. Above 0.
    pub every_rounds: Drawn<f64>,
}

/// Processes that stand still, their trainers too, and then catch up: a laptop that sleeps.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PausesSection {
    /// Share of the nodes that this happens to, once each; 0 to 1.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
    /// For how long. Each draws its own.
    pub seconds: Drawn<f64>,
}

/// What happens to some for a while: disks that are full, owners who want the network left alone, addresses that are lost,
/// paths that lead through a relay.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpellSection {
    /// Share of the nodes, or pairs of nodes, that this happens to, once each; 0 to 1.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
    /// For how long. Each draws its own.
    pub seconds: Drawn<f64>,
}

/// Trainers that go back to an older model, as with a team whose helper is gone with the newer values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutdatedSection {
    /// Share of the nodes that this happens to, once each; 0 to 1.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
}

/// Identities that run twice: a node's data directory is copied, and begins on another machine. The younger of both ends when a
/// member finds that out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DoublesSection {
    /// Share of the nodes that this happens to, 0 to 1: of those that are honest and stay from beginning to end, but for the first.
    pub share: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
}

/// Connections that break for no reason.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreaksSection {
    /// Times in a minute that a node loses its connection to some other; 0 to 600.
    pub per_node_and_minute: Drawn<f64>,
}

/// A network that falls apart into groups that cannot reach each other, then heals.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionSection {
    /// How many groups; 2 to the number of nodes.
    pub groups: Drawn<usize>,
    /// When it begins, in seconds of virtual time.
    pub at_seconds: Drawn<f64>,
    /// For how long.
    pub seconds: Drawn<f64>,
    /// Chance that one of two groups still reaches the other, but not the other it; 0 to 1.
    pub one_way_chance: Drawn<f64>,
}

/// Machines that are slower than the others.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StragglersSection {
    /// Share of the nodes; 0 to 1.
    pub share: Drawn<f64>,
    /// How many times slower; 1 to 1000. Each draws its own.
    pub factor: Drawn<f64>,
    /// Whether they declare their speed, so that exchanges weigh them less.
    pub declared: bool,
}

/// Machines that become slow for a while: another program wants them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowdownsSection {
    /// Share of the nodes that this happens to, once each; 0 to 1.
    pub share: Drawn<f64>,
    /// How many times slower; 1 to 1000. Each draws its own.
    pub factor: Drawn<f64>,
    /// When. Each draws its own.
    pub at_seconds: Drawn<f64>,
    /// For how long. Each draws its own.
    pub seconds: Drawn<f64>,
}

/// Hosts with a worse line than the others, in the calm phase too.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowLinesSection {
    /// Share of the nodes; 0 to 1.
    pub share: Drawn<f64>,
    /// Away from the host; above 0. Each draws its own.
    pub uplink_bytes_per_second: Drawn<f64>,
    /// To the host; above 0. Each draws its own.
    pub downlink_bytes_per_second: Drawn<f64>,
}

/// Ways between two hosts that are worse than the network; the way back stays as it is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BadLinksSection {
    /// Share of all ordered pairs of hosts; 0 to 1.
    pub share: Drawn<f64>,
    /// Added to every packet's way. Each draws its own.
    pub delay_seconds: Drawn<f64>,
    /// Of payloads; above 0. Each draws its own.
    pub bytes_per_second: Drawn<f64>,
    /// Share of control messages that vanish. Each draws its own.
    pub loss: Drawn<f64>,
}

/// Clocks that run fast or slow.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClocksSection {
    /// Each clock runs up to this share too fast or too slow; 0 to 0.5.
    pub error: Drawn<f64>,
}

/// Hints of where members may be, as a table of the run or the local network gives them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HintsSection {
    /// Hints that a node gets in a minute; 0 to 600.
    pub per_node_and_minute: Drawn<f64>,
    /// Share of them that are wrong: an identity that nobody has; 0 to 1.
    pub wrong_share: Drawn<f64>,
}

/// Hosts that deceive their peers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LiarsSection {
    /// Share of the nodes, 0 to below 1. The first node is honest.
    pub share: Drawn<f64>,
    /// What they may do; each draws one.
    pub kinds: Vec<LieKind>,
    /// Whether they are gone in the calm phase; else the honest must come together among them.
    pub gone_in_calm: bool,
}

/// A lie, as a file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LieKind {
    /// A model of ten times the length.
    WrongNorm,
    /// A model of the opposite sign.
    SignFlip,
    /// A model drowned in noise.
    Noise,
    /// A model shifted always in one direction, by just less than what is clipped.
    Stealth,
    /// Old proposals, replies and payloads over again.
    Replay,
    /// An absurd progress and speed.
    ForgedProgress,
    /// Messages that are none.
    Garbage,
    /// Payloads with a bit that fell over: no deceit, but memory that fails.
    BitFlips,
}

impl LieKind {
    /// All of them.
    pub const ALL: [LieKind; 8] = [
        LieKind::WrongNorm,
        LieKind::SignFlip,
        LieKind::Noise,
        LieKind::Stealth,
        LieKind::Replay,
        LieKind::ForgedProgress,
        LieKind::Garbage,
        LieKind::BitFlips,
    ];
}

impl From<LieKind> for Lie {
    fn from(kind: LieKind) -> Lie {
        match kind {
            LieKind::WrongNorm => Lie::WrongNorm,
            LieKind::SignFlip => Lie::SignFlip,
            LieKind::Noise => Lie::Noise,
            LieKind::Stealth => Lie::Stealth,
            LieKind::Replay => Lie::Replay,
            LieKind::ForgedProgress => Lie::ForgedProgress,
            LieKind::Garbage => Lie::Garbage,
            LieKind::BitFlips => Lie::BitFlips,
        }
    }
}

/// Many that join at once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CrowdSection {
    /// Joiners for every node that was there before, above 0, at most 100.
    pub share: Drawn<f64>,
    /// When the first comes.
    pub at_seconds: Drawn<f64>,
    /// Until the last has come. Each draws its own moment.
    pub within_seconds: Drawn<f64>,
}

/// A founder who orders the end of the run: final exchanges, and then nobody trains any more.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FinishSection {
    /// Chance that a run is ended; 0 to 1.
    pub chance: Drawn<f64>,
    /// When that is ordered, at the first node.
    pub at_seconds: Drawn<f64>,
    /// Steps of swarm progress from then on until the run is over, 1 to 1,000,000.
    pub steps: Drawn<f64>,
}

/// Where a file does not say when: after the swarm has met, and early enough to matter.
const SOME_TIME: Drawn<f64> = Drawn::between(10.0, 30.0);

impl Default for CrashesSection {
    fn default() -> Self {
        CrashesSection {
            share: Drawn::fixed(0.2),
            at_seconds: SOME_TIME,
            back_share: Drawn::fixed(0.5),
            back_after_seconds: Drawn::between(0.1, 5.0),
            stranger_share: Drawn::fixed(0.5),
            lost_disk_share: Drawn::fixed(0.5),
        }
    }
}

impl Default for LeavesSection {
    fn default() -> Self {
        LeavesSection { share: Drawn::fixed(0.1), at_seconds: SOME_TIME }
    }
}

impl Default for ChurnSection {
    fn default() -> Self {
        ChurnSection { share: Drawn::fixed(0.2), every_rounds: Drawn::fixed(5.0) }
    }
}

impl Default for PausesSection {
    fn default() -> Self {
        PausesSection { share: Drawn::fixed(0.2), at_seconds: SOME_TIME, seconds: Drawn::between(0.1, 10.0) }
    }
}

impl Default for SpellSection {
    fn default() -> Self {
        SpellSection { share: Drawn::fixed(0.2), at_seconds: SOME_TIME, seconds: Drawn::between(1.0, 20.0) }
    }
}

impl Default for OutdatedSection {
    fn default() -> Self {
        OutdatedSection { share: Drawn::fixed(0.1), at_seconds: SOME_TIME }
    }
}

impl Default for DoublesSection {
    fn default() -> Self {
        DoublesSection { share: Drawn::fixed(0.1), at_seconds: SOME_TIME }
    }
}

impl Default for BreaksSection {
    fn default() -> Self {
        BreaksSection { per_node_and_minute: Drawn::fixed(1.0) }
    }
}

impl Default for PartitionSection {
    fn default() -> Self {
        PartitionSection {
            groups: Drawn::fixed(2),
            at_seconds: Drawn::fixed(15.0),
            seconds: Drawn::fixed(20.0),
            one_way_chance: Drawn::fixed(0.0),
        }
    }
}

impl Default for StragglersSection {
    fn default() -> Self {
        StragglersSection { share: Drawn::fixed(0.25), factor: Drawn::between(2.0, 10.0), declared: true }
    }
}

impl Default for CrowdSection {
    fn default() -> Self {
        CrowdSection { share: Drawn::fixed(2.0), at_seconds: Drawn::fixed(20.0), within_seconds: Drawn::fixed(2.0) }
    }
}

impl Default for FinishSection {
    fn default() -> Self {
        FinishSection { chance: Drawn::fixed(1.0), at_seconds: SOME_TIME, steps: Drawn::between(100.0, 1000.0) }
    }
}

impl Default for SlowdownsSection {
    fn default() -> Self {
        SlowdownsSection {
            share: Drawn::fixed(0.2),
            factor: Drawn::between(2.0, 10.0),
            at_seconds: SOME_TIME,
            seconds: Drawn::between(1.0, 20.0),
        }
    }
}

impl Default for SlowLinesSection {
    fn default() -> Self {
        SlowLinesSection {
            share: Drawn::fixed(0.25),
            uplink_bytes_per_second: Drawn::between(1e3, 10e3),
            downlink_bytes_per_second: Drawn::between(10e3, 100e3),
        }
    }
}

impl Default for BadLinksSection {
    fn default() -> Self {
        BadLinksSection {
            share: Drawn::fixed(0.1),
            delay_seconds: Drawn::between(0.0, 0.5),
            bytes_per_second: Drawn::between(10e3, 1e6),
            loss: Drawn::between(0.0, 0.3),
        }
    }
}

impl Default for ClocksSection {
    fn default() -> Self {
        // Far worse than the crystals of real machines, which are good to about 1e-4.
        ClocksSection { error: Drawn::fixed(0.02) }
    }
}

impl Default for HintsSection {
    fn default() -> Self {
        HintsSection { per_node_and_minute: Drawn::fixed(2.0), wrong_share: Drawn::fixed(0.5) }
    }
}

impl Default for LiarsSection {
    fn default() -> Self {
        LiarsSection { share: Drawn::fixed(0.1), kinds: LieKind::ALL.to_vec(), gone_in_calm: true }
    }
}
