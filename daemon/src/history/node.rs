//! What the journal of one node tells.

use std::collections::BTreeMap;

use murmur_protocol::RunManifest;

use super::{Curve, Spans};
use crate::observe::record::{Body, EndFacts, EventFacts, ExchangeFacts, Level, Peers, Record, RunFacts, Sample};

/// Warnings and errors that are kept; of later ones it is counted how many there were.
const EVENTS_MAX: usize = 100;

/// Members and partners that are kept.
const PEERS_MAX: usize = 256;

/// Processes that are kept; one that is started anew more often has another problem.
const SESSIONS_MAX: usize = 500;

/// Between two samples, which come every second, no more than this counts as time that was spent in the state of the first.
const SAMPLE_SECONDS_MAX: f64 = 30.0;

/// Members that agree anew on who averages average with nobody for a second or two; this long, they were apart.
const APART_SECONDS_MIN: f64 = 5.0;

/// A node from its first record to its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeHistory {
    /// Of its newest process.
    pub(crate) run: RunFacts,
    /// The last record's time, in seconds since 1970; never goes back.
    pub(crate) time: f64,
    /// Its processes, oldest first.
    pub(crate) sessions: Vec<Session>,
    /// Where it stands, all processes together.
    pub(crate) place: Place,
    /// How it went.
    pub(crate) points: Curve<Point>,
    /// Losses on the held-out slice.
    pub(crate) evaluations: Curve<Evaluation>,
    /// Those with whom it had to do.
    pub(crate) partners: BTreeMap<String, Partner>,
    /// When each member was connected.
    pub(crate) seen: BTreeMap<String, Spans>,
    /// Warnings and errors, oldest first.
    pub(crate) events: Vec<(f64, EventFacts)>,
    pub(crate) events_left_out: u64,
    /// Records that are not there although their numbers say that they were.
    pub(crate) lost: u64,
    /// Steps that its processes did, those that were done twice included.
    pub(crate) steps_done: u64,
    /// Whether tokens are counted, or steps times the run's batch; else they are rates times seconds.
    pub(crate) are_tokens_counted: bool,
    pub(crate) received: u64,
    pub(crate) training_seconds: f64,
    /// What is known second by second, which is less than all where old files of its journal were dropped.
    pub(crate) watched: Watched,
    /// Seconds in training with a member connected.
    pub(crate) accompanied_seconds: f64,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) memory_max: Option<u64>,
    /// The least that was free on its disk.
    pub(crate) disk_min: Option<u64>,
    /// When it last trained, or made its last exchanges, in seconds since 1970; 0 where it never did.
    pub(crate) trained_until: f64,
    /// Samples in training that knew a ratio, of them healthy ones, and of them drifting ones.
    pub(crate) ratios: (u64, u64, u64),
    /// Whether its run averages all members at once.
    pub(crate) is_synchronous: bool,
    /// Seconds in which it then averaged with nobody although a member was connected, between two times of averaging with one.
    pub(crate) apart_seconds: f64,
    /// Whether it began with a model of other members.
    pub(crate) has_copied: bool,
    /// The first exchange that was completed: its place.
    pub(crate) first_exchange: Option<Place>,
    /// What is known of its newest process from elsewhere than its journal.
    pub(crate) process: Process,
    /// The newest sample of its newest process.
    pub(crate) sample: Option<Sample>,
    seq: u64,
    began: f64,
    /// Tokens or images of a step, as the run file has it: on each of its devices as many.
    step_tokens: Option<f64>,
    /// Bytes sent and received and processor seconds of earlier processes.
    before: (u64, u64, Option<f64>),
    /// Seconds in training of earlier processes, and of these the seconds between steps.
    between_before: (f64, f64),
    /// The sample before, and its time in its process.
    last: Option<(f64, Sample)>,
    /// Seconds since this process averaged with a member that it was apart; none where it has not done so yet.
    apart: Option<f64>,
}

/// Sums over pairs of samples at most [`SAMPLE_SECONDS_MAX`] apart: only there is known how long something took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) seconds: f64,
    /// Of these, in training.
    pub(crate) training_seconds: f64,
    /// Tokens or images in that training.
    pub(crate) tokens: f64,
}

/// Where a node stood.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Place {
    /// Seconds since 1970.
    pub(crate) time: f64,
    /// Own steps.
    pub(crate) steps: u64,
    /// Tokens or images that it has trained on.
    pub(crate) tokens: f64,
    /// Bytes that it has sent.
    pub(crate) sent: u64,
    /// Grows where something is missing before it: a process has ended, or records are lost.
    pub(crate) piece: u32,
}

/// How it went at a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) place: Place,
    /// Training loss.
    pub(crate) loss: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) tokens_per_second: f64,
}

/// What an evaluation found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Evaluation {
    pub(crate) place: Place,
    pub(crate) loss: f64,
    /// Share of held-out images or rows that were told rightly, or of a number's variance that was predicted; none of texts.
    pub(crate) score: Option<f64>,
}

/// A member, as one node had to do with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partner {
    /// What its owner calls it.
    pub(crate) name: Option<String>,
    /// Exchanges that were completed.
    pub(crate) done: u64,
    /// Exchanges that came to nothing, by reason.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Bytes of models, parts of them and exchanges to it and from it; none where that was not told.
    pub(crate) bytes: Option<(u64, u64)>,
    before: (u64, u64),
}

/// One process of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    /// Its first and its last record, in seconds since 1970.
    pub(crate) begin: f64,
    pub(crate) end: f64,
    /// Of an hour of its machine, in any currency; 0 where that is not known.
    price_per_hour: f64,
    said: Option<EndFacts>,
}

impl Session {
    fn hours(&self) -> f64 {
        (self.end - self.begin) / 3600.0
    }
}

/// Whether the newest process of a node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Process {
    /// Its journal lies in no data directory of this machine, so that cannot be told.
    #[default]
    Elsewhere,
    /// It has the lock of its data directory.
    Runs,
    /// Nobody has that lock.
    Gone,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ended<'a> {
    /// It has not.
    Running,
    /// Nobody knows here: its journal was copied from elsewhere, and may be longer there.
    Unknown,
    /// It left in order; whether its part was complete.
    InOrder(bool),
    /// Training failed.
    Failed(&'a str),
    /// It said nothing: it was killed, or the machine went off, or it lost its disk.
    BrokeOff,
}

impl NodeHistory {
    /// When its first record was written, in seconds since 1970.
    pub(crate) fn begin(&self) -> Option<f64> {
        self.sessions.first().map(|session| session.begin)
    }

    /// Its processes, each with how it ended as far as can be told.
    pub(crate) fn endings(&self) -> impl Iterator<Item = (&Session, Ended<'_>)> {
        let newest = self.sessions.len().saturating_sub(1);
        self.sessions.iter().enumerate().map(move |(index, session)| {
            let ended = match &session.said {
                Some(EndFacts { failure: Some(failure), .. }) => Ended::Failed(failure),
                Some(said) => Ended::InOrder(said.complete),
                None if index == newest && self.process == Process::Runs => Ended::Running,
                None if index == newest && self.process == Process::Elsewhere => Ended::Unknown,
                None => Ended::BrokeOff,
            };
            (session, ended)
        })
    }

    /// Whether its newest process has ended with its own part of the run, and not with the run.
    pub(crate) fn has_ended_alone(&self) -> bool {
        let newest = self.sessions.last().and_then(|session| session.said.as_ref());
        newest.is_some_and(|said| said.own_part)
    }

    /// Hours from the first record of each process to its last, of all processes.
    pub(crate) fn hours(&self) -> f64 {
        self.sessions.iter().map(Session::hours).sum()
    }

    /// What these hours cost, in the owner's currency; 0 where no price is known.
    pub(crate) fn cost(&self) -> f64 {
        self.sessions.iter().map(|session| session.hours() * session.price_per_hour).sum()
    }

    /// Of its time in training the share between steps, in which models are averaged.
    pub(crate) fn boundary_share(&self) -> Option<f64> {
        let newest = self.sample.as_ref()?.boundary_share;
        let share = self.seconds_between_steps() / self.training_seconds;
        Some(if share.is_finite() { share } else { newest })
    }

    /// Each process tells its share since it began.
    fn seconds_between_steps(&self) -> f64 {
        let share = self.last.as_ref().map_or(0.0, |(_, sample)| sample.boundary_share);
        self.between_before.1 + share * (self.training_seconds - self.between_before.0)
    }

    /// Exchanges that were completed, and those that broke off. One that was rejected, because a partner was busy, is neither.
    pub(crate) fn exchanges(&self) -> (u64, u64) {
        let done = self.partners.values().map(|partner| partner.done).sum();
        let failed = |partner: &Partner| -> u64 {
            partner.failed.iter().filter(|(reason, _)| *reason != "rejected").map(|(_, count)| count).sum()
        };
        (done, self.partners.values().map(failed).sum())
    }

    pub(super) fn apply(&mut self, record: &Record) {
        let begins = match &record.body {
            Body::Run(run) => run.session != self.run.session || self.sessions.is_empty(),
            _ => self.sessions.is_empty(),
        };
        // Each file of a journal repeats the first record of its process.
        if record.seq <= self.seq && !begins {
            return;
        }
        if self.seq > 0 && record.seq > self.seq + 1 {
            self.lost += record.seq - self.seq - 1;
            self.place.piece += 1;
        }
        self.seq = record.seq;
        let up = record.up.max(0.0);
        if begins {
            self.began = (record.t as f64 / 1000.0 - up).max(self.time).max(0.0);
        }
        self.time = self.time.max(self.began + up);
        self.place.time = self.time;
        if begins {
            self.begin_session();
        }
        self.sessions.last_mut().expect("it has just begun, or before").end = self.time;
        match &record.body {
            Body::Run(run) => self.take_run(run),
            Body::Sample(sample) => self.take_sample(up, sample),
            Body::Peers(peers) => self.take_peers(peers),
            Body::Exchange(facts) => self.take_exchange(facts),
            Body::Event(facts) => self.take_event(facts),
            Body::Missed(missed) => self.lost += missed.count,
            Body::End(end) => self.sessions.last_mut().expect("as above").said = Some(end.clone()),
            Body::Unknown => {}
        }
    }

    fn begin_session(&mut self) {
        if self.sessions.len() >= SESSIONS_MAX {
            self.sessions.remove(0);
        }
        self.sessions.push(Session { begin: self.time, end: self.time, ..Session::default() });
        self.place.piece += 1;
        self.before = (self.place.sent, self.received, self.cpu_seconds);
        self.between_before = (self.training_seconds, self.seconds_between_steps());
        self.last = None;
        self.apart = None;
        for partner in self.partners.values_mut() {
            partner.before = partner.bytes.unwrap_or_default();
        }
    }

    fn take_run(&mut self, run: &RunFacts) {
        let manifest = RunManifest::from_text(&run.run_file).ok();
        self.step_tokens = manifest
            .map(|manifest| f64::from(manifest.optimizer.batch_sequences) * f64::from(manifest.model.context()));
        self.are_tokens_counted = self.step_tokens.is_some();
        if let Some(session) = self.sessions.last_mut() {
            session.price_per_hour = run.price_per_hour;
        }
        self.place.steps = run.first_step;
        self.run = run.clone();
    }

    fn take_sample(&mut self, up: f64, sample: &Sample) {
        let steps_before = self.last.as_ref().map_or(self.place.steps, |(_, last)| last.steps);
        // Without the beginning of a journal it is not known how many steps were done since.
        let is_known = self.last.is_some() || self.run.session != 0;
        let steps = if is_known { sample.steps.saturating_sub(steps_before) } else { 0 };
        let apart = self.last.as_ref().map(|(before, _)| (up - before).max(0.0));
        let seconds = apart.map_or(0.0, |apart| apart.min(SAMPLE_SECONDS_MAX));
        let is_watched = apart.is_some_and(|apart| apart <= SAMPLE_SECONDS_MAX);
        self.steps_done += steps;
        self.is_synchronous |= sample.waited_seconds.is_some();
        let tokens = match (sample.tokens_trained, self.step_tokens) {
            (Some(trained), _) if is_known => {
                let before = self.last.as_ref().and_then(|(_, last)| last.tokens_trained);
                trained.saturating_sub(before.unwrap_or(0)) as f64
            }
            (Some(_), _) => 0.0,
            // Journals of earlier versions.
            (None, Some(each)) => steps as f64 * each,
            (None, None) => sample.tokens_per_second * seconds,
        };
        self.place.tokens += tokens;
        if is_watched {
            self.watched.seconds += seconds;
        }
        if is_watched && sample.phase == "training" {
            self.watched.training_seconds += seconds;
            self.watched.tokens += tokens;
        }
        self.are_tokens_counted |= sample.tokens_trained.is_some();
        self.place.steps = sample.steps;
        self.place.sent = self.before.0 + sample.sent;
        self.received = self.before.1 + sample.received;
        if let Some(seconds) = sample.cpu_seconds {
            self.cpu_seconds = Some(self.before.2.unwrap_or(0.0) + seconds);
        }
        self.memory_max = self.memory_max.max(sample.peak_memory).max(sample.memory);
        self.disk_min = [self.disk_min, sample.disk_free].into_iter().flatten().min();
        match sample.phase.as_str() {
            "training" => {
                self.training_seconds += seconds;
                self.accompanied_seconds += if sample.peers > 0 { seconds } else { 0.0 };
                self.trained_until = self.time;
                self.take_members(sample, seconds);
                // Later samples repeat the last one.
                if let Some(ratio) = sample.ratio {
                    self.ratios.0 += 1;
                    let band = self.run.ratio_band;
                    self.ratios.1 += u64::from((band.low..=band.high).contains(&ratio));
                    self.ratios.2 += u64::from(ratio > band.drifting);
                }
            }
            "settling" => self.trained_until = self.time,
            "joining" => self.has_copied = true,
            _ => {}
        }
        let is_new =
            |last: &Evaluation| Some(last.loss) != sample.validation_loss || last.place.piece != self.place.piece;
        if let Some(loss) = sample.validation_loss
            && self.evaluations.last().is_none_or(is_new)
        {
            let score = sample.accuracy.or(sample.r_squared);
            self.evaluations.push(Evaluation { place: self.place, loss, score });
        }
        self.points.push(Point {
            place: self.place,
            loss: sample.loss,
            ratio: sample.ratio,
            tokens_per_second: sample.tokens_per_second,
        });
        self.last = Some((up, sample.clone()));
        self.sample = Some(sample.clone());
    }

    fn take_members(&mut self, sample: &Sample, seconds: f64) {
        match (sample.members, &mut self.apart) {
            (Some(2..), apart) => {
                let lasted = apart.replace(0.0).unwrap_or_default();
                self.apart_seconds += if lasted >= APART_SECONDS_MIN { lasted } else { 0.0 };
            }
            (Some(_), Some(apart)) if sample.peers > 0 => *apart += seconds,
            _ => {}
        }
    }

    fn take_peers(&mut self, peers: &Peers) {
        for facts in &peers.peers {
            let has_bytes = facts.sent.is_some() || facts.received.is_some();
            let is_known = self.seen.contains_key(&facts.peer);
            // `murmur doctor` is connected for some seconds, and trains nothing.
            let is_member = is_known || (facts.says_tokens_per_second > 0.0 && self.seen.len() < PEERS_MAX);
            if facts.connected && is_member {
                self.seen.entry(facts.peer.clone()).or_default().see(self.time);
            }
            let Some(partner) = self.partner(&facts.peer) else { continue };
            partner.name.clone_from(&facts.name);
            if has_bytes {
                let (sent, received) = partner.before;
                let now = (sent + facts.sent.unwrap_or(0), received + facts.received.unwrap_or(0));
                partner.bytes = Some(now);
            }
        }
    }

    fn take_exchange(&mut self, facts: &ExchangeFacts) {
        let place = self.place;
        let is_done = facts.result == "done";
        // Lists of members come every few seconds; who has completed an exchange was there.
        if is_done && (self.seen.len() < PEERS_MAX || self.seen.contains_key(&facts.partner)) {
            self.seen.entry(facts.partner.clone()).or_default().see(place.time);
        }
        let Some(partner) = self.partner(&facts.partner) else { return };
        if is_done {
            partner.done += 1;
            self.first_exchange.get_or_insert(place);
        } else if partner.failed.len() < EVENTS_MAX || partner.failed.contains_key(&facts.result) {
            *partner.failed.entry(facts.result.clone()).or_default() += 1;
        }
    }

    /// The member, while there are not too many.
    fn partner(&mut self, peer: &str) -> Option<&mut Partner> {
        let has_room = self.partners.len() < PEERS_MAX || self.partners.contains_key(peer);
        has_room.then(|| self.partners.entry(peer.to_owned()).or_default())
    }

    fn take_event(&mut self, facts: &EventFacts) {
        if facts.level == Level::Info {
            return;
        }
        if self.events.len() < EVENTS_MAX {
            self.events.push((self.time, facts.clone()));
        } else {
            self.events_left_out += 1;
        }
    }
}
