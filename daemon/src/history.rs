//! What journals tell of a run from its beginning on: what `murmur report` draws.
//!
//! [`Picture`](crate::observe::Picture) shows how it goes now and forgets; a [`History`] keeps all of a run, in memory that does
//! not grow with it: of curves every second point goes where there are too many. Like the picture it knows neither a file nor
//! a clock: the same records give the same history.

pub(crate) mod comparison;
mod curve;
mod estimate;
mod names;
mod node;
mod page;
mod presence;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

use crate::observe::Record;
use crate::observe::picture::NODES_MAX;

pub(crate) use curve::Curve;
pub(crate) use names::Names;
pub(crate) use node::{Ended, Evaluation, NodeHistory, Place, Point, Process};
pub(crate) use page::{Measured, page};
pub(crate) use presence::Spans;

/// Clocks that differ by less are as usual: times are as exact as these.
const CLOCKS_APART_MIN: f64 = 3600.0;

/// All that the journals of a run tell.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Those whose journals were read, by peer id.
    pub(crate) nodes: BTreeMap<String, NodeHistory>,
    /// Records of nodes beyond [`NODES_MAX`].
    pub(crate) left_out: u64,
}

impl History {
    /// Takes in a record. Those of one node come in the order in which it wrote them.
    pub(crate) fn apply(&mut self, record: &Record) {
        if !self.nodes.contains_key(&record.node) && self.nodes.len() >= NODES_MAX {
            self.left_out += 1;
            return;
        }
        self.nodes.entry(record.node.clone()).or_default().apply(record);
    }

    /// Takes in what other journals tell. Returns a node of which both tell, where there is one; then nothing has changed.
    pub(crate) fn add(&mut self, other: History) -> Option<String> {
        let twice = other.nodes.keys().find(|id| self.nodes.contains_key(*id)).cloned();
        if twice.is_none() {
            self.left_out += other.left_out;
            self.nodes.extend(other.nodes);
        }
        twice
    }

    /// When the first and the last record was written, in seconds since 1970.
    pub(crate) fn times(&self) -> (f64, f64) {
        let begin = self.nodes.values().filter_map(NodeHistory::begin).fold(f64::INFINITY, f64::min);
        let end = self.nodes.values().map(|node| node.time).fold(f64::NEG_INFINITY, f64::max);
        if begin <= end { (begin, end) } else { (0.0, 0.0) }
    }

    /// By how many seconds the clocks of two machines differ at least, where that is more than [`CLOCKS_APART_MIN`]: each has seen the
    /// other only at times at which that one wrote nothing.
    pub(crate) fn clocks_apart(&self) -> Option<f64> {
        let seen_by = |node: &str, peer: &str| {
            let (node, peer) = (self.nodes.get(node)?.seen.get(peer)?, self.nodes.get(peer)?);
            let begin = peer.begin()?;
            let away = node.iter().map(|(from, to)| (begin - to).max(from - peer.time));
            away.reduce(f64::min).filter(|seconds| *seconds > CLOCKS_APART_MIN)
        };
        let pairs = self.nodes.iter().flat_map(|(id, node)| node.seen.keys().map(move |peer| (id, peer)));
        pairs.filter_map(|(one, other)| Some(seen_by(one, other)?.min(seen_by(other, one)?))).reduce(f64::max)
    }

    /// Seconds up to `end` in which at least one of these nodes ran, as their journals tell.
    pub(crate) fn ran(nodes: &[&NodeHistory], end: f64) -> f64 {
        let mut sessions: Vec<_> = nodes.iter().flat_map(|node| &node.sessions).collect();
        sessions.sort_by(|one, other| one.begin.total_cmp(&other.begin));
        let (mut ran, mut until) = (0.0, f64::NEG_INFINITY);
        for session in sessions {
            ran += (session.end.min(end) - session.begin.max(until)).max(0.0);
            until = session.end.max(until);
        }
        ran
    }

    /// The runs that the journals are of: id and name.
    pub(crate) fn runs(&self) -> BTreeMap<&str, &str> {
        let runs = self.nodes.values().map(|node| (node.run.run.as_str(), node.run.run_name.as_str()));
        runs.filter(|(id, _)| !id.is_empty()).collect()
    }

    /// When members without a journal of their own were connected to one that has one, by peer id.
    pub(crate) fn seen(&self) -> BTreeMap<&str, Spans> {
        let mut seen: BTreeMap<&str, Spans> = BTreeMap::new();
        for node in self.nodes.values() {
            for (peer, spans) in node.seen.iter().filter(|(peer, _)| !self.nodes.contains_key(*peer)) {
                seen.entry(peer).or_default().join(spans);
            }
        }
        seen
    }
}
