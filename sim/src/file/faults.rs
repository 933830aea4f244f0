//! The kinds of faults of a scenario file: a section each, absent where the kind does not occur.
//!
//! Times are counted from the beginning of the run and lie within the phase of faults.

use serde::Deserialize;

use super::Drawn;
use super::validate::{Checked, IN_TIME, SHARE, within};
use crate::scenario::Lie;

/// Where a file does not say when: after the swarm has met, and early enough to matter.
const SOME_TIME: Drawn<f64> = Drawn::between(10.0, 30.0);

sections! {
    /// Processes that are killed: everything of the node is gone.
    pub struct CrashesSection {
        /// Share of the nodes that this happens to, once each; 0 to 1. The first node is spared: someone must have the
        /// model.
        pub share: Drawn<f64> = Drawn::fixed(0.2) => SHARE,
        /// When. Each draws its own.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
        /// Share of them that come back.
        pub back_share: Drawn<f64> = Drawn::fixed(0.5) => SHARE,
        /// How long they are away. Each draws its own.
        pub back_after_seconds: Drawn<f64> = Drawn::between(0.1, 5.0) => within(0.0, 1e6),
        /// Share of those that come back as strangers, under a new identity.
        pub stranger_share: Drawn<f64> = Drawn::fixed(0.5) => SHARE,
        /// Share of those that come back with an empty disk; the others find their last checkpoint.
        pub lost_disk_share: Drawn<f64> = Drawn::fixed(0.5) => SHARE,
    }

    /// Nodes that are killed and replaced by strangers at the same address, again and again.
    pub struct ChurnSection {
        /// Share of the nodes that is replaced each time, 0 to below 1. The first node is spared.
        pub share: Drawn<f64> = Drawn::fixed(0.2) => SHARE,
        /// Rounds between: the mean time in which a node starts one exchange. Above 0.
        pub every_rounds: Drawn<f64> = Drawn::fixed(5.0) => within(0.1, 1e6),
    }

    /// Processes that stand still, their trainers too, and then catch up: a laptop that sleeps.
    pub struct PausesSection {
        /// Share of the nodes that this happens to, once each; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.2) => SHARE,
        /// When. Each draws its own.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
        /// For how long. Each draws its own.
        pub seconds: Drawn<f64> = Drawn::between(0.1, 10.0) => within(0.0, 1e6),
    }

    /// What happens to some for a while: disks that are full, owners who want the network left alone, addresses that
    /// are lost,
    /// paths that lead through a relay.
    pub struct SpellSection {
        /// Share of the nodes, or pairs of nodes, that this happens to, once each; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.2) => SHARE,
        /// When. Each draws its own.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
        /// For how long. Each draws its own.
        pub seconds: Drawn<f64> = Drawn::between(1.0, 20.0) => within(0.0, 1e6),
    }

    /// What happens to some nodes once: users who ask them to leave, trainers that go back to an older model (as with a team
    /// whose helper is gone with the newer values), identities that run twice. For these a node's data directory is copied,
    /// and begins on another machine; the younger of both ends when a member finds that out.
    pub struct OnceSection {
        /// Share of the nodes that this happens to; 0 to 1. The first is spared where it would leave or run twice, and twice
        /// run only the honest that stay from beginning to end.
        pub share: Drawn<f64> = Drawn::fixed(0.1) => SHARE,
        /// When. Each draws its own.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
    }

    /// Connections that break for no reason.
    pub struct BreaksSection {
        /// Times in a minute that a node loses its connection to some other; 0 to 600.
        pub per_node_and_minute: Drawn<f64> = Drawn::fixed(1.0) => within(0.0, 600.0),
    }

    /// A network that falls apart into groups that cannot reach each other, then heals.
    pub struct PartitionSection {
        /// How many groups; 2 to the number of nodes.
        pub groups: Drawn<usize> = Drawn::fixed(2) => within(2.0, 4096.0),
        /// When it begins, in seconds of virtual time.
        pub at_seconds: Drawn<f64> = Drawn::fixed(15.0) => IN_TIME,
        /// For how long.
        pub seconds: Drawn<f64> = Drawn::fixed(20.0) => within(0.0, 1e6),
        /// Chance that one of two groups still reaches the other, but not the other it; 0 to 1.
        pub one_way_chance: Drawn<f64> = Drawn::fixed(0.0) => SHARE,
    }

    /// Machines that are slower than the others.
    pub struct StragglersSection {
        /// Share of the nodes; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.25) => SHARE,
        /// How many times slower; 1 to 1000. Each draws its own.
        pub factor: Drawn<f64> = Drawn::between(2.0, 10.0) => within(1.0, 1000.0),
        /// Whether they declare their speed, so that exchanges weigh them less.
        pub declared: bool = true,
    }

    /// Machines that become slow for a while: another program wants them.
    pub struct SlowdownsSection {
        /// Share of the nodes that this happens to, once each; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.2) => SHARE,
        /// How many times slower; 1 to 1000. Each draws its own.
        pub factor: Drawn<f64> = Drawn::between(2.0, 10.0) => within(1.0, 1000.0),
        /// When. Each draws its own.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
        /// For how long. Each draws its own.
        pub seconds: Drawn<f64> = Drawn::between(1.0, 20.0) => within(0.0, 1e6),
    }

    /// Hosts with a worse line than the others, in the calm phase too.
    pub struct SlowLinesSection {
        /// Share of the nodes; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.25) => SHARE,
        /// Away from the host; above 0. Each draws its own.
        pub uplink_bytes_per_second: Drawn<f64> = Drawn::between(1e3, 10e3) => within(1.0, 1e12),
        /// To the host; above 0. Each draws its own.
        pub downlink_bytes_per_second: Drawn<f64> = Drawn::between(10e3, 100e3) => within(1.0, 1e12),
    }

    /// Ways between two hosts that are worse than the network; the way back stays as it is.
    pub struct BadLinksSection {
        /// Share of all ordered pairs of hosts; 0 to 1.
        pub share: Drawn<f64> = Drawn::fixed(0.1) => SHARE,
        /// Added to every packet's way. Each draws its own.
        pub delay_seconds: Drawn<f64> = Drawn::between(0.0, 0.5) => within(0.0, 3600.0),
        /// Of payloads; above 0. Each draws its own.
        pub bytes_per_second: Drawn<f64> = Drawn::between(10e3, 1e6) => within(1.0, 1e12),
        /// Share of control messages that vanish. Each draws its own.
        pub loss: Drawn<f64> = Drawn::between(0.0, 0.3) => SHARE,
    }

    /// Clocks that run fast or slow.
    pub struct ClocksSection {
        /// Each clock runs up to this share too fast or too slow; 0 to 0.5. Left out, it is far worse than real machines'
        /// crystals, which are good to about 1e-4.
        pub error: Drawn<f64> = Drawn::fixed(0.02) => within(0.0, 0.5),
    }

    /// Hints of where members may be, as a table of the run or the local network gives them.
    pub struct HintsSection {
        /// Hints that a node gets in a minute; 0 to 600.
        pub per_node_and_minute: Drawn<f64> = Drawn::fixed(2.0) => within(0.0, 600.0),
        /// Share of them that are wrong: an identity that nobody has; 0 to 1.
        pub wrong_share: Drawn<f64> = Drawn::fixed(0.5) => SHARE,
    }

    /// Hosts that deceive their peers.
    pub struct LiarsSection {
        /// Share of the nodes, 0 to below 1. The first node is honest.
        pub share: Drawn<f64> = Drawn::fixed(0.1) => SHARE,
        /// What they may do; each draws one.
        pub kinds: Vec<Lie> = Lie::ALL.to_vec(),
        /// Whether they are gone in the calm phase; else the honest must come together among them.
        pub gone_in_calm: bool = true,
    }

    /// Many that join at once.
    pub struct CrowdSection {
        /// Joiners for every node that was there before, above 0, at most 100.
        pub share: Drawn<f64> = Drawn::fixed(2.0) => within(0.001, 100.0),
        /// When the first comes.
        pub at_seconds: Drawn<f64> = Drawn::fixed(20.0) => IN_TIME,
        /// Until the last has come. Each draws its own moment.
        pub within_seconds: Drawn<f64> = Drawn::fixed(2.0) => within(0.0, 1e6),
    }

    /// A founder who orders the end of the run: final exchanges, and then nobody trains any more.
    pub struct FinishSection {
        /// Chance that a run is ended; 0 to 1.
        pub chance: Drawn<f64> = Drawn::fixed(1.0) => SHARE,
        /// When that is ordered, at the first node.
        pub at_seconds: Drawn<f64> = SOME_TIME => IN_TIME,
        /// Steps of swarm progress from then on until the run is over, 1 to 1,000,000.
        pub steps: Drawn<f64> = Drawn::between(100.0, 1000.0) => within(1.0, 1e6),
    }
}
