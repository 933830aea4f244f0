//! Figures of the node: its summary, its curves, and its traffic. Each answer is written while the picture is looked at, so
//! that nothing is copied for a view.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Dashboard;
use crate::drivers::refuse;
use crate::observe::picture::{Event, Exchange, NodePicture, PeerPicture};
use crate::observe::record::{EndFacts, RunFacts, Sample};
use crate::observe::rings::{self, Point};
use crate::observe::traffic::Window;
use crate::observe::{Metric, Picture};

/// Points of a curve: more than a screen has columns for are of no use.
const POINTS_MAX: usize = 1500;

/// Points where the request does not say.
const POINTS: usize = 600;

/// The node without its curves.
#[derive(Serialize)]
struct Summary<'a> {
    node: &'a str,
    seq: u64,
    time: f64,
    wall: i64,
    up: f64,
    run: &'a RunFacts,
    sample: Option<&'a Sample>,
    rates: Rates,
    peers: Vec<Member<'a>>,
    peers_more: u64,
    exchanges: &'a VecDeque<Exchange>,
    events: &'a VecDeque<Event>,
    missed: u64,
    end: Option<&'a EndFacts>,
}

/// What is known only from two samples.
#[derive(Serialize)]
struct Rates {
    sent_per_second: Option<f64>,
    received_per_second: Option<f64>,
    processors: Option<f64>,
}

/// A member without the values of its traffic over time.
#[derive(Serialize)]
struct Member<'a> {
    facts: &'a crate::observe::record::PeerFacts,
    last: Option<&'a Exchange>,
    exchanges: u64,
    failed: u64,
    lag: Option<f64>,
    rate: Option<f32>,
}

pub(super) async fn summary(State(dashboard): State<Dashboard>) -> Response {
    json(dashboard.hub.read(|id, picture| {
        let nothing = NodePicture::default();
        let node = picture.nodes.get(id).unwrap_or(&nothing);
        let summary = Summary {
            node: id,
            seq: node.seq,
            time: node.time,
            wall: node.wall,
            up: node.up,
            run: &node.run,
            sample: node.sample.as_ref(),
            rates: Rates {
                sent_per_second: node.now(Metric::SentPerSecond),
                received_per_second: node.now(Metric::ReceivedPerSecond),
                processors: node.now(Metric::Processors),
            },
            peers: node.peers.values().map(member).collect(),
            peers_more: node.peers_more,
            exchanges: &node.exchanges,
            events: &node.events,
            missed: node.missed,
            end: node.end.as_ref(),
        };
        serde_json::to_vec(&summary)
    }))
}

fn member(peer: &PeerPicture) -> Member<'_> {
    Member {
        facts: &peer.facts,
        last: peer.last.as_ref(),
        exchanges: peer.exchanges,
        failed: peer.failed,
        lag: peer.lag,
        rate: peer.rates.back().copied(),
    }
}

/// Curves over one window, all with buckets of the same length.
#[derive(Serialize)]
struct Curves {
    /// In seconds since 1970, as the records count them.
    from: f64,
    to: f64,
    /// The length of a bucket, in seconds.
    period: f64,
    /// For each bucket its middle, the least value, the mean and the greatest.
    series: BTreeMap<Metric, Vec<(f64, f64, f64, f64)>>,
}

/// `window` in seconds, 0 for all that is kept; `points` bounds each curve.
pub(super) async fn series(State(dashboard): State<Dashboard>, uri: Uri) -> Response {
    let metrics = words(&uri, "metrics").unwrap_or_default();
    // Each once, however often it is named.
    let metrics: Option<BTreeSet<Metric>> = metrics.split(',').map(metric).collect();
    let Some(metrics) = metrics else {
        return refuse(StatusCode::BAD_REQUEST, "metrics names no curve", "such as /api/v1/series?metrics=loss,ratio");
    };
    let number = |name: &str, usual: u64| words(&uri, name).map_or(Some(usual), |text| text.parse::<u64>().ok());
    let (Some(window), Some(points)) = (number("window", 300), number("points", POINTS as u64)) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "window and points are whole numbers",
            "such as window=3600&points=600",
        );
    };
    let points = usize::try_from(points).unwrap_or(POINTS_MAX).clamp(2, POINTS_MAX);
    json(dashboard.hub.read(|id, picture| serde_json::to_vec(&curves(id, picture, &metrics, window, points))))
}

fn curves(id: &str, picture: &Picture, metrics: &BTreeSet<Metric>, window: u64, points: usize) -> Curves {
    let nothing = NodePicture::default();
    let node = picture.nodes.get(id).unwrap_or(&nothing);
    let to = node.time;
    let first = node.series.values().filter_map(rings::Series::first_time).fold(to, f64::min);
    let from = if window == 0 { first } else { to - window as f64 };
    let told = |point: Point| (point.time, point.min, point.mean, point.max);
    let curve = |metric: &Metric| {
        let points = node.series.get(metric).map(|series| series.between(from, to, points));
        (*metric, points.unwrap_or_default().into_iter().map(told).collect())
    };
    Curves { from, to, period: rings::period(to - from, points), series: metrics.iter().map(curve).collect() }
}

/// A curve by the name that it has in JSON.
fn metric(name: &str) -> Option<Metric> {
    serde_json::from_value(serde_json::Value::String(name.to_owned())).ok()
}

/// Bytes with each member.
#[derive(Serialize)]
struct Traffic {
    /// Of the last record, in seconds since 1970.
    time: f64,
    /// Since when totals are counted, in milliseconds since 1970.
    since: i64,
    peers: Vec<WithMember>,
}

#[derive(Serialize)]
struct WithMember {
    peer: String,
    name: Option<String>,
    connected: bool,
    five_minutes: Window,
    /// Bytes a second of the five minutes, both ways; where the first bytes came later, since then.
    rate: f64,
    hour: Window,
    all: Window,
}

pub(super) async fn traffic(State(dashboard): State<Dashboard>) -> Response {
    json(dashboard.hub.read(|id, picture| {
        let nothing = NodePicture::default();
        let node = picture.nodes.get(id).unwrap_or(&nothing);
        let is_here = |peer: &String| node.peers.get(peer).is_some_and(|peer| peer.facts.connected);
        let with = |(peer, bytes): (&String, &crate::observe::traffic::PeerBytes)| WithMember {
            peer: peer.clone(),
            name: bytes.name.clone(),
            connected: is_here(peer),
            five_minutes: bytes.within(node.time, 300.0),
            rate: bytes.rate(node.time, 300.0),
            hour: bytes.within(node.time, 3600.0),
            all: bytes.total,
        };
        let peers = node.traffic.peers.iter().map(with).collect();
        serde_json::to_vec(&Traffic { time: node.time, since: node.traffic.since, peers })
    }))
}

/// A word of the query.
fn words<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

fn json(written: serde_json::Result<Vec<u8>>) -> Response {
    let text = written.expect("numbers and strings are serialisable");
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
