//! Where records come from: the node's reports, what the core notices, and what the system says of the process.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use murmur_protocol::{Fragment, Notice, Part, PeerId, Vector};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};

use super::hub::Hub;
use super::record::{Body, EventFacts, ExchangeFacts, Level, Missed, PEERS_MAX, PeerFacts, Peers, Sample};
use crate::console::{Heard, Hearing, Words};
use crate::engine::{Noticed, PeerTraffic};
use crate::observe::failures::failure_word;
use crate::observe::report::{MemberReport, NodeReport};
use crate::process::stats;
use crate::store::free_bytes;
use crate::team::report::TeamReport;

/// How often it is told how the node does.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

/// Samples between two lists of members.
const SAMPLES_PER_LIST: u64 = 5;

/// Tells the hub until it is aborted, or the engine is gone.
pub(crate) async fn observe(
    hub: Hub,
    root: PathBuf,
    reports: watch::Receiver<NodeReport>,
    mut notices: broadcast::Receiver<Noticed>,
) {
    let mut ticks = tokio::time::interval(SAMPLE_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut hearing = Hearing::new();
    for turn in 0.. {
        loop {
            tokio::select! {
                _ = ticks.tick() => break,
                notice = notices.recv() => match notice {
                    Ok(notice) => {
                        hearing.names.learn(&reports.borrow());
                        tell(&hub, &mut hearing, &notice);
                    }
                    Err(RecvError::Lagged(count)) => {
                        hub.tell(Body::Missed(Missed { count, of: "notices".to_owned() }));
                    }
                    Err(RecvError::Closed) => return,
                },
            }
        }
        for words in hearing.quiet() {
            hub.tell(event(words));
        }
        let report = reports.borrow().clone();
        if report.peer.is_empty() {
            continue; // none has been made yet
        }
        hub.tell(Body::Sample(Box::new(sample(&report, &root))));
        if turn % SAMPLES_PER_LIST == 0 {
            hub.tell(Body::Peers(peers(&report)));
        }
    }
}

/// Records what happens beside the core, in words, until nobody tells any more.
pub(crate) async fn record_events(hub: Hub, mut events: mpsc::Receiver<String>) {
    while let Some(text) = events.recv().await {
        hub.tell(Body::Event(EventFacts { level: Level::Info, text, hint: None }));
    }
}

/// What a notice comes to. An exchange has a record of its own kind.
fn tell(hub: &Hub, hearing: &mut Hearing, noticed: &Noticed) {
    let Heard { ended, words, is_repeated } = hearing.hear(&noticed.notice);
    ended.into_iter().for_each(|words| hub.tell(event(words)));
    match exchange(noticed) {
        Some(facts) => hub.tell(Body::Exchange(facts)),
        None if is_repeated => {}
        None => hub.tell(event(words)),
    }
}

/// Records what is said beside the core.
pub(crate) fn record_words(hub: &Hub, words: Words) {
    hub.tell(event(words));
}

fn event(words: Words) -> Body {
    let level = if words.hint.is_some() { Level::Warning } else { Level::Info };
    Body::Event(EventFacts { level, text: words.text, hint: words.hint.map(str::to_owned) })
}

/// What is told of an exchange that has ended.
fn exchange(noticed: &Noticed) -> Option<ExchangeFacts> {
    let taken = noticed.taken.as_ref();
    let facts = ExchangeFacts {
        seconds: taken.map(|taken| taken.time.as_secs_f64()),
        sent: taken.map(|taken| taken.sent),
        received: taken.map(|taken| taken.received),
        lag: taken.and_then(|taken| taken.lag).filter(|lag| lag.is_finite()),
        ..ExchangeFacts::default()
    };
    match &noticed.notice {
        Notice::ExchangeCompleted { partner, part, distance, clip_scale, masked_blocks, coarse } => {
            Some(ExchangeFacts {
                partner: partner.to_string(),
                result: "done".to_owned(),
                part: Some(part_name(*part)),
                distance: Some(*distance).filter(|distance| distance.is_finite()),
                clip: Some(*clip_scale).filter(|scale| scale.is_finite()),
                masked: u64::from(*masked_blocks),
                coarse: *coarse,
                ..facts
            })
        }
        Notice::ExchangeFailed { partner, failure } => {
            Some(ExchangeFacts { partner: partner.to_string(), result: failure_word(*failure).to_owned(), ..facts })
        }
        _ => None,
    }
}

/// Such as `model`, or `momentum 2/4` where one of four fragments was averaged.
fn part_name(part: Part) -> String {
    let vector = match part.vector {
        Vector::Model => "model",
        Vector::Momentum => "momentum",
    };
    match part.fragment {
        Fragment { count: 0 | 1, .. } => vector.to_owned(),
        Fragment { index, count } => format!("{vector} {}/{count}", index + 1),
    }
}

/// A report with what the system says, as it is recorded.
pub(crate) fn sample(report: &NodeReport, root: &Path) -> Sample {
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    let known = |value: Option<f64>| value.filter(|value| value.is_finite());
    let scores = report.scores.unwrap_or_default();
    let end = report.outlook.nearer(report.steps, finite(report.progress));
    Sample {
        phase: report.phase.clone(),
        doing: report.doing.clone(),
        steps: report.steps,
        progress: finite(report.progress),
        share: known(report.outlook.share),
        steps_max: end.own.or(end.swarm),
        progress_max: end.swarm,
        seconds_left: known(report.outlook.seconds_left),
        copied: report.copying.as_ref().map(|copy| copy.share),
        loss: known(report.loss),
        validation_loss: known(report.validation_loss),
        accuracy: known(report.accuracy),
        roc_auc: known(scores.roc_auc),
        rmse: known(scores.rmse),
        r_squared: known(scores.r_squared),
        epsilon: known(report.privacy.map(|privacy| privacy.epsilon)),
        tokens_per_second: finite(report.tokens_per_second),
        tokens_trained: Some(report.times.tokens_trained),
        swarm_tokens_per_second: finite(report.swarm_tokens_per_second),
        step_seconds: finite(report.step_seconds),
        peers: report.peers as u64,
        exchanges: report.exchanges_completed,
        exchanges_failed: report.exchanges_failed,
        disagreement: known(report.disagreement),
        ratio: known(report.disagreement_ratio),
        interval_steps: finite(report.interval_steps),
        sent: report.bytes_sent,
        received: report.bytes_received,
        today: report.bytes_today,
        resting: report.resting.clone(),
        reachable: report.reachability.text.clone(),
        boundary_share: finite(report.boundary_share()),
        waited_seconds: report.synchronous.as_ref().map(|synchronous| finite(synchronous.seconds_waited)),
        members: report.synchronous.as_ref().map(|synchronous| synchronous.members as u64),
        team: report.team.as_ref().map(TeamReport::facts),
        cpu_seconds: stats::processor_time().map(|time| time.as_secs_f64()),
        memory: stats::memory(),
        peak_memory: Some(report.peak_memory_bytes).filter(|bytes| *bytes > 0),
        disk_free: free_bytes(root),
    }
}

/// The members of a report, those that are connected first and then those that were heard last.
fn peers(report: &NodeReport) -> Peers {
    let mut members: Vec<&MemberReport> = report.members.iter().collect();
    members.sort_by_key(|member| (!member.is_connected, member.age_seconds));
    let more = members.len().saturating_sub(PEERS_MAX) as u64;
    let peers = members.into_iter().take(PEERS_MAX).map(|member| peer(report, member)).collect();
    Peers { peers, more }
}

/// All with whom bytes were exchanged, as they stand at the end: of those that have left before, what the hub last told. Those
/// that are connected come first, then those with most bytes.
pub(crate) fn last_peers(hub: &Hub, report: &NodeReport, traffic: &BTreeMap<PeerId, PeerTraffic>) -> Peers {
    let listed = |id: &str| report.members.iter().any(|member| member.peer == id);
    let mut all: Vec<PeerFacts> = report.members.iter().map(|member| peer(report, member)).collect();
    all.extend(traffic.iter().map(|(id, traffic)| (id.to_string(), traffic)).filter(|(id, _)| !listed(id)).map(
        |(id, traffic)| {
            let told = hub.read(|me, picture| Some(picture.nodes.get(me)?.peers.get(&id)?.facts.clone()));
            let (sent, received) = (Some(traffic.sent), Some(traffic.received));
            let facts = told.unwrap_or_else(|| PeerFacts { peer: id, trust: 1.0, ..PeerFacts::default() });
            PeerFacts { connected: traffic.is_connected, sent, received, ..facts }
        },
    ));
    let bytes = |facts: &PeerFacts| facts.sent.unwrap_or(0) + facts.received.unwrap_or(0);
    all.sort_by_key(|facts| (!facts.connected, Reverse(bytes(facts))));
    let more = all.len().saturating_sub(PEERS_MAX) as u64;
    all.truncate(PEERS_MAX);
    Peers { peers: all, more }
}

fn peer(report: &NodeReport, member: &MemberReport) -> PeerFacts {
    let distrusted = report.distrusted.iter().find(|distrusted| distrusted.peer == member.peer);
    PeerFacts {
        peer: member.peer.clone(),
        name: member.name.clone(),
        says_tokens_per_second: member.tokens_per_second,
        age: member.age_seconds,
        connected: member.is_connected,
        trust: distrusted.map_or(1.0, |distrusted| distrusted.trust),
        banned: report.banned.iter().any(|banned| banned.peer == member.peer),
        rtt: member.round_trip_seconds,
        path: member.is_direct.map(|is_direct| if is_direct { "direct" } else { "relay" }.to_owned()),
        sent: member.bytes_sent,
        received: member.bytes_received,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::engine::Taken;

    fn peer_id(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    #[test]
    fn connected_members_come_first_and_the_rest_is_counted() {
        let member = |number: u32| MemberReport {
            peer: number.to_string(),
            age_seconds: number,
            is_connected: number == 90,
            ..MemberReport::default()
        };
        let report = NodeReport { members: (0..100).map(member).collect(), ..NodeReport::default() };
        let list = peers(&report);
        assert_eq!((list.peers.len(), list.more), (PEERS_MAX, 36));
        assert_eq!((list.peers[0].peer.as_str(), list.peers[1].peer.as_str()), ("90", "0"));
        assert_eq!(list.peers[0].trust, 1.0);
    }

    #[test]
    fn the_last_list_has_the_bytes_of_those_that_have_left() {
        let hub = Hub::new("a", 0, Instant::now());
        let named = |number: u8| MemberReport {
            peer: peer_id(number).to_string(),
            name: Some(format!("node {number}")),
            bytes_sent: Some(10),
            ..MemberReport::default()
        };
        let before = NodeReport { members: vec![named(1), named(2)], ..NodeReport::default() };
        hub.tell(Body::Peers(peers(&before)));
        let last = NodeReport { members: vec![named(2)], ..NodeReport::default() };
        let traffic = |sent| PeerTraffic { sent, received: 5, ..PeerTraffic::default() };
        let ledger = BTreeMap::from([(peer_id(1), traffic(500)), (peer_id(2), traffic(10)), (peer_id(3), traffic(7))]);
        let list = last_peers(&hub, &last, &ledger).peers;
        let told: Vec<_> = list.iter().map(|facts| (facts.name.as_deref(), facts.sent, facts.received)).collect();
        let expected =
            [(Some("node 1"), Some(500), Some(5)), (None, Some(7), Some(5)), (Some("node 2"), Some(10), None)];
        assert_eq!(told, expected);
    }

    #[test]
    fn exchanges_are_records_and_what_lasts_is_said_once() {
        let hub = Hub::new("a", 0, Instant::now());
        let mut hearing = Hearing::new();
        let done = Notice::ExchangeCompleted {
            partner: peer_id(1),
            part: Part::MODEL,
            distance: f64::NAN,
            clip_scale: 1.0,
            masked_blocks: 2,
            coarse: false,
        };
        let failed =
            Notice::ExchangeFailed { partner: peer_id(1), failure: murmur_protocol::ExchangeFailure::PartnerLost };
        let taken = Taken { time: Duration::from_millis(250), sent: 10, received: 20, lag: Some(-7.0) };
        for notice in [done, failed, Notice::WaitingForState, Notice::WaitingForState] {
            let taken = matches!(notice, Notice::ExchangeCompleted { .. }).then_some(taken);
            tell(&hub, &mut hearing, &Noticed { notice, taken });
        }
        let told = hub.after(0, 10).records;
        assert_eq!(told.len(), 3, "waiting lasts");
        let Body::Exchange(facts) = &told[0].record.body else { panic!("{told:?}") };
        assert_eq!((facts.result.as_str(), facts.distance, facts.masked), ("done", None, 2));
        assert_eq!((facts.seconds, facts.sent, facts.received), (Some(0.25), Some(10), Some(20)));
        assert_eq!((facts.part.as_deref(), facts.lag), (Some("model"), Some(-7.0)));
        let Body::Exchange(facts) = &told[1].record.body else { panic!("{told:?}") };
        assert_eq!(facts.result, "partner_lost");
        assert!(matches!(&told[2].record.body, Body::Event(event) if event.level == Level::Warning));
    }

    #[test]
    fn a_sample_holds_no_number_that_json_does_not_know() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let report = NodeReport {
            loss: Some(f64::NAN),
            progress: f64::INFINITY,
            disagreement_ratio: Some(f64::NEG_INFINITY),
            ..NodeReport::default()
        };
        let sample = sample(&report, folder.path());
        assert!(!serde_json::to_string(&sample).expect("JSON").contains("null"));
        assert!(sample.disk_free.is_some_and(|bytes| bytes > 0));
    }
}
