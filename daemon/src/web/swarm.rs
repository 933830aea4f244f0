//! The graph of the swarm: members, and exchanges between them as edges with an age.
//!
//! A node knows only the exchanges that it took part in. Where it is one of `murmur local`, the other daemons of that swarm
//! are processes of the same user on this machine, and are asked as well, when somebody looks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::Dashboard;
use crate::observe::picture::NodePicture;
use crate::store::{Run, RunningDaemon};

/// A daemon of this machine answers at once, or, where processors are busy, a little later; else it is left out.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The answers of other daemons are asked for this often at most, however many pages look.
const PERIOD: Duration = Duration::from_secs(2);

/// Daemons asked at most.
const SIBLINGS_MAX: usize = 64;

/// The graph as one or several nodes tell it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Graph {
    /// Whether all daemons of a swarm of `murmur local` were asked.
    whole: bool,
    nodes: Vec<GraphNode>,
}

/// A node that tells of its own exchanges.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct GraphNode {
    peer: String,
    name: Option<String>,
    phase: String,
    /// Disagreement over local progress.
    ratio: Option<f64>,
    loss: Option<f64>,
    edges: Vec<Edge>,
}

/// The exchanges with one partner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Edge {
    partner: String,
    /// Seconds since the last one that was completed; none where none was.
    age: Option<f64>,
    /// How far apart the models were then.
    distance: Option<f64>,
    /// Completed ones so far.
    exchanges: u64,
    connected: bool,
}

/// What the other daemons last said.
#[derive(Clone, Default)]
pub(super) struct Siblings(Arc<Mutex<Option<(Instant, Graph)>>>);

/// `own=1` asks for this node alone.
pub(super) async fn graph(State(dashboard): State<Dashboard>, uri: Uri) -> Response {
    let own = dashboard.hub.read(|id, picture| picture.nodes.get(id).map(|node| told(id, node)));
    let own: Vec<GraphNode> = own.into_iter().collect();
    if uri.query() == Some("own=1") {
        return Json(Graph { whole: false, nodes: own }).into_response();
    }
    let mut graph = dashboard.siblings.ask(&dashboard.about.root).await;
    let is_other = |node: &GraphNode| own.iter().all(|own| own.peer != node.peer);
    graph.nodes.retain(is_other);
    graph.nodes.extend(own);
    graph.nodes.sort_by(|one, other| one.peer.cmp(&other.peer));
    Json(graph).into_response()
}

fn told(id: &str, node: &NodePicture) -> GraphNode {
    let edge = |(partner, peer): (&String, &crate::observe::PeerPicture)| {
        let done = node.exchanges.iter().rev().find(|it| it.facts.partner == *partner && it.facts.result == "done");
        let last = done.or(peer.last.as_ref().filter(|last| last.facts.result == "done"));
        Edge {
            partner: partner.clone(),
            age: last.map(|last| (node.time - last.time).max(0.0)),
            distance: last.and_then(|last| last.facts.distance),
            exchanges: peer.exchanges,
            connected: peer.facts.connected,
        }
    };
    let sample = node.sample.as_ref();
    GraphNode {
        peer: id.to_owned(),
        name: node.run.name.clone(),
        phase: sample.map_or_else(String::new, |sample| sample.phase.clone()),
        ratio: sample.and_then(|sample| sample.ratio),
        loss: sample.and_then(|sample| sample.loss),
        edges: node.peers.iter().map(edge).collect(),
    }
}

impl Siblings {
    /// The graph of the other daemons; an empty one where there are none.
    async fn ask(&self, root: &Path) -> Graph {
        // Held while they are asked, so that pages that look at once ask them once.
        let mut known = self.0.lock().await;
        if let Some((_, graph)) = known.as_ref().filter(|(when, _)| when.elapsed() < PERIOD) {
            return graph.clone();
        }
        let root = root.to_owned();
        let graph = tokio::task::spawn_blocking(move || asked(&root)).await.unwrap_or_default();
        *known = Some((Instant::now(), graph.clone()));
        graph
    }
}

/// Asks the daemons beside a data directory, where its folder is that of a swarm of `murmur local`.
fn asked(root: &Path) -> Graph {
    let others = addresses(root);
    let answers: Vec<Graph> = std::thread::scope(|scope| {
        let asking: Vec<_> = others.iter().map(|address| scope.spawn(move || answer(address))).collect();
        asking.into_iter().filter_map(|answer| answer.join().ok().flatten()).collect()
    });
    let whole = !others.is_empty() && answers.len() == others.len();
    Graph { whole, nodes: answers.into_iter().flat_map(|graph| graph.nodes).collect() }
}

/// Where the other daemons answer. Theirs is a file of the same user; all the same nothing but this machine is asked.
fn addresses(root: &Path) -> Vec<String> {
    let is_numbered = |folder: &Path| {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("node-").is_some_and(|number| number.parse::<u16>().is_ok())
    };
    let Some(swarm) = root.parent().filter(|_| is_numbered(root)).and_then(Run::open) else { return Vec::new() };
    let others = swarm.nodes.iter().filter(|node: &&PathBuf| node.as_path() != root);
    let found = others.filter_map(|node| Some(RunningDaemon::of(node)?.address_here()?.to_owned()));
    let is_here = |address: &String| address.parse().is_ok_and(|at: std::net::SocketAddr| at.ip().is_loopback());
    found.filter(is_here).take(SIBLINGS_MAX).collect()
}

fn answer(address: &str) -> Option<Graph> {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).proxy(None).build().into();
    agent.get(format!("http://{address}/api/v1/swarm?own=1")).call().ok()?.body_mut().read_json().ok()
}
