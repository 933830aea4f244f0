//! What a daemon tells about itself: the JSON of `murmur status`, of `--format json` and of the merged local view.

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_network::Reachability;
use murmur_protocol::{MemberView, PeerId, Phase, Status, Time};
use serde::{Deserialize, Serialize};

use crate::console::ReachabilityReport;
use crate::drivers::{DataReport, PrivacyReport, StepTimes, TrainingView};
use crate::engine::PeerTraffic;
use crate::limits::rest::RestView;
use crate::observe::doing::{doing, is_stepping};
use crate::observe::outlook::OutlookReport;
use crate::observe::synchronous::SynchronousReport;
use crate::process::stats::peak_memory;
use crate::store::Saving;
use crate::team::report::TeamReport;

/// What a member said is shown in the swarm's sum when anybody has heard from it this lately, in seconds.
const TOLD_SECONDS_MAX: u32 = 300;

/// A copy on its way in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyReport {
    /// What is there, 0 to 1.
    pub share: f64,
    /// Bytes of the model.
    #[serde(default)]
    pub bytes: u64,
    /// Members that are sending.
    pub donors: Vec<String>,
}

/// A daemon at one moment. Absent values are not known yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its peer id.
    pub peer: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// The run's id, in short.
    pub run: String,
    /// What its founder calls the run.
    #[serde(default)]
    pub run_name: String,
    /// What trains.
    #[serde(default)]
    pub device: String,
    /// Where its checkpoints are.
    #[serde(default)]
    pub data_directory: String,
    /// joining, training, settling, completed, leaving or left.
    pub phase: String,
    /// What is going on now, in a few words.
    #[serde(default)]
    pub doing: String,
    /// Whether the last checkpoint could not be written; its log says why.
    #[serde(default)]
    pub checkpoint_failed: bool,
    /// How far the run has come.
    #[serde(default)]
    pub outlook: OutlookReport,
    /// How far the copy of a member's model has come, while one is under way.
    pub copying: Option<CopyReport>,
    /// Own steps.
    pub steps: u64,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// Swarm progress at which the run is complete, in steps; none while no end is set.
    pub ends_at: Option<f64>,
    /// Whether the founder has ordered that end.
    #[serde(default)]
    pub is_finishing: bool,
    /// What the model predicts, and what its losses are means over: byte, token or image.
    #[serde(default)]
    pub prediction: String,
    /// Training loss, averaged over the last steps, in nats per prediction.
    pub loss: Option<f64>,
    /// Loss on the held-out slice at the last evaluation, in nats per prediction.
    pub validation_loss: Option<f64>,
    /// Share of held-out images or rows that were classified rightly at the last evaluation, 0 to 1; none for texts.
    pub accuracy: Option<f64>,
    /// How well held-out rows were predicted at the last evaluation; none where no table is read.
    pub scores: Option<murmur_training::Scores>,
    /// Tokens (bytes of text) or images a second, lately; 0 while it does not train, be it that it waits for others.
    pub tokens_per_second: f64,
    /// Tokens or images a second of this node and of all members that it has heard of in the last minutes, as they say
    /// themselves.
    #[serde(default)]
    pub swarm_tokens_per_second: f64,
    /// Members that it has heard of, connected or not, with what they say of themselves.
    #[serde(default)]
    pub members: Vec<MemberReport>,
    /// Seconds of a step, lately, with the pause that `limits.training_percent` asks for.
    pub step_seconds: f64,
    /// Members connected.
    pub peers: usize,
    /// Whether others reach this node.
    #[serde(default)]
    pub reachability: ReachabilityReport,
    /// Exchanges that this node took part in, whoever started them.
    pub exchanges_completed: u64,
    /// Among those: with 16-bit codes, first ones and others between models far apart.
    pub exchanges_coarse: u64,
    /// Among those: started by others and merged here, of which they have never confirmed that they heard. They may have merged nothing.
    #[serde(default)]
    pub exchanges_unconfirmed: u64,
    /// Exchanges that broke off.
    pub exchanges_failed: u64,
    /// Estimate of the disagreement from the last exchange; none while it trains with nobody connected.
    pub disagreement: Option<f64>,
    /// Steps between own exchanges at present; 0 where all members average at once.
    pub interval_steps: f64,
    /// Disagreement over local progress, a running mean: 0.4 to 0.8 is best with pairs, up to 4 with links; above 1.5, or 8, the
    /// models drift apart. None while it trains with nobody connected.
    pub disagreement_ratio: Option<f64>,
    /// The uplink as the last transfers of 64 KiB and more have shown it, in bytes a second; none before one. Exchanges of small models are
    /// shorter and tell nothing: then it is as when a model was given last.
    pub uplink_bytes_per_second: Option<f64>,
    /// γ at present: the run's, or less where corrections come late.
    pub gamma: f64,
    /// Own rounds from a snapshot to its correction, a running mean.
    pub delay_rounds: f64,
    /// Peers banned at present.
    pub peers_banned: usize,
    /// Peers whose models are let in only a little, because they lie far off again and again.
    pub peers_distrusted: usize,
    /// Those that are banned, with the time that is left and the reason.
    pub banned: Vec<BannedPeer>,
    /// Those that are let in only a little.
    pub distrusted: Vec<DistrustedPeer>,
    /// Why and until when the node leaves the network alone, where it does.
    pub resting: Option<String>,
    /// Bytes of the day, sent and received together, over restarts.
    pub bytes_today: u64,
    /// Bytes sent, with encryption and framing; over QUIC those of its streams, without what QUIC adds.
    pub bytes_sent: u64,
    /// The same, received.
    pub bytes_received: u64,
    /// Where the time in training went.
    #[serde(flatten)]
    pub times: StepTimes,
    /// Parameters of the model.
    pub parameters: usize,
    /// Misbehaviours seen, over all peers.
    pub misbehaviours: u64,
    /// Most memory held so far, in bytes; 0 where the system does not tell.
    pub peak_memory_bytes: u64,
    /// Seconds since the daemon started.
    pub seconds: f64,
    /// Where the run shares its data: how much of it is here.
    pub data: Option<DataReport>,
    /// Where the run is synchronous: who averages, and how long was waited.
    pub synchronous: Option<SynchronousReport>,
    /// What training has told of this node's records, where it is private.
    pub privacy: Option<PrivacyReport>,
    /// Where other machines hold a part of its model: who has what, and who was waited for.
    pub team: Option<TeamReport>,
}

/// A peer that is not dealt with for a while.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BannedPeer {
    /// Its peer id.
    pub peer: String,
    /// Seconds until it may come back.
    pub seconds_left: f64,
    /// Its last misbehaviour, with the peer as the subject.
    pub reason: String,
}

/// A peer that may change little.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DistrustedPeer {
    /// Its peer id.
    pub peer: String,
    /// How much of the usual it may change, 0 to 1.
    pub trust: f64,
}

/// What a member says of itself, as far as this node has heard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its peer id.
    pub peer: String,
    /// What its owner calls it; anybody may take any name.
    pub name: Option<String>,
    /// Tokens or images a second that it says to train on.
    pub tokens_per_second: f64,
    /// Share of the model that it holds, 0 to 1: below 1 where several machines hold one model together, and each says how fast they
    /// train all of it.
    #[serde(default = "whole")]
    pub share: f64,
    /// Seconds since anybody heard from it directly.
    pub age_seconds: u32,
    /// Whether it is connected to this node.
    pub is_connected: bool,
    /// Bytes of exchanges and models that it has taken from this node since the daemon started; none where it never was
    /// connected.
    pub bytes_sent: Option<u64>,
    /// The same, received from it.
    pub bytes_received: Option<u64>,
    /// Whether a connection without a relay leads to it; none while it is not connected.
    pub is_direct: Option<bool>,
    /// The round trip of the last ping, in seconds; none while it is not connected.
    pub round_trip_seconds: Option<f64>,
}

/// Values that a report takes from outside the core.
pub(crate) struct Outside<'a> {
    pub(crate) run: &'a str,
    pub(crate) run_name: &'a str,
    pub(crate) device: &'a str,
    pub(crate) data_directory: &'a str,
    pub(crate) prediction: &'a str,
    pub(crate) parameters: usize,
    pub(crate) name: &'a str,
    pub(crate) outlook: OutlookReport,
    pub(crate) state_bytes: u64,
    pub(crate) saving: Saving,
    pub(crate) training: &'a TrainingView,
    pub(crate) rest: &'a RestView,
    pub(crate) reachability: &'a Reachability,
    pub(crate) peers: &'a BTreeMap<PeerId, PeerTraffic>,
    pub(crate) round_trips: &'a BTreeMap<PeerId, Duration>,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) seconds: f64,
    pub(crate) data: Option<&'a DataReport>,
    pub(crate) team: Option<TeamReport>,
}

impl NodeReport {
    pub(crate) fn new(status: &Status, outside: &Outside<'_>) -> NodeReport {
        let training = outside.training;
        let members: Vec<MemberReport> =
            status.members.iter().map(|(peer, view)| member(peer, view, status, outside)).collect();
        let is_fresh = |member: &&MemberReport| member.age_seconds <= TOLD_SECONDS_MAX;
        // At the end of the run nobody trains any more, and members have told of how fast they were.
        let is_over = status.end.at().is_some_and(|end| training.progress >= end);
        let fresh = members.iter().filter(is_fresh).filter(|_| !is_over);
        let told = fresh.fold(0.0, |sum, member| sum + member.share * member.tokens_per_second);
        let team = outside.team.as_ref();
        let own = if is_stepping(status, team) { training.tokens_per_second } else { 0.0 };
        // While it trains alone nobody knows how far others are.
        let is_alone = status.connected.is_empty() && status.phase == Phase::Training;
        let of_others = |value: Option<f64>| value.filter(|_| !is_alone);
        NodeReport {
            name: (!outside.name.is_empty()).then(|| outside.name.to_owned()),
            doing: doing(status, (training, outside.saving, outside.data), team, outside.state_bytes),
            checkpoint_failed: outside.saving == Saving::Failed,
            outlook: outside.outlook.clone(),
            swarm_tokens_per_second: status.shares.0 * own + told,
            members,
            peer: status.me.to_string(),
            run: outside.run.to_owned(),
            run_name: outside.run_name.to_owned(),
            device: outside.device.to_owned(),
            data_directory: outside.data_directory.to_owned(),
            phase: phase_name(status.phase).to_owned(),
            copying: status.copying.as_ref().map(|copy| CopyReport {
                share: copy.chunks as f64 / copy.of.max(1) as f64,
                bytes: outside.state_bytes,
                donors: copy.donors.iter().map(ToString::to_string).collect(),
            }),
            steps: training.steps,
            progress: training.progress,
            ends_at: status.end.at(),
            is_finishing: status.end.order.is_some(),
            prediction: outside.prediction.to_owned(),
            loss: training.loss,
            validation_loss: training.validation_loss,
            accuracy: training.accuracy,
            scores: training.scores,
            tokens_per_second: own,
            step_seconds: training.step_seconds,
            peers: status.connected.len(),
            reachability: ReachabilityReport::new(outside.reachability),
            exchanges_completed: status.exchanges.completed(),
            exchanges_coarse: status.exchanges.coarse,
            exchanges_unconfirmed: status.exchanges.unconfirmed,
            exchanges_failed: status.exchanges.failed(),
            disagreement: of_others(status.disagreement),
            interval_steps: if status.synchronous.is_some() { 0.0 } else { status.interval_steps },
            disagreement_ratio: of_others(status.disagreement_ratio),
            uplink_bytes_per_second: status.uplink_bytes_per_second,
            gamma: status.gamma,
            delay_rounds: status.delay_rounds,
            peers_banned: status.banned.len(),
            peers_distrusted: status.distrusted.len(),
            banned: banned(status, outside.seconds),
            distrusted: status.distrusted.iter().map(distrusted).collect(),
            resting: outside.rest.reason.clone(),
            bytes_today: outside.rest.bytes_today,
            bytes_sent: outside.bytes_sent,
            bytes_received: outside.bytes_received,
            times: training.times,
            parameters: outside.parameters,
            misbehaviours: status.misbehaviours.values().sum(),
            peak_memory_bytes: peak_memory().unwrap_or(0),
            seconds: outside.seconds,
            data: outside.data.cloned(),
            synchronous: status
                .synchronous
                .as_ref()
                .map(|synchronous| SynchronousReport::new(synchronous, status.phase)),
            privacy: training.privacy,
            team: outside.team.clone(),
        }
    }

    /// Tokens, images or rows a second: lately while it trains, and of all the time in training once that is over. Not known before
    /// the first step.
    pub(crate) fn speed(&self) -> Option<f64> {
        if self.is_over() {
            return Some(self.times.mean_tokens_per_second());
        }
        (self.tokens_per_second > 0.0 || self.step_seconds > 0.0).then_some(self.tokens_per_second)
    }

    /// Whether it trains no more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "settling" | "completed" | "leaving" | "left")
    }

    /// Whether it is about to end, or ends.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase.as_str(), "leaving" | "left")
    }

    /// Share of the time in training that went by in gaps between two steps, 0 to 1; 0 before the first step.
    pub fn boundary_share(&self) -> f64 {
        share_of(self.times.seconds_at_boundaries, self.times.seconds_in_training)
    }
}

/// A part of a time, 0 to 1; 0 of no time.
pub(crate) fn share_of(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn whole() -> f64 {
    1.0
}

fn member(peer: &PeerId, view: &MemberView, status: &Status, outside: &Outside<'_>) -> MemberReport {
    let traffic = outside.peers.get(peer);
    let trip = outside.round_trips.get(peer).filter(|_| view.is_connected);
    MemberReport {
        peer: peer.to_string(),
        name: view.profile.name.as_ref().map(ToString::to_string),
        tokens_per_second: f64::from(view.profile.tokens_per_second),
        share: status.shares.1.get(peer).copied().unwrap_or(1.0),
        age_seconds: view.age_seconds,
        is_connected: view.is_connected,
        bytes_sent: traffic.map(|traffic| traffic.sent),
        bytes_received: traffic.map(|traffic| traffic.received),
        is_direct: traffic.filter(|_| view.is_connected).map(|traffic| traffic.is_direct),
        round_trip_seconds: trip.map(Duration::as_secs_f64),
    }
}

/// `seconds`: the core's time now.
fn banned(status: &Status, seconds: f64) -> Vec<BannedPeer> {
    let banned = |(peer, until): (&PeerId, &Time)| BannedPeer {
        peer: peer.to_string(),
        seconds_left: (until.since_start().as_secs_f64() - seconds).max(0.0),
        reason: status.offences.get(peer).map_or_else(String::new, ToString::to_string),
    };
    status.banned.iter().map(banned).collect()
}

fn distrusted((peer, trust): (&PeerId, &f64)) -> DistrustedPeer {
    DistrustedPeer { peer: peer.to_string(), trust: *trust }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Joining => "joining",
        Phase::Training => "training",
        Phase::Settling => "settling",
        Phase::Completed => "completed",
        Phase::Leaving => "leaving",
        Phase::Left => "left",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of `murmur status --format json`, in their order. Programs of others read them: some may come, and none may go.
    const KEYS: [&str; 58] = [
        "peer",
        "name",
        "run",
        "run_name",
        "device",
        "data_directory",
        "phase",
        "doing",
        "checkpoint_failed",
        "outlook",
        "copying",
        "steps",
        "progress",
        "ends_at",
        "is_finishing",
        "prediction",
        "loss",
        "validation_loss",
        "accuracy",
        "scores",
        "tokens_per_second",
        "swarm_tokens_per_second",
        "members",
        "step_seconds",
        "peers",
        "reachability",
        "exchanges_completed",
        "exchanges_coarse",
        "exchanges_unconfirmed",
        "exchanges_failed",
        "disagreement",
        "interval_steps",
        "disagreement_ratio",
        "uplink_bytes_per_second",
        "gamma",
        "delay_rounds",
        "peers_banned",
        "peers_distrusted",
        "banned",
        "distrusted",
        "resting",
        "bytes_today",
        "bytes_sent",
        "bytes_received",
        "seconds_in_training",
        "seconds_at_boundaries",
        "longest_gap_seconds",
        "median_step_seconds",
        "seconds_aside",
        "tokens_trained",
        "parameters",
        "misbehaviours",
        "peak_memory_bytes",
        "seconds",
        "data",
        "synchronous",
        "privacy",
        "team",
    ];

    #[test]
    fn a_report_has_the_keys_that_it_always_had_in_their_order_and_is_read_back() {
        let times = StepTimes { seconds_in_training: 7.5, median_step_seconds: 0.25, ..StepTimes::default() };
        let report = NodeReport { steps: u64::MAX, times, ..NodeReport::default() };
        let text = serde_json::to_string(&report).expect("JSON");
        let places = KEYS.map(|key| text.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key}: {text}")));
        assert!(places.is_sorted(), "{text}");
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("an object");
        assert_eq!(object.len(), KEYS.len(), "{text}");
        assert!(text.contains("\"seconds_in_training\":7.5,\"seconds_at_boundaries\":0.0,"), "{text}");
        assert_eq!(serde_json::from_str::<NodeReport>(&text).expect("a report"), report);
    }
}
