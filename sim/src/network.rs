//! The network between the hosts: links, delays and losses.
//!
//! A link is a connection of two hosts. Control messages on it may be lost, repeated or late, payloads may fail or be
//! confirmed wrongly, and either may be the moment at which the link breaks; each end then finds out in its own time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{PeerId, Time};

use crate::scenario::HostIndex;

/// Names a link; never used twice.
pub(crate) type LinkId = u64;

/// How the network behaves. Shares are probabilities, 0 to 1.
#[derive(Clone, Debug)]
pub struct NetworkSpec {
    /// Shortest and longest way of a packet.
    pub latency: (Duration, Duration),
    /// Of each host's uplink, shared by its payloads one after the other.
    pub bandwidth_bytes_per_second: f64,
    /// Share of control messages that vanish.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplication: f64,
    /// Share that is held back, and so overtaken.
    pub reordering: f64,
    /// The longest that one is held back.
    pub held_back_max: Duration,
    /// Share of payloads that their sender believes lost; half of those arrived.
    pub transfer_failure: f64,
    /// Share of dials that come to nothing.
    pub dial_failure: f64,
    /// Share of messages and payloads with which their link breaks.
    pub breakage: f64,
    /// Shortest and longest time until an end notices that a link is gone.
    pub detection: (Duration, Duration),
}

impl NetworkSpec {
    /// A home network on which nothing is lost.
    pub fn calm() -> NetworkSpec {
        NetworkSpec {
            latency: (Duration::from_millis(2), Duration::from_millis(30)),
            bandwidth_bytes_per_second: 10e6,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            held_back_max: Duration::ZERO,
            transfer_failure: 0.0,
            dial_failure: 0.0,
            breakage: 0.0,
            detection: (Duration::from_millis(10), Duration::from_millis(500)),
        }
    }

    /// Much worse than any network that people put up with, on every count.
    pub fn hostile() -> NetworkSpec {
        NetworkSpec {
            latency: (Duration::from_millis(1), Duration::from_millis(800)),
            bandwidth_bytes_per_second: 20e3,
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            held_back_max: Duration::from_secs(8),
            transfer_failure: 0.1,
            dial_failure: 0.2,
            breakage: 0.02,
            detection: (Duration::from_millis(10), Duration::from_secs(5)),
        }
    }
}

/// A connection of two hosts.
#[derive(Debug)]
pub(crate) struct Link {
    /// Dialler and target.
    ends: [HostIndex; 2],
    /// The identities that shook hands.
    peers: [PeerId; 2],
    /// When the dialler's end opens; nothing reaches it before.
    pub(crate) dialler_opens_at: Time,
    pub(crate) broken: bool,
}

impl Link {
    /// Both ends.
    pub(crate) fn ends(&self) -> [HostIndex; 2] {
        self.ends
    }

    /// Whether these are its ends.
    pub(crate) fn joins(&self, one: HostIndex, other: HostIndex) -> bool {
        self.ends == [one, other] || self.ends == [other, one]
    }

    /// The end that is not `host`.
    pub(crate) fn other_end(&self, host: HostIndex) -> HostIndex {
        if self.ends[0] == host { self.ends[1] } else { self.ends[0] }
    }

    /// Who is at the end that is not `host`.
    pub(crate) fn other_peer(&self, host: HostIndex) -> PeerId {
        if self.ends[0] == host { self.peers[1] } else { self.peers[0] }
    }

    /// The earliest that something can reach `host`.
    pub(crate) fn opens_at(&self, host: HostIndex) -> Time {
        if self.ends[0] == host { self.dialler_opens_at } else { Time::ZERO }
    }
}

/// What becomes of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferFate {
    /// It arrives; `confirmed` tells whether its sender hears of that.
    Arrives { after: Duration, confirmed: bool },
    /// It breaks off on the way.
    BreaksOff { after: Duration },
}

/// All links, and the dice.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) spec: NetworkSpec,
    random: Generator,
    pub(crate) links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    /// One side of a split; empty where there is none.
    secluded: BTreeSet<HostIndex>,
    /// When each host's uplink is free again.
    uplink_free_at: BTreeMap<HostIndex, Time>,
}

impl Network {
    pub(crate) fn new(spec: NetworkSpec, seed: u64) -> Network {
        Network {
            spec,
            random: stream(seed, "simulated network", &[]),
            links: BTreeMap::new(),
            next_link: 0,
            secluded: BTreeSet::new(),
            uplink_free_at: BTreeMap::new(),
        }
    }

    /// Draws the time of one way.
    pub(crate) fn latency(&mut self) -> Duration {
        self.between(self.spec.latency)
    }

    /// Draws how long an end takes to notice a dead link.
    pub(crate) fn detection(&mut self) -> Duration {
        self.between(self.spec.detection)
    }

    /// Draws the delays of all copies of a control message that arrive: none, one or two.
    pub(crate) fn message_delays(&mut self) -> Vec<Duration> {
        if self.chance(self.spec.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(self.chance(self.spec.duplication));
        (0..copies).map(|_| self.message_delay()).collect()
    }

    /// Draws what becomes of a payload of `bytes`, sent by `from` now.
    pub(crate) fn transfer_fate(&mut self, now: Time, from: HostIndex, bytes: usize) -> TransferFate {
        let begins = self.uplink_free_at.get(&from).copied().unwrap_or_default().max(now);
        let ends = begins + Duration::from_secs_f64(bytes as f64 / self.spec.bandwidth_bytes_per_second);
        self.uplink_free_at.insert(from, ends);
        let after = (ends - now) + self.latency();
        if !self.chance(self.spec.transfer_failure) {
            TransferFate::Arrives { after, confirmed: true }
        } else if self.chance(0.5) {
            TransferFate::Arrives { after, confirmed: false }
        } else {
            TransferFate::BreaksOff { after }
        }
    }

    /// Draws whether a dial fails for no reason.
    pub(crate) fn dial_fails(&mut self) -> bool {
        self.chance(self.spec.dial_failure)
    }

    /// Draws whether a link breaks at this use.
    pub(crate) fn link_breaks(&mut self) -> bool {
        self.chance(self.spec.breakage)
    }

    /// Makes a link of dialler and target whose dialler's end opens at `dialler_opens_at`.
    pub(crate) fn connect(&mut self, ends: [HostIndex; 2], peers: [PeerId; 2], dialler_opens_at: Time) -> LinkId {
        let link = self.next_link;
        self.next_link += 1;
        self.links.insert(link, Link { ends, peers, dialler_opens_at, broken: false });
        link
    }

    /// Whether packets get from one host to the other at all.
    pub(crate) fn can_reach(&self, one: HostIndex, other: HostIndex) -> bool {
        self.secluded.contains(&one) == self.secluded.contains(&other)
    }

    /// Cuts `hosts` off and returns the links that this breaks.
    pub(crate) fn split(&mut self, hosts: &[HostIndex]) -> Vec<LinkId> {
        self.secluded = hosts.iter().copied().collect();
        let cut = |link: &Link| !link.broken && !self.can_reach(link.ends[0], link.ends[1]);
        self.links.iter().filter(|(_, link)| cut(link)).map(|(id, _)| *id).collect()
    }

    /// Ends a split.
    pub(crate) fn heal(&mut self) {
        self.secluded.clear();
    }

    fn message_delay(&mut self) -> Duration {
        let latency = self.latency();
        if self.chance(self.spec.reordering) {
            latency + self.between((Duration::ZERO, self.spec.held_back_max))
        } else {
            latency
        }
    }

    fn between(&mut self, (shortest, longest): (Duration, Duration)) -> Duration {
        shortest + longest.saturating_sub(shortest).mul_f64(self.random.random::<f64>())
    }

    fn chance(&mut self, share: f64) -> bool {
        self.random.random::<f64>() < share
    }
}
