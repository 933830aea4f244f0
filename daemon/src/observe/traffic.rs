//! Bytes with each member: the last hour in buckets of half a minute, and a total that goes on over restarts.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::record::PeerFacts;

/// Where the totals are kept, within a data directory.
pub(crate) const FILE: &str = "members-traffic.json";

/// Members whose bytes are kept; of those beyond, who was heard longest ago is forgotten.
const PEERS_KEPT: usize = 128;

/// Seconds of a bucket.
const PERIOD: f64 = 30.0;

/// Buckets kept: an hour, and the one that has just begun.
const BUCKETS_KEPT: usize = 121;

/// Bytes both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// To the member.
    pub sent: u64,
    /// From the member.
    pub received: u64,
}

/// A node's traffic with its members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// The last record that the totals count.
    pub seq: u64,
    /// Since when they do, in milliseconds since 1970; 0 before the first.
    pub since: i64,
    /// By peer id.
    pub peers: BTreeMap<String, PeerBytes>,
    /// When this process has told of its members last, in seconds: who is new then has sent nothing before. None before the first.
    list_at: Option<f64>,
}

/// Bytes with one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerBytes {
    /// What its owner calls it; anybody may take any name.
    pub name: Option<String>,
    /// Over restarts.
    pub total: Window,
    /// What of this process's bytes is in the total.
    counted: Window,
    /// What of them is in the buckets; none before this process has told of it.
    placed: Option<Window>,
    /// The number of each bucket, and bytes sent and received in it.
    buckets: VecDeque<(u64, u64, u64)>,
    /// Since when bytes are in the buckets, in seconds.
    placed_since: f64,
    /// When it was last told of, in seconds.
    time: f64,
}

impl Traffic {
    /// What is kept on disk: totals, and no buckets, which the journal brings back.
    pub fn totals(&self) -> Traffic {
        let mut totals = self.clone();
        totals.list_at = None;
        for peer in totals.peers.values_mut() {
            peer.buckets.clear();
            peer.placed = None;
        }
        totals
    }

    /// Another process of the node counts its bytes from 0. `seq`: of its first record.
    pub(super) fn begin(&mut self, seq: u64) {
        self.list_at = None;
        self.peers.values_mut().for_each(|peer| peer.placed = None);
        if seq > self.seq {
            self.peers.values_mut().for_each(|peer| peer.counted = Window::default());
        }
    }

    /// Takes in a list of members that has the number `seq`, at a time in seconds, `wall` in milliseconds since 1970.
    pub(super) fn take(&mut self, seq: u64, time: f64, wall: i64, members: &[PeerFacts]) {
        if self.since == 0 {
            self.since = wall;
        }
        let is_new = seq > self.seq;
        for facts in members.iter().filter(|facts| facts.sent.is_some() || facts.received.is_some()) {
            let now = Window { sent: facts.sent.unwrap_or(0), received: facts.received.unwrap_or(0) };
            let peer = self.peers.entry(facts.peer.clone()).or_default();
            let before = peer.placed.map(|placed| (placed, peer.time));
            if let Some((before, since)) = before.or(self.list_at.map(|list_at| (Window::default(), list_at))) {
                if peer.buckets.is_empty() {
                    peer.placed_since = since;
                }
                peer.place((time / PERIOD) as u64, now.since(before));
            }
            peer.placed = Some(now);
            if is_new {
                let news = now.since(peer.counted);
                peer.total.sent += news.sent;
                peer.total.received += news.received;
                peer.counted = now;
            }
            peer.name.clone_from(&facts.name);
            peer.time = time;
        }
        self.list_at = Some(time);
        self.seq = self.seq.max(seq);
        while self.peers.len() > PEERS_KEPT {
            let oldest = self.peers.iter().min_by(|(_, one), (_, other)| one.time.total_cmp(&other.time));
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { return };
            self.peers.remove(&oldest);
        }
    }
}

impl PeerBytes {
    /// The bytes of the last so many seconds before a time, 3,600 at most, to half a minute.
    pub fn within(&self, time: f64, seconds: f64) -> Window {
        let first = ((time - seconds).max(0.0) / PERIOD).ceil() as u64;
        let recent = self.buckets.iter().filter(|(index, ..)| *index >= first);
        recent.fold(Window::default(), |sum, (_, sent, received)| Window {
            sent: sum.sent + sent,
            received: sum.received + received,
        })
    }

    /// Bytes a second, both ways, over the last so many seconds before a time; where the first bytes of them came later, since then.
    pub fn rate(&self, time: f64, seconds: f64) -> f64 {
        let Window { sent, received } = self.within(time, seconds);
        let first = ((time - seconds).max(0.0) / PERIOD).ceil() as u64;
        let begin = self.buckets.iter().map(|(index, ..)| *index).find(|index| *index >= first);
        let begin = begin.map_or(0.0, |index| index as f64 * PERIOD).max(self.placed_since);
        (sent + received) as f64 / (time - begin).clamp(1.0, seconds)
    }

    fn place(&mut self, index: u64, bytes: Window) {
        match self.buckets.back_mut() {
            Some((last, sent, received)) if *last >= index => {
                *sent += bytes.sent;
                *received += bytes.received;
            }
            _ => self.buckets.push_back((index, bytes.sent, bytes.received)),
        }
        let oldest = index.saturating_sub(BUCKETS_KEPT as u64 - 1);
        while self.buckets.front().is_some_and(|(first, ..)| *first < oldest) {
            self.buckets.pop_front();
        }
    }
}

impl Window {
    fn since(self, before: Window) -> Window {
        Window { sent: self.sent.saturating_sub(before.sent), received: self.received.saturating_sub(before.received) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(peer: &str, sent: u64, received: u64) -> PeerFacts {
        PeerFacts { peer: peer.to_owned(), sent: Some(sent), received: Some(received), ..PeerFacts::default() }
    }

    #[test]
    fn windows_forget_and_the_total_does_not() {
        let mut traffic = Traffic::default();
        traffic.begin(1);
        traffic.take(2, 1000.0, 7, &[]);
        for (seq, minute) in (3..).zip(0..180_u64) {
            traffic.take(seq, 1000.0 + minute as f64 * 60.0, 7, &[facts("a", 100 * (minute + 1), 10 * (minute + 1))]);
        }
        let (peer, now) = (&traffic.peers["a"], 1000.0 + 179.0 * 60.0);
        assert_eq!(peer.total, Window { sent: 18_000, received: 1_800 });
        assert_eq!(peer.within(now, 300.0), Window { sent: 500, received: 50 });
        assert_eq!(peer.within(now, 3600.0), Window { sent: 6_000, received: 600 });
        assert_eq!(peer.within(now + 7200.0, 3600.0), Window::default());
        assert!(peer.buckets.len() <= BUCKETS_KEPT);
    }

    #[test]
    fn totals_go_on_over_a_restart_and_nothing_counts_twice() {
        let mut before = Traffic::default();
        before.begin(1);
        before.take(2, 10.0, 7, &[facts("a", 100, 0)]);
        before.take(3, 15.0, 7, &[facts("a", 300, 0)]);
        let text = serde_json::to_string(&before.totals()).expect("numbers");
        let mut after: Traffic = serde_json::from_str(&text).expect("the same");
        // The journal brings the records from the middle of the process again, and one that was written after the totals.
        after.begin(1);
        for (seq, sent) in [(2, 100_u32), (3, 300), (4, 350)] {
            after.take(seq, 10.0 + 5.0 * f64::from(sent), 7, &[facts("a", u64::from(sent), 0)]);
        }
        assert_eq!(after.peers["a"].total.sent, 350);
        after.begin(5);
        after.take(6, 4000.0, 7, &[facts("a", 40, 0)]);
        assert_eq!(after.peers["a"].total.sent, 390, "another process begins at 0");
        assert_eq!(after.since, 7);
    }

    #[test]
    fn a_rate_counts_from_the_first_bytes_over_restarts() {
        let mut traffic = Traffic::default();
        traffic.begin(1);
        traffic.take(2, 1000.0, 7, &[]);
        for (seq, turn) in (3..).zip(1..=12_u64) {
            traffic.take(seq, 1000.0 + 5.0 * turn as f64, 7, &[facts("a", 500 * turn, 500 * turn)]);
        }
        let rate = |traffic: &Traffic, time| traffic.peers["a"].rate(time, 300.0);
        assert_eq!(rate(&traffic, 1060.0), 200.0, "a minute after its beginning");
        traffic.begin(20);
        traffic.take(21, 1065.0, 7, &[]);
        traffic.take(22, 1070.0, 7, &[facts("a", 1000, 1000)]);
        assert_eq!(rate(&traffic, 1070.0), 200.0, "14,000 bytes in 70 seconds, and not in the five of this process");
        traffic.take(23, 2000.0, 7, &[facts("a", 1000, 1000)]);
        assert_eq!(rate(&traffic, 2000.0), 0.0);
    }

    #[test]
    fn what_was_sent_before_the_first_list_that_is_known_is_in_no_window() {
        let mut traffic = Traffic::default();
        traffic.take(100, 5000.0, 7, &[facts("a", 1_000_000, 0)]);
        traffic.take(101, 5005.0, 7, &[facts("a", 1_000_010, 0), facts("b", 5, 0)]);
        assert_eq!(traffic.peers["a"].within(5005.0, 300.0).sent, 10);
        assert_eq!(traffic.peers["b"].within(5005.0, 300.0).sent, 5, "it was not there before");
        assert_eq!(traffic.peers["a"].total.sent, 1_000_010);
    }

    #[test]
    fn members_beyond_the_bound_are_forgotten_the_oldest_first() {
        let mut traffic = Traffic::default();
        for number in 0..PEERS_KEPT as u64 + 10 {
            traffic.take(number + 1, number as f64, 7, &[facts(&format!("{number:04}"), 1, 1)]);
        }
        assert_eq!(traffic.peers.len(), PEERS_KEPT);
        assert!(!traffic.peers.contains_key("0009") && traffic.peers.contains_key("0010"));
    }
}
