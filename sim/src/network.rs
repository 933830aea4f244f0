//! The network between the hosts: links, delays and losses.
//!
//! A link is a connection of two hosts. Control messages on it may be lost, repeated or late, payloads may fail or be
//! confirmed wrongly, and either may be the moment at which the link breaks; each end then finds out in its own time.
//! Where one end cannot hear the other, or stands still, they part after a time, as daemons do whose pings stay without answer.
//! A way may be worse in one direction than in the other, or dead.

mod link;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_protocol::{PeerId, Time};

pub(crate) use link::{Link, LinkId};
pub use spec::{LatencySpec, LinkSpec, NetworkSpec};

use crate::scenario::{HostIndex, NodePlan};

/// Shortest and longest time after which a connection is given up on which one end, or both, hear nothing any more. By QUIC that is
/// within 5 to 10 s. By TCP daemons ping: every 8 s, with 8 s for the answer (`PING_INTERVAL` and `PING_TIMEOUT` in
/// `daemon/network/src/bounds.rs`). The second failure in a row counts, and that ping has a stream of its own, whose negotiation
/// may take libp2p's 10 s: 26 to 34 s after the last answer.
const UNHEARD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(34));

/// A payload of which nothing gets through breaks off after this, as in the daemon's network driver (`PROGRESS_TIMEOUT`).
const STALLED_AFTER: Duration = Duration::from_secs(20);

/// What becomes of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferFate {
    /// It arrives; `confirmed` tells whether its sender hears of that.
    Arrives { after: Duration, confirmed: bool },
    /// It breaks off on the way.
    BreaksOff { after: Duration },
}

/// A host's access to the network. Payloads pass one after the other, each way.
#[derive(Clone, Debug)]
struct Line {
    up_bytes_per_second: f64,
    down_bytes_per_second: f64,
    up_free_at: Time,
    /// When the downlink is busy, in order of time. What is over is forgotten.
    down_busy: Vec<(Time, Time)>,
}

impl Line {
    /// Keeps the downlink busy for so long, at `earliest` at the earliest; gives when that ends.
    fn receive(&mut self, now: Time, earliest: Time, duration: Duration, fills_gaps: bool) -> Time {
        self.down_busy.retain(|(_, ends)| *ends > now);
        let (mut begins, mut place) = (earliest, 0);
        for (from, to) in &self.down_busy {
            if fills_gaps && begins + duration <= *from {
                break;
            }
            begins = begins.max(*to);
            place += 1;
        }
        self.down_busy.insert(place, (begins, begins + duration));
        begins + duration
    }
}

/// A direction that is worse than the network. Payloads pass one after the other.
#[derive(Clone, Copy, Debug)]
struct Way {
    spec: LinkSpec,
    free_at: Time,
}

/// All links, and the dice.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) spec: NetworkSpec,
    random: Generator,
    /// For when silent connections are given up.
    patience: Generator,
    /// By number; those that both ends have closed are gone.
    links: Vec<Option<Box<Link>>>,
    lines: Vec<Line>,
    /// One side of a split; empty where there is none.
    secluded: BTreeSet<HostIndex>,
    /// Hosts that hear only each other.
    deaf: BTreeSet<HostIndex>,
    /// Directions that are worse than the network, from and to.
    ways: BTreeMap<(HostIndex, HostIndex), Way>,
    /// Pairs, the smaller index first, whose path leads through a relay.
    relayed: BTreeSet<(HostIndex, HostIndex)>,
}

impl Network {
    pub(crate) fn new(spec: NetworkSpec, plans: &[NodePlan], seed: u64) -> Network {
        let line = |plan: &NodePlan| Line {
            up_bytes_per_second: plan.uplink_bytes_per_second,
            down_bytes_per_second: plan.downlink_bytes_per_second,
            up_free_at: Time::ZERO,
            down_busy: Vec::new(),
        };
        Network {
            spec,
            random: stream(seed, "simulated network", &[]),
            patience: stream(seed, "simulated patience", &[]),
            links: Vec::new(),
            lines: plans.iter().map(line).collect(),
            secluded: BTreeSet::new(),
            deaf: BTreeSet::new(),
            ways: BTreeMap::new(),
            relayed: BTreeSet::new(),
        }
    }

    /// Draws the time of one packet's way.
    pub(crate) fn latency(&mut self, from: HostIndex, to: HostIndex) -> Duration {
        self.spec.latency.draw(&mut self.random) + self.way(from, to).delay
    }

    /// Draws how long an end takes to notice a dead link.
    pub(crate) fn detection(&mut self) -> Duration {
        self.between(self.spec.detection)
    }

    /// Draws how long a connection lasts on which nothing is heard.
    pub(crate) fn patience(&mut self) -> Duration {
        let (shortest, longest) = UNHEARD;
        shortest + (longest - shortest).mul_f64(self.patience.random::<f64>())
    }

    /// Draws the delays of all copies of a control message that arrive: none, one or two.
    pub(crate) fn message_delays(&mut self, from: HostIndex, to: HostIndex) -> [Option<Duration>; 2] {
        let kept = (1.0 - self.spec.loss) * (1.0 - self.way(from, to).loss);
        if !self.is_open(from, to) || self.chance(1.0 - kept) {
            return [None, None];
        }
        let is_twice = self.chance(self.spec.duplication);
        let first = self.message_delay(from, to);
        [Some(first), is_twice.then(|| self.message_delay(from, to))]
    }

    /// Draws what becomes of a payload of `bytes`, sent now. It occupies the sender's uplink, and, from its first byte
    /// on, the receiver's downlink.
    pub(crate) fn transfer_fate(&mut self, now: Time, from: HostIndex, to: HostIndex, bytes: usize) -> TransferFate {
        if !self.is_open(from, to) {
            return TransferFate::BreaksOff { after: STALLED_AFTER };
        }
        let latency = self.latency(from, to);
        let time_at = |rate: f64| Duration::from_secs_f64(bytes as f64 / rate);
        let sender = &mut self.lines[from];
        let begins = sender.up_free_at.max(now);
        sender.up_free_at = begins + time_at(sender.up_bytes_per_second);
        let mut last_sent = sender.up_free_at;
        if let Some(way) = self.ways.get_mut(&(from, to)) {
            way.free_at = way.free_at.max(begins) + time_at(way.spec.bytes_per_second);
            last_sent = last_sent.max(way.free_at);
        }
        let receiver = &mut self.lines[to];
        let down_time = time_at(receiver.down_bytes_per_second);
        let all_heard = receiver.receive(now, begins + latency, down_time, self.spec.fills_gaps);
        let after = all_heard.max(last_sent + latency) - now;
        if !self.chance(self.spec.transfer_failure) {
            TransferFate::Arrives { after, confirmed: self.is_open(to, from) }
        } else if self.chance(0.5) {
            TransferFate::Arrives { after, confirmed: false }
        } else {
            TransferFate::BreaksOff { after }
        }
    }

    /// Until when a host's uplink carries what was sent by now.
    pub(crate) fn uplink_free_at(&self, host: HostIndex) -> Time {
        self.lines[host].up_free_at
    }

    /// Draws whether a dial fails for no reason.
    pub(crate) fn dial_fails(&mut self) -> bool {
        self.chance(self.spec.dial_failure)
    }

    /// Draws whether a handshake gets no answer.
    pub(crate) fn handshake_fails(&mut self) -> bool {
        self.chance(self.spec.handshake_failure)
    }

    /// Draws whether a link breaks at this use.
    pub(crate) fn link_breaks(&mut self) -> bool {
        self.chance(self.spec.breakage)
    }

    /// Makes a link of dialer and target whose dialer's end opens at `dialer_opens_at`.
    pub(crate) fn connect(&mut self, ends: [HostIndex; 2], peers: [PeerId; 2], dialer_opens_at: Time) -> LinkId {
        let made = Link { ends, peers, dialer_opens_at, broken: false, starves: false, is_closed: [false; 2] };
        self.links.push(Some(Box::new(made)));
        (self.links.len() - 1) as LinkId
    }

    /// A link, unless both of its ends have closed it.
    pub(crate) fn link(&self, link: LinkId) -> Option<&Link> {
        self.links.get(link as usize)?.as_deref()
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link as usize)?.as_deref_mut()
    }

    /// All but those that both ends have closed, in the order of their making.
    fn all_links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.links.iter().zip(0..).filter_map(|(link, id)| Some((id, link.as_deref()?)))
    }

    /// Links of these two hosts that are not broken.
    pub(crate) fn links_between(&self, one: HostIndex, other: HostIndex) -> Vec<LinkId> {
        let joins = |link: &Link| link.ends == [one, other] || link.ends == [other, one];
        self.all_links().filter(|(_, link)| !link.broken && joins(link)).map(|(id, _)| id).collect()
    }

    /// Marks a link as starving or not; whether that is new.
    pub(crate) fn set_starving(&mut self, link: LinkId, starves: bool) -> bool {
        let Some(known) = self.link_mut(link) else { return false };
        std::mem::replace(&mut known.starves, starves) != starves
    }

    /// Marks a link as broken; its ends, where it was not broken already.
    pub(crate) fn break_link(&mut self, link: LinkId) -> Option<[HostIndex; 2]> {
        let known = self.link_mut(link).filter(|link| !link.broken)?;
        known.broken = true;
        Some(known.ends)
    }

    /// One end knows that the link is broken, or is no more; forgets the link with the second of them.
    pub(crate) fn close_end(&mut self, link: LinkId, host: HostIndex) {
        let Some(known) = self.link_mut(link).filter(|link| link.broken) else { return };
        known.is_closed[usize::from(known.ends[0] != host)] = true;
        if known.is_closed == [true; 2] {
            self.links[link as usize] = None;
        }
    }

    /// Whether packets get from one host to the other at all.
    pub(crate) fn is_open(&self, from: HostIndex, to: HostIndex) -> bool {
        let is_secluded = self.secluded.contains(&from) != self.secluded.contains(&to);
        let is_unheard = self.deaf.contains(&to) && !self.deaf.contains(&from);
        !is_secluded && !is_unheard && !self.way(from, to).is_dead
    }

    /// Whether two hosts can shake hands.
    pub(crate) fn can_reach(&self, one: HostIndex, other: HostIndex) -> bool {
        self.is_open(one, other) && self.is_open(other, one)
    }

    /// Cuts `hosts` off.
    pub(crate) fn split(&mut self, hosts: &[HostIndex]) {
        self.secluded = hosts.iter().copied().collect();
    }

    /// Lets `hosts` hear only each other.
    pub(crate) fn split_one_way(&mut self, hosts: &[HostIndex]) {
        self.deaf = hosts.iter().copied().collect();
    }

    /// Sets how one direction behaves.
    pub(crate) fn set_way(&mut self, from: HostIndex, to: HostIndex, spec: LinkSpec) {
        if spec == LinkSpec::WHOLE {
            self.ways.remove(&(from, to));
        } else {
            let free_at = self.ways.get(&(from, to)).map_or(Time::ZERO, |way| way.free_at);
            self.ways.insert((from, to), Way { spec, free_at });
        }
    }

    /// Leads the path of two hosts through a relay, or past it.
    pub(crate) fn set_path(&mut self, one: HostIndex, other: HostIndex, is_direct: bool) {
        let pair = (one.min(other), one.max(other));
        if is_direct {
            self.relayed.remove(&pair);
        } else {
            self.relayed.insert(pair);
        }
    }

    /// Whether the path of two hosts carries payloads.
    pub(crate) fn is_direct(&self, one: HostIndex, other: HostIndex) -> bool {
        !self.relayed.contains(&(one.min(other), one.max(other)))
    }

    /// Ends all splits and makes all directions whole.
    pub(crate) fn heal(&mut self) {
        self.secluded.clear();
        self.deaf.clear();
        self.ways.clear();
    }

    /// Links that are cut, in one direction or in both.
    pub(crate) fn cut(&self) -> Vec<LinkId> {
        let is_cut = |link: &Link| !link.broken && !self.can_reach(link.ends[0], link.ends[1]);
        self.all_links().filter(|(_, link)| is_cut(link)).map(|(id, _)| id).collect()
    }

    fn way(&self, from: HostIndex, to: HostIndex) -> LinkSpec {
        // Almost always there is none, and a look-up for every packet costs.
        if self.ways.is_empty() {
            return LinkSpec::WHOLE;
        }
        self.ways.get(&(from, to)).map_or(LinkSpec::WHOLE, |way| way.spec)
    }

    fn message_delay(&mut self, from: HostIndex, to: HostIndex) -> Duration {
        let latency = self.latency(from, to);
        if self.chance(self.spec.reordering) {
            latency + self.between((Duration::ZERO, self.spec.held_back_max))
        } else {
            latency
        }
    }

    fn between(&mut self, (shortest, longest): (Duration, Duration)) -> Duration {
        shortest + longest.saturating_sub(shortest).mul_f64(self.random.random::<f64>())
    }

    /// Draws nothing where there is nothing to decide: most networks are calm.
    fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.random::<f64>() < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(count: usize) -> Network {
        let mut plans = vec![NodePlan::founder(vec![]); count];
        plans.iter_mut().for_each(|plan| (plan.uplink_bytes_per_second, plan.downlink_bytes_per_second) = (1e3, 1e4));
        let latency = LatencySpec { median: Duration::from_millis(100), spread: 0.0 };
        Network::new(NetworkSpec { latency, ..NetworkSpec::calm() }, &plans, 1)
    }

    fn arrival(fate: TransferFate) -> Duration {
        let TransferFate::Arrives { after, confirmed: true } = fate else { panic!("{fate:?}") };
        after
    }

    #[test]
    fn payloads_share_an_uplink_and_a_downlink() {
        let mut network = network(12);
        let mut send = |from, to| arrival(network.transfer_fate(Time::ZERO, from, to, 1000));
        assert_eq!(send(0, 1), Duration::from_millis(1100));
        assert_eq!(send(0, 2), Duration::from_millis(2100), "behind the first one on the uplink");
        // Ten times as fast as an uplink, the downlink of host 11 takes ten senders side by side, not twenty.
        let times: Vec<Duration> = (1..=10).map(|from| send(from, 11)).collect();
        assert!(times.iter().all(|time| *time <= Duration::from_millis(1110)), "{times:?}");
        let late = (1..=10).map(|from| send(from, 11)).max();
        assert!(late >= Some(Duration::from_millis(2050)), "{late:?}");
    }

    #[test]
    fn payloads_share_a_bad_way() {
        let mut network = network(3);
        network.lines.iter_mut().for_each(|line| (line.up_bytes_per_second, line.down_bytes_per_second) = (1e6, 1e6));
        network.set_way(0, 1, LinkSpec::slow(Duration::ZERO, 1e3));
        let mut send = |to| arrival(network.transfer_fate(Time::ZERO, 0, to, 1000));
        let [first, second, other] = [send(1), send(1), send(2)];
        assert_eq!(first, Duration::from_millis(1100));
        assert_eq!(second, Duration::from_millis(2100), "behind the first one on the way");
        assert_eq!(other, Duration::from_millis(103), "by another way");
    }

    #[test]
    fn a_downlink_is_free_before_what_waits_for_an_uplink() {
        for (fills_gaps, expected) in [(true, 1100), (false, 5300)] {
            let mut network = network(12);
            network.spec.fills_gaps = fills_gaps;
            let mut send = |from, to, bytes| arrival(network.transfer_fate(Time::ZERO, from, to, bytes)).as_millis();
            for to in 1..=5 {
                send(0, to, 1000);
            }
            assert_eq!(send(0, 11, 1000), 6100, "the last of the uplink's queue");
            assert_eq!(send(6, 11, 1000), expected);
            // Too long for the gap that is left.
            send(7, 11, 49_500);
            let busy = &network.lines[11].down_busy;
            assert!(busy.len() == 3 && busy.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{busy:?}");
        }
    }

    #[test]
    fn a_group_that_cannot_hear_can_speak() {
        let mut network = network(3);
        network.split_one_way(&[0]);
        assert!(network.is_open(0, 1) && !network.is_open(1, 0) && !network.can_reach(0, 1));
        assert!(network.can_reach(1, 2));
        network.heal();
        network.set_way(1, 2, LinkSpec::dead());
        assert!(network.is_open(2, 1) && !network.is_open(1, 2) && network.is_open(0, 1));
    }
}
