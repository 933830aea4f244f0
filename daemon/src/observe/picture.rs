//! The picture of a swarm that records draw: what every view shows, live or replayed.
//!
//! [`Picture::apply`] is all that changes it: no clock, no file, no network. The same records give the same picture, and its
//! memory is bounded however many come.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::record::{Body, EndFacts, EventFacts, ExchangeFacts, Level, PeerFacts, Peers, Record, RunFacts, Sample};
use super::rings::Series;
use super::traffic::Traffic;

/// Nodes in one picture: more are not watched at once.
pub const NODES_MAX: usize = 64;

/// Members remembered of one node, here or gone.
const PEERS_KEPT: usize = 128;

/// Events remembered.
const EVENTS_KEPT: usize = 256;

/// Exchanges remembered one by one.
const EXCHANGES_KEPT: usize = 64;

/// Values of a member's traffic that are remembered: five minutes.
const RATES_KEPT: usize = 60;

/// A number that is kept over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Metric {
    /// Training loss, in nats.
    Loss,
    /// Loss on the held-out slice, in nats.
    ValidationLoss,
    /// Share of held-out images or rows whose class was told rightly.
    Accuracy,
    /// Area under the ROC curve of held-out rows.
    RocAuc,
    /// Root of the mean squared error of held-out rows, in the target's unit.
    Rmse,
    /// Share of the target's variance that was predicted of held-out rows.
    RSquared,
    /// Distance of the models, over √2.
    Disagreement,
    /// Disagreement over local progress; see [`RatioBand`](murmur_protocol::manifest::RatioBand).
    Ratio,
    /// Tokens or images a second of this node.
    TokensPerSecond,
    /// Tokens or images a second of all.
    SwarmTokensPerSecond,
    /// Bytes a second.
    SentPerSecond,
    /// Bytes a second.
    ReceivedPerSecond,
    /// Processors in use; 1 is one of them all the time.
    Processors,
    /// Bytes of memory held.
    Memory,
    /// Bytes free on the disk.
    DiskFree,
}

/// Everything that a view shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// By peer id; at most [`NODES_MAX`].
    pub nodes: BTreeMap<String, NodePicture>,
}

/// One node. Times are in seconds since 1970 that never go back, and run evenly while a process lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePicture {
    /// Which process of which run it is.
    pub run: RunFacts,
    /// The last record's number.
    pub seq: u64,
    /// The last record's time.
    pub time: f64,
    /// The last record's wall clock, in milliseconds since 1970.
    pub wall: i64,
    /// Seconds since its process began.
    pub up: f64,
    /// The time at which the process began.
    began: f64,
    /// How it goes.
    pub sample: Option<Sample>,
    /// What is kept over time.
    pub series: BTreeMap<Metric, Series>,
    /// The members that it knows, by peer id.
    pub peers: BTreeMap<String, PeerPicture>,
    /// Bytes with each member.
    pub traffic: Traffic,
    /// Members that were left out of the last list.
    pub peers_more: u64,
    /// What happened, newest last.
    pub events: VecDeque<Event>,
    /// Exchanges, newest last.
    pub exchanges: VecDeque<Exchange>,
    /// Records that were lost.
    pub missed: u64,
    /// How its process ended, if it has.
    pub end: Option<EndFacts>,
    /// Bytes sent and received, and processor seconds, at the sample before.
    last: Option<(f64, u64, u64, Option<f64>)>,
}

/// A member, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerPicture {
    /// What the node last told of it.
    pub facts: PeerFacts,
    /// The last exchange with it.
    pub last: Option<Exchange>,
    /// Exchanges that were completed with it.
    pub exchanges: u64,
    /// Exchanges with it that came to nothing.
    pub failed: u64,
    /// Bytes a second, both ways, one value for each list of members.
    pub rates: VecDeque<f32>,
    /// When the node last told of it.
    pub time: f64,
    /// Steps that its model was behind the node's when their last exchange began; less than 0 where it was ahead.
    pub lag: Option<f64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its record's number.
    pub seq: u64,
    /// Its wall clock, in milliseconds since 1970.
    pub wall: i64,
    /// How often it was said in a row.
    pub times: u32,
    /// What it was.
    pub facts: EventFacts,
}

/// An exchange and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// When it ended.
    pub time: f64,
    /// Its wall clock, in milliseconds since 1970.
    pub wall: i64,
    /// What came of it.
    pub facts: ExchangeFacts,
}

impl Picture {
    /// Takes in a record. One that was taken in before changes nothing, nor does one of a node too many.
    pub fn apply(&mut self, record: &Record) {
        if !self.nodes.contains_key(&record.node) && self.nodes.len() >= NODES_MAX {
            return;
        }
        self.nodes.entry(record.node.clone()).or_default().apply(record);
    }

    /// The latest time of all nodes.
    pub fn time(&self) -> f64 {
        self.nodes.values().map(|node| node.time).fold(0.0, f64::max)
    }
}

impl NodePicture {
    /// A value over time; empty where there is none.
    pub fn series(&self, metric: Metric) -> Series {
        self.series.get(&metric).cloned().unwrap_or_default()
    }

    /// The newest value, as the mean of its second.
    pub fn now(&self, metric: Metric) -> Option<f64> {
        self.series.get(&metric)?.last().map(|bucket| f64::from(bucket.mean))
    }

    fn apply(&mut self, record: &Record) {
        if let Body::Run(run) = &record.body
            && run.session != self.run.session
        {
            self.begin(record, run);
        } else if record.seq <= self.seq {
            return;
        }
        self.seq = record.seq;
        self.up = record.up.max(0.0);
        self.wall = record.t;
        if self.began == 0.0 {
            // A journal whose first files are gone.
            self.began = (record.t as f64 / 1000.0 - self.up).max(0.0);
        }
        self.time = self.time.max(self.began + self.up);
        match &record.body {
            Body::Sample(sample) => self.take_sample(sample),
            Body::Peers(peers) => {
                self.traffic.take(record.seq, self.time, record.t, &peers.peers);
                self.take_peers(peers);
            }
            Body::Exchange(facts) => self.take_exchange(facts),
            Body::Event(facts) => self.take_event(record, facts.clone()),
            Body::Missed(missed) => {
                self.missed += missed.count;
            }
            Body::End(end) => {
                if let Some(failure) = &end.failure {
                    let text = format!("training has ended: {failure}");
                    self.take_event(record, EventFacts { level: Level::Error, text, hint: None });
                }
                self.end = Some(end.clone());
            }
            Body::Run(_) | Body::Unknown => {}
        }
    }

    /// Another process of the node: its curves go on, and what was counted since the process began starts anew.
    fn begin(&mut self, record: &Record, run: &RunFacts) {
        let began = record.t as f64 / 1000.0 - record.up.max(0.0);
        self.began = began.max(self.time).max(0.0);
        self.run = run.clone();
        self.end = None;
        self.last = None;
        self.peers.clear();
        self.traffic.begin(record.seq);
        let text = match run.resumed_from {
            Some(step) => format!("murmur {} begins, resumed at step {step:.0}", run.version),
            None => format!("murmur {} begins", run.version),
        };
        self.take_event(record, EventFacts { level: Level::Info, text, hint: None });
    }

    fn take_sample(&mut self, sample: &Sample) {
        let is_news = self.sample.as_ref().is_none_or(|last| last.steps != sample.steps);
        let (loss, validation) = (sample.loss.filter(|_| is_news), sample.validation_loss);
        self.push(Metric::Loss, loss);
        self.push(Metric::ValidationLoss, validation);
        self.push(Metric::Accuracy, sample.accuracy);
        self.push(Metric::RocAuc, sample.roc_auc);
        self.push(Metric::Rmse, sample.rmse);
        self.push(Metric::RSquared, sample.r_squared);
        self.push(Metric::Disagreement, sample.disagreement);
        self.push(Metric::Ratio, sample.ratio);
        self.push(Metric::TokensPerSecond, Some(sample.tokens_per_second));
        self.push(Metric::SwarmTokensPerSecond, Some(sample.swarm_tokens_per_second));
        self.push(Metric::Memory, sample.memory.map(|bytes| bytes as f64));
        self.push(Metric::DiskFree, sample.disk_free.map(|bytes| bytes as f64));
        if let Some((up, sent, received, cpu)) = self.last
            && self.up > up
        {
            let rate = |now: u64, before: u64| Some(now.saturating_sub(before) as f64 / (self.up - up));
            let (sent, received) = (rate(sample.sent, sent), rate(sample.received, received));
            let processors = sample.cpu_seconds.zip(cpu).map(|(now, before)| (now - before).max(0.0) / (self.up - up));
            self.push(Metric::SentPerSecond, sent);
            self.push(Metric::ReceivedPerSecond, received);
            self.push(Metric::Processors, processors);
        }
        self.last = Some((self.up, sample.sent, sample.received, sample.cpu_seconds));
        self.sample = Some(sample.clone());
    }

    fn push(&mut self, metric: Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.series.entry(metric).or_default().push(self.time, value);
        }
    }

    fn take_peers(&mut self, peers: &Peers) {
        self.peers_more = peers.more;
        self.peers.values_mut().for_each(|peer| peer.facts.connected = false);
        for facts in &peers.peers {
            let peer = self.peers.entry(facts.peer.clone()).or_default();
            let bytes = |facts: &PeerFacts| facts.sent.unwrap_or(0) + facts.received.unwrap_or(0);
            let (now, before) = (bytes(facts), bytes(&peer.facts));
            if peer.time > 0.0 && self.time > peer.time {
                let rate = now.saturating_sub(before) as f64 / (self.time - peer.time);
                peer.rates.push_back(rate as f32);
                if peer.rates.len() > RATES_KEPT {
                    peer.rates.pop_front();
                }
            }
            peer.facts = facts.clone();
            peer.time = self.time;
        }
        self.forget_peers();
    }

    fn take_exchange(&mut self, facts: &ExchangeFacts) {
        let exchange = Exchange { time: self.time, wall: self.wall, facts: facts.clone() };
        let peer = self.peers.entry(facts.partner.clone()).or_default();
        if peer.facts.peer.is_empty() {
            peer.facts = PeerFacts { peer: facts.partner.clone(), trust: 1.0, ..PeerFacts::default() };
        }
        match facts.result.as_str() {
            "done" => peer.exchanges += 1,
            // Busy: another is asked.
            "rejected" => {}
            _ => peer.failed += 1,
        }
        peer.lag = facts.lag.or(peer.lag);
        peer.last = Some(exchange.clone());
        keep(&mut self.exchanges, exchange, EXCHANGES_KEPT);
        self.forget_peers();
    }

    /// Those of whom nothing was heard for longest are forgotten where there are too many.
    fn forget_peers(&mut self) {
        while self.peers.len() > PEERS_KEPT {
            let heard = |peer: &PeerPicture| peer.last.as_ref().map_or(0.0, |last| last.time).max(peer.time);
            let oldest = self.peers.iter().min_by(|(_, one), (_, other)| heard(one).total_cmp(&heard(other)));
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { return };
            self.peers.remove(&oldest);
        }
    }

    fn take_event(&mut self, record: &Record, facts: EventFacts) {
        if let Some(last) = self.events.back_mut()
            && last.facts == facts
        {
            last.times = last.times.saturating_add(1);
            (last.seq, last.wall) = (record.seq, record.t);
            return;
        }
        let event = Event { seq: record.seq, wall: record.t, times: 1, facts };
        keep(&mut self.events, event, EVENTS_KEPT);
    }
}

fn keep<Item>(queue: &mut VecDeque<Item>, item: Item, most: usize) {
    queue.push_back(item);
    if queue.len() > most {
        queue.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::{Missed, VERSION};

    /// Records of one node, a second apart.
    struct Story {
        seq: u64,
        up: f64,
        began: i64,
        picture: Picture,
    }

    impl Story {
        fn new() -> Story {
            Story { seq: 0, up: 0.0, began: 1_000_000, picture: Picture::default() }
        }

        fn tell(&mut self, body: Body) -> Record {
            self.seq += 1;
            self.up += 1.0;
            let t = self.began + (self.up * 1000.0) as i64;
            let record = Record { v: VERSION, seq: self.seq, t, up: self.up, node: "a".to_owned(), body };
            self.picture.apply(&record);
            record
        }

        fn node(&self) -> &NodePicture {
            &self.picture.nodes["a"]
        }
    }

    fn run(session: i64) -> Body {
        Body::Run(RunFacts { session, ..RunFacts::default() })
    }

    fn sample(steps: u64, sent: u64) -> Body {
        let cpu_seconds = Some(steps as f64 * 1.5);
        let loss = Some(1.0 / (steps + 1) as f64);
        Body::Sample(Box::new(Sample { steps, sent, loss, cpu_seconds, ..Sample::default() }))
    }

    fn exchange(partner: &str, result: &str) -> Body {
        Body::Exchange(ExchangeFacts {
            partner: partner.to_owned(),
            result: result.to_owned(),
            ..ExchangeFacts::default()
        })
    }

    #[test]
    fn rates_come_from_what_is_counted() {
        let mut story = Story::new();
        story.tell(run(1));
        story.tell(sample(1, 100));
        story.tell(sample(2, 350));
        assert_eq!(story.node().now(Metric::SentPerSecond), Some(250.0));
        assert_eq!(story.node().now(Metric::Processors), Some(1.5));
        assert_eq!(story.node().now(Metric::Loss).map(|loss| (loss * 3.0).round()), Some(1.0));
    }

    #[test]
    fn a_record_that_comes_twice_changes_nothing() {
        let mut story = Story::new();
        story.tell(run(1));
        let again = story.tell(exchange("b", "done"));
        let before = story.picture.clone();
        story.picture.apply(&again);
        assert_eq!(story.picture, before);
        assert_eq!(story.node().peers["b"].exchanges, 1);
    }

    #[test]
    fn another_process_goes_on_with_the_curves_and_counts_anew_whatever_the_clock_says() {
        let mut story = Story::new();
        story.tell(run(1));
        story.tell(sample(1, 1_000));
        story.tell(exchange("b", "partner_lost"));
        let before = story.node().time;
        // The wall clock was set back by ten minutes meanwhile.
        (story.began, story.up) = (400_000, 0.0);
        story.tell(run(2));
        assert!(story.node().time > before && story.node().peers.is_empty());
        story.tell(sample(2, 10));
        assert_eq!(story.node().now(Metric::SentPerSecond), None, "nothing is less than what another process sent");
        story.tell(sample(3, 30));
        assert_eq!(story.node().now(Metric::SentPerSecond), Some(20.0));
        assert_eq!(
            story.node().series(Metric::Loss).between(0.0, 1e6, 10_000_000).len(),
            1,
            "one stretch of 5 minutes"
        );
        let texts: Vec<&str> = story.node().events.iter().map(|event| event.facts.text.as_str()).collect();
        assert_eq!(texts, ["murmur  begins"], "twice in a row");
        assert_eq!(story.node().events[0].times, 2);
    }

    #[test]
    fn a_member_has_its_last_exchange_its_failures_and_its_traffic() {
        let mut story = Story::new();
        story.tell(run(1));
        let list = |sent: u64| {
            let peer = PeerFacts { peer: "b".to_owned(), connected: true, sent: Some(sent), ..PeerFacts::default() };
            Body::Peers(Peers { peers: vec![peer], more: 3 })
        };
        story.tell(list(100));
        story.tell(exchange("b", "deadline_passed"));
        story.tell(exchange("b", "done"));
        story.tell(list(400));
        let peer = &story.node().peers["b"];
        assert_eq!((peer.exchanges, peer.failed, story.node().peers_more), (1, 1, 3));
        assert_eq!(peer.last.as_ref().map(|last| last.facts.result.as_str()), Some("done"));
        assert_eq!(peer.rates, [100.0], "300 bytes in three seconds");
        story.tell(Body::Peers(Peers::default()));
        assert!(!story.node().peers["b"].facts.connected, "remembered, but gone");
    }

    #[test]
    fn memory_is_bounded_whatever_is_told() {
        let mut story = Story::new();
        story.tell(run(1));
        for turn in 0..2000 {
            story.tell(exchange(&format!("peer {turn}"), "done"));
            let text = format!("event {turn}");
            story.tell(Body::Event(EventFacts { text, ..EventFacts::default() }));
            story.tell(Body::Missed(Missed { count: 2, of: String::new() }));
        }
        let node = story.node();
        assert_eq!((node.peers.len(), node.events.len()), (PEERS_KEPT, EVENTS_KEPT));
        assert_eq!((node.exchanges.len(), node.missed), (EXCHANGES_KEPT, 4000));
        assert!(node.peers.contains_key("peer 1999") && !node.peers.contains_key("peer 0"));
        for name in 0..200 {
            let record = Record { node: format!("node {name}"), ..story.tell(sample(1, 1)) };
            story.picture.apply(&record);
        }
        assert_eq!(story.picture.nodes.len(), NODES_MAX);
    }

    #[test]
    fn a_picture_that_is_sent_is_the_same_picture() {
        let mut story = Story::new();
        story.tell(run(1));
        (0..20).for_each(|step| drop(story.tell(sample(step, step))));
        story.tell(exchange("b", "done"));
        let sent = serde_json::to_string(&story.picture).expect("numbers and strings");
        let mut read: Picture = serde_json::from_str(&sent).expect("the same");
        assert_eq!(read, story.picture);
        let record = story.tell(sample(21, 99));
        read.apply(&record);
        assert_eq!(read, story.picture, "and goes on the same way");
    }
}
