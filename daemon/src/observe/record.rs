//! A record: one thing that a node tells of itself. The journal, the API and every view are made of these.
//!
//! As JSON a record is one object on one line: `v`, `seq`, `t`, `up`, `node`, `kind`, and the fields of its kind. Fields are
//! only ever added, and what is absent is not known; a kind that a reader does not know is read as
//! [`Body::Unknown`]. `v` grows only where a field that exists changes its meaning. No record holds a secret: no ticket, no
//! membership secret, no token.

use murmur_protocol::manifest::RatioBand;
use serde::{Deserialize, Serialize};

/// The version of records that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Peers in one record at most; those that are connected come first.
pub const PEERS_MAX: usize = 64;

/// One thing that a node tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the format; [`VERSION`] or less.
    pub v: u32,
    /// Counts a node's records, from 1, over restarts. Where numbers are left out, records were lost.
    pub seq: u64,
    /// When, on the node's wall clock, in milliseconds since 1970; in JSON as `2026-01-31T12:00:00.000Z`. It may jump.
    #[serde(with = "wall_time")]
    pub t: i64,
    /// When, in seconds since the node's process began to train or to look for a model, those in which its machine slept included.
    /// It never goes back.
    pub up: f64,
    /// The node's peer id.
    pub node: String,
    /// What is told.
    #[serde(flatten)]
    pub body: Body,
}

/// What a record tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Body {
    /// A process has begun: the first line of every journal file.
    Run(RunFacts),
    /// How it goes, once a second.
    Sample(Box<Sample>),
    /// The members that are known, every few seconds.
    Peers(Peers),
    /// An exchange has ended.
    Exchange(ExchangeFacts),
    /// Something that people want to read.
    Event(EventFacts),
    /// Records that a reader was too slow for.
    Missed(Missed),
    /// The process has left its swarm in order.
    End(EndFacts),
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Which process of which run tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// The run's id, in short.
    pub run: String,
    /// What its owner calls the run.
    pub run_name: String,
    /// What its owner calls the node; anybody may take any name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of murmur.
    pub version: String,
    /// When the process began, in milliseconds since 1970: another process of the same node has another number.
    pub session: i64,
    /// Swarm progress of the checkpoint that it went on from, in steps; none where it began without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<f64>,
    /// Own steps that were done when the process began: later ones of an earlier process are done again.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_step: u64,
    /// What an hour of the machine costs, in any currency; 0 where its owner has not said.
    #[serde(skip_serializing_if = "is_free")]
    pub price_per_hour: f64,
    /// Parameters of the model.
    pub parameters: u64,
    /// What trains.
    pub device: String,
    /// What the model predicts, and what its losses are means over: byte, token, image or row.
    pub prediction: String,
    /// What ratios of disagreement to local progress mean in this run.
    pub ratio_band: RatioBand,
    /// The run file, in its canonical form: what every member knows. Empty where an earlier version wrote the record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub run_file: String,
}

/// A node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// joining, training, settling, completed, leaving or left.
    pub phase: String,
    /// What is going on, in a few words.
    pub doing: String,
    /// Own steps.
    pub steps: u64,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// What is done of the run, 0 to 1; none while no end is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Steps at which training ends: own ones or the swarm's, whichever ends it first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_max: Option<u64>,
    /// The same where it is the swarm's progress that ends it first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_max: Option<u64>,
    /// Seconds until then, at the pace of the last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<f64>,
    /// What is there of a copy on its way in, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied: Option<f64>,
    /// Training loss, averaged over the last steps, in nats per prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Loss on the held-out slice at the last evaluation, in nats per prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Share of held-out images or rows whose class was told rightly at the last evaluation, 0 to 1; none of texts and numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Area under the ROC curve of held-out rows at the last evaluation, 0 to 1, 0.5 by chance; none but of tables with classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roc_auc: Option<f64>,
    /// Root of the mean squared error of held-out rows at the last evaluation, in the target's own unit; none but of tables
    /// with numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rmse: Option<f64>,
    /// Share of the target's variance that was predicted of held-out rows at the last evaluation, at most 1; none but of tables
    /// with numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r_squared: Option<f64>,
    /// ε of all private steps so far; none where training is not private.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Tokens (bytes of text) or images a second, lately; 0 while it does not train, be it that it waits for others.
    pub tokens_per_second: f64,
    /// Tokens, images or rows that this process has trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_trained: Option<u64>,
    /// The same of all members that this node has heard of lately, as they say themselves, and its own.
    pub swarm_tokens_per_second: f64,
    /// Seconds of a step, lately.
    pub step_seconds: f64,
    /// Members connected.
    pub peers: u64,
    /// Exchanges that it took part in, whoever started them.
    pub exchanges: u64,
    /// Exchanges that broke off.
    pub exchanges_failed: u64,
    /// How far apart its model and its last partner's were, over √2; none while it trains with nobody connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disagreement: Option<f64>,
    /// Disagreement over what own training does between two exchanges; the run's `ratio_band` says what it means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Own steps between two own exchanges at present; 0 where all members average at once.
    pub interval_steps: f64,
    /// Bytes sent since the process began, with encryption and framing; over QUIC those of its streams, without what QUIC adds.
    pub sent: u64,
    /// The same, received.
    pub received: u64,
    /// Bytes of the day, both ways, over restarts.
    pub today: u64,
    /// Why and until when the node leaves the network alone, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resting: Option<String>,
    /// Whether others reach this node, in words.
    pub reachable: String,
    /// Share of the time in training that goes by between two steps, 0 to 1: what gossip costs training.
    pub boundary_share: f64,
    /// Of a synchronous run: how long this node has waited for others since the process began, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
    /// Of a synchronous run: members that average together, this node counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<u64>,
    /// Where other machines hold a part of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamFacts>,
    /// Processor time of the process so far, in seconds, summed over its threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Memory that it holds, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The most that it has held, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Bytes free on the disk of its data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<u64>,
}

/// The machines that hold a node's model together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TeamFacts {
    /// waiting, cutting, training or ended.
    pub state: String,
    /// Who has which layers, in words; none before that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Seconds for which training has waited since the process began: for helpers to come, and for their part of batches.
    pub waited: f64,
    /// For whom it has waited longest: a peer id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<String>,
    /// How often a helper was lost.
    pub lost: u64,
}

/// The members that a node knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peers {
    /// At most [`PEERS_MAX`], connected ones first.
    pub peers: Vec<PeerFacts>,
    /// How many more there are.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// A member, as a node knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerFacts {
    /// Its peer id.
    pub peer: String,
    /// What its owner calls it; anybody may take any name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tokens or images a second that it says to train on.
    pub says_tokens_per_second: f64,
    /// Seconds since anybody heard from it.
    pub age: u32,
    /// Whether it is connected to this node.
    pub connected: bool,
    /// How much of the usual its model may change, 0 to 1; 1 where nothing was held against it.
    pub trust: f64,
    /// Whether it is shut out for a while because it misbehaved.
    #[serde(skip_serializing_if = "is_false")]
    pub banned: bool,
    /// The round trip of the last ping, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt: Option<f64>,
    /// How it is reached: direct or relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Bytes of models, parts of models and exchanges sent to it since this process began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// The same, received from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

/// An exchange that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExchangeFacts {
    /// With whom: a peer id.
    pub partner: String,
    /// `done`, or why it came to nothing.
    pub result: String,
    /// What was averaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// How far apart the two models were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<f64>,
    /// What the correction was scaled by, 0 to 1; 1 where nothing was clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Blocks left out because their codes wrapped.
    #[serde(skip_serializing_if = "is_zero")]
    pub masked: u64,
    /// Whether it had 16-bit codes.
    #[serde(skip_serializing_if = "is_false")]
    pub coarse: bool,
    /// Seconds from the proposal to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Bytes of codes and steps sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Bytes of codes and steps received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// This node's swarm progress less the partner's when it began, in steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<f64>,
}

/// Something that happened, in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventFacts {
    /// How much it matters.
    pub level: Level,
    /// What happened.
    pub text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Training is over because of it.
    Error,
    /// Something should be done about it.
    Warning,
    /// Part of the daily work, or a level that this version does not know.
    #[default]
    #[serde(other)]
    Info,
}

/// Records or notices that were lost because a reader was too slow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missed {
    /// Number of those that were lost.
    pub count: u64,
    /// Of what: records, or notices of the core.
    pub of: String,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndFacts {
    /// Own steps at the end.
    pub steps: u64,
    /// Whether the run, or the node's own part of it, was complete.
    #[serde(skip_serializing_if = "is_false")]
    pub complete: bool,
    /// Whether it was the node's own part alone: the run has no end, or goes on to it.
    #[serde(skip_serializing_if = "is_false")]
    pub own_part: bool,
    /// Why training has failed, where it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Record {
    /// The record as a line of JSON, without its end.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are serialisable")
    }

    /// The record of a line; none where it is no record, or one of a newer format.
    pub fn parse(line: &str) -> Option<Record> {
        serde_json::from_str(line).ok().filter(|record: &Record| record.v <= VERSION)
    }
}

fn is_free(price: &f64) -> bool {
    *price == 0.0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Milliseconds since 1970 as a date and a time.
mod wall_time {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub(super) fn serialize<S: Serializer>(milliseconds: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        let time = Timestamp::from_millisecond(*milliseconds).map_err(ser::Error::custom)?;
        serializer.collect_str(&format_args!("{time:.3}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(body: Body) -> Record {
        Record { v: VERSION, seq: 7, t: 1_769_860_800_123, up: 12.5, node: "12D3".to_owned(), body }
    }

    #[test]
    fn a_record_is_one_readable_line_and_the_same_after_reading() {
        let event = EventFacts { level: Level::Warning, text: "a\nb".to_owned(), hint: None };
        let line = record(Body::Event(event)).line();
        let expected = r#"{"v":1,"seq":7,"t":"2026-01-31T12:00:00.123Z","up":12.5,"node":"12D3","kind":"event","level":"warning","text":"a\nb"}"#;
        assert_eq!(line, expected);
        let bodies = [
            Body::Run(RunFacts { resumed_from: Some(3.0), ..RunFacts::default() }),
            Body::Sample(Box::new(Sample { loss: Some(2.5), ..Sample::default() })),
            Body::Peers(Peers { peers: vec![PeerFacts::default()], more: 2 }),
            Body::Exchange(ExchangeFacts { seconds: Some(0.25), ..ExchangeFacts::default() }),
            Body::Missed(Missed { count: 3, of: "records".to_owned() }),
            Body::End(EndFacts { steps: 4, complete: true, own_part: true, failure: None }),
        ];
        for body in bodies {
            let record = record(body);
            assert_eq!(Record::parse(&record.line()).as_ref(), Some(&record));
        }
    }

    #[test]
    fn what_a_newer_version_adds_is_passed_over_and_a_newer_format_is_refused() {
        let of =
            |v: u32, rest: &str| format!(r#"{{"v":{v},"seq":1,"t":"2026-01-31T12:00:00Z","up":0,"node":"n",{rest}}}"#);
        let known = Record::parse(&of(1, r#""kind":"end","steps":3,"colour":"red""#)).expect("a field more");
        assert_eq!(known.body, Body::End(EndFacts { steps: 3, ..EndFacts::default() }));
        let unknown = Record::parse(&of(1, r#""kind":"weather","sun":true"#)).expect("a kind more");
        assert_eq!(unknown.body, Body::Unknown);
        let level = Record::parse(&of(1, r#""kind":"event","level":"dire","text":"x""#)).expect("a level more");
        assert!(matches!(level.body, Body::Event(EventFacts { level: Level::Info, .. })));
        assert_eq!(Record::parse(&of(2, r#""kind":"end""#)), None);
        assert_eq!(Record::parse("{}"), None);
    }
}
