//! The hub: gives records their numbers and times, keeps the newest, and hands them to whoever listens.
//!
//! A sink hangs on a bounded queue. Where its queue is full, records are dropped for that sink alone, and the next that it
//! gets says how many. So nobody waits for a sink: not the hub, and not training.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::picture::Picture;
use super::record::{Body, Missed, Record, VERSION};
use super::traffic::Traffic;
use crate::limits::clock::passed;

/// Records kept for readers that follow: about twenty minutes.
pub const RECENT_MAX: usize = 2048;

/// A record, and its line of JSON without the end.
#[derive(Debug)]
pub struct Told {
    /// The record.
    pub record: Record,
    /// Its line.
    pub line: String,
}

/// What is to be done with the records of this node; clones share it.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The last record's number.
    news: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    node: String,
    /// The node's time zero in seconds, on the clock that counts while the machine sleeps as well.
    began: f64,
    seq: u64,
    picture: Picture,
    recent: VecDeque<Arc<Told>>,
    sinks: Vec<Sink>,
}

#[derive(Debug)]
struct Sink {
    queue: SyncSender<Arc<Told>>,
    /// Records dropped since the last one that went through.
    missed: u64,
}

/// What a reader gets.
#[derive(Debug, Default)]
pub struct News {
    /// In their order, without a gap.
    pub records: Vec<Arc<Told>>,
    /// Records before these that are not kept any more.
    pub missed: u64,
}

impl Hub {
    /// A hub of a node (its peer id) whose last record had the number `seq`. `clock` is the node's time zero.
    pub fn new(node: &str, seq: u64, clock: Instant) -> Hub {
        let state = State {
            node: node.to_owned(),
            began: passed().as_secs_f64() - clock.elapsed().as_secs_f64(),
            seq,
            picture: Picture::default(),
            recent: VecDeque::new(),
            sinks: Vec::new(),
        };
        Hub(Arc::new(Shared { state: Mutex::new(state), news: watch::Sender::new(seq) }))
    }

    /// Takes records of earlier processes of this node into the picture. They are not told again.
    pub fn remember(&self, records: &[Record]) {
        let mut state = self.lock();
        let own = state.node.clone();
        records.iter().filter(|record| record.node == own).for_each(|record| state.picture.apply(record));
    }

    /// Takes up the bytes with members that earlier processes of this node have counted; before what the journal remembers.
    pub fn remember_traffic(&self, traffic: Traffic) {
        let mut state = self.lock();
        let own = state.node.clone();
        state.picture.nodes.entry(own).or_default().traffic = traffic;
    }

    /// Tells something, at this moment.
    pub fn tell(&self, body: Body) {
        let mut state = self.lock();
        state.seq += 1;
        let record = state.record(state.seq, body);
        state.picture.apply(&record);
        let told = Arc::new(Told { line: record.line(), record });
        state.recent.push_back(told.clone());
        if state.recent.len() > RECENT_MAX {
            state.recent.pop_front();
        }
        let State { sinks, node, began, .. } = &mut *state;
        sinks.retain_mut(|sink| sink.hand_over(&told, node, *began));
        let seq = state.seq;
        drop(state);
        self.0.news.send_replace(seq);
    }

    /// A queue of so many records that gets all from now on. Its end is the end of the hub.
    pub fn sink(&self, places: usize) -> Receiver<Arc<Told>> {
        let (queue, receiver) = sync_channel(places);
        self.lock().sinks.push(Sink { queue, missed: 0 });
        receiver
    }

    /// Lets go of the sinks: each ends once it has written what is in its queue.
    pub fn close(&self) {
        self.lock().sinks.clear();
    }

    /// The records after a number, at most so many.
    pub fn after(&self, seq: u64, most: usize) -> News {
        let state = self.lock();
        // Of a process with another count of records: from the beginning of this one.
        let seq = if seq > state.seq { 0 } else { seq };
        let first = state.recent.front().map_or(state.seq + 1, |told| told.record.seq);
        let missed = if seq == 0 { 0 } else { first.saturating_sub(seq + 1) };
        let begin = state.recent.partition_point(|told| told.record.seq <= seq);
        News { records: state.recent.iter().skip(begin).take(most).cloned().collect(), missed }
    }

    /// Everything so far, as views draw it.
    pub fn picture(&self) -> Picture {
        self.lock().picture.clone()
    }

    /// Looks at the picture and this node's id without a copy. Telling waits meanwhile, so it is to be brief.
    pub fn read<Answer>(&self, look: impl FnOnce(&str, &Picture) -> Answer) -> Answer {
        let state = self.lock();
        look(&state.node, &state.picture)
    }

    /// The last record's number, as it changes.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.0.news.subscribe()
    }

    /// A record for one reader, who has missed those before the next: it has the number of the last that was missed.
    pub fn missed(&self, count: u64, seq: u64) -> Record {
        self.lock().record(seq, Body::Missed(Missed { count, of: "records".to_owned() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&self, seq: u64, body: Body) -> Record {
        record(&self.node, self.began, seq, body)
    }
}

fn record(node: &str, began: f64, seq: u64, body: Body) -> Record {
    let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let up = ((passed().as_secs_f64() - began).max(0.0) * 1000.0).round() / 1000.0;
    Record { v: VERSION, seq, t: i64::try_from(t).unwrap_or(0), up, node: node.to_owned(), body }
}

impl Sink {
    /// Whether it is still there.
    fn hand_over(&mut self, told: &Arc<Told>, node: &str, began: f64) -> bool {
        use std::sync::mpsc::TrySendError;
        if self.missed > 0 {
            let body = Body::Missed(Missed { count: self.missed, of: "records".to_owned() });
            let record = record(node, began, told.record.seq - 1, body);
            match self.queue.try_send(Arc::new(Told { line: record.line(), record })) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.queue.try_send(told.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::record::EventFacts;

    fn event(number: u64) -> Body {
        Body::Event(EventFacts { text: number.to_string(), ..EventFacts::default() })
    }

    #[test]
    fn a_slow_sink_loses_records_and_is_told_how_many_and_nobody_waits() {
        let hub = Hub::new("a", 10, Instant::now());
        let (slow, quick) = (hub.sink(2), hub.sink(64));
        (0..7).for_each(|number| hub.tell(event(number)));
        let told = |receiver: &Receiver<Arc<Told>>| -> Vec<(u64, u64)> {
            let missed = |told: &Told| match &told.record.body {
                Body::Missed(missed) => missed.count,
                _ => 0,
            };
            receiver.try_iter().map(|told| (told.record.seq, missed(&told))).collect()
        };
        assert_eq!(told(&slow), [(11, 0), (12, 0)]);
        hub.tell(event(8));
        assert_eq!(told(&slow), [(17, 5), (18, 0)], "13 to 17 are gone");
        assert_eq!(told(&quick).len(), 8, "nobody else loses any");
        drop(slow);
        hub.tell(event(9));
        hub.close();
        assert_eq!(quick.iter().count(), 1, "and ends with the hub");
    }

    /// As if its machine had slept for an hour since it began.
    #[test]
    fn a_record_counts_the_time_that_its_machine_slept() {
        let hub = Hub::new("a", 0, Instant::now());
        let sink = hub.sink(8);
        hub.lock().began -= 3600.0;
        hub.tell(event(1));
        let up = sink.recv().expect("told").record.up;
        assert!((3600.0..4200.0).contains(&up), "{up}");
    }

    #[test]
    fn the_picture_goes_on_over_a_restart() {
        let before = Hub::new("a", 0, Instant::now());
        let sink = before.sink(8);
        (0..3).for_each(|number| before.tell(event(number)));
        let told: Vec<Record> = sink.try_iter().map(|told| told.record.clone()).collect();
        let after = Hub::new("a", 3, Instant::now());
        after.remember(&told);
        after.remember(&[Record { node: "b".to_owned(), ..told[0].clone() }]);
        after.tell(event(3));
        let picture = after.picture();
        assert_eq!(picture.nodes.keys().collect::<Vec<_>>(), ["a"], "another identity's is not its own");
        assert_eq!((picture.nodes["a"].events.len(), picture.nodes["a"].seq), (4, 4));
        assert_eq!(after.after(0, 10).records.len(), 1, "those are not told again");
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_hears_what_it_has_missed() {
        let hub = Hub::new("a", 0, Instant::now());
        (0..RECENT_MAX as u64 + 100).for_each(|number| hub.tell(event(number)));
        let seqs = |news: &News| (news.records.first().map(|told| told.record.seq), news.records.len(), news.missed);
        let last = RECENT_MAX as u64 + 100;
        assert_eq!(seqs(&hub.after(last - 1, 10)), (Some(last), 1, 0));
        assert_eq!(seqs(&hub.after(last, 10)), (None, 0, 0));
        assert_eq!(seqs(&hub.after(0, 10)), (Some(101), 10, 0), "a new reader has missed nothing");
        assert_eq!(seqs(&hub.after(50, 10)), (Some(101), 10, 50));
        assert_eq!(seqs(&hub.after(last + 9, 10)), (Some(101), 10, 0), "it knows another process of this node");
        assert_eq!(*hub.news().borrow(), last);
        assert_eq!(hub.picture().nodes["a"].seq, last);
    }
}
