//! What a run came to: its curve, what every node did, what was counted.

use super::{Fault, Method};

/// One moment of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Simulated seconds since the beginning.
    pub seconds: f64,
    /// Bytes of text that all nodes together have trained on.
    pub tokens: u64,
    /// Bytes that the busiest node has sent.
    pub busiest_bytes: u64,
    /// Bytes that all nodes have sent.
    pub all_bytes: u64,
    /// Mean over the living nodes of the loss on held-out text, nats per byte.
    pub loss: f64,
}

/// What a node does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It computes a step.
    Computing,
    /// Its uplink carries something; at the same time it may compute.
    Sending,
}

/// A piece of a node's timeline. Where it lives and does not compute, it waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Seconds.
    pub from: f64,
    /// Seconds.
    pub to: f64,
    /// What it did.
    pub activity: Activity,
}

/// What one node did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAccount {
    /// Seconds until the end of the run or its death.
    pub lived: f64,
    /// Those of them from its first step to the end of its training: in these it computes or waits.
    pub training: f64,
    /// Seconds of computing.
    pub computing: f64,
    /// Seconds in which its uplink carried something.
    pub sending: f64,
    /// Bytes sent, also those that were lost.
    pub sent_bytes: u64,
    /// Steps computed.
    pub steps: u64,
    /// The first part of the run, and what follows the fault.
    pub spans: Vec<Span>,
}

impl NodeAccount {
    /// It lives until so many seconds, and has trained as long, unless its training is over.
    pub(super) fn live_until(&mut self, at: f64) {
        self.lived = at;
        if self.training == 0.0 {
            self.training = at;
        }
    }

    /// It dies at so many seconds: what it would have done later is not drawn.
    pub(super) fn end(&mut self, at: f64) {
        self.live_until(at);
        self.spans.retain(|span| span.from < at);
        self.spans.iter_mut().for_each(|span| span.to = span.to.min(at));
    }
}

/// What the method's machines counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Reductions, outer rounds or exchanges that a node finished, on average.
    pub rounds: f64,
    /// Operations that were dropped and begun anew, at most on one node.
    pub dropped: u64,
    /// Seconds that operations which were dropped had taken, at most on one node.
    pub stood_still: f64,
    /// States copied, by all nodes.
    pub copied: u64,
    /// Mean staleness of a server's steps.
    pub staleness_mean: f64,
    /// The largest.
    pub staleness_max: u64,
    /// Rounds that ended without the partner, over all nodes.
    pub missed: u64,
    /// Where nodes choose: seconds in which they averaged all at once, on average.
    pub together: f64,
    /// Where nodes choose: times that a node went over to the other scheme, on average.
    pub changes: f64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How nodes learned from each other.
    pub method: Method,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Seed of model, data and network.
    pub seed: u64,
    /// What went wrong.
    pub fault: Fault,
    /// The curve, the first point at the beginning.
    pub points: Vec<Point>,
    /// What each node did, in the order of the nodes.
    pub nodes: Vec<NodeAccount>,
    /// Counts of the machines.
    pub counted: Counted,
    /// Whether the nodes did all their steps.
    pub is_complete: bool,
    /// Where they did not: nobody went on. Else time was over.
    pub stands_still: bool,
    /// Laws that did not hold.
    pub violations: Vec<String>,
}

impl Outcome {
    /// The last point.
    ///
    /// # Panics
    /// Never: a run has one.
    pub fn end(&self) -> &Point {
        self.points.last().expect("a run has a first point")
    }

    /// The first time, tokens and bytes at which the loss is at most `target`, between two points on a straight line. At the second
    /// one where the loss before was not finite.
    pub fn reaches(&self, target: f64) -> Option<Point> {
        let after = self.points.iter().position(|point| point.loss <= target)?;
        let Some(before) = after.checked_sub(1) else { return Some(self.points[0]) };
        let (one, other) = (&self.points[before], &self.points[after]);
        if !one.loss.is_finite() {
            return Some(Point { loss: target, ..*other });
        }
        let share = (one.loss - target) / (one.loss - other.loss);
        let between = |from: f64, to: f64| from + share * (to - from);
        let count = |from: u64, to: u64| between(from as f64, to as f64) as u64;
        Some(Point {
            seconds: between(one.seconds, other.seconds),
            tokens: count(one.tokens, other.tokens),
            busiest_bytes: count(one.busiest_bytes, other.busiest_bytes),
            all_bytes: count(one.all_bytes, other.all_bytes),
            loss: target,
        })
    }

    /// The loss after so many tokens, between two points on a straight line; `None` where it took fewer.
    pub fn loss_after(&self, tokens: u64) -> Option<f64> {
        let Some(after) = self.points.iter().position(|point| point.tokens > tokens) else {
            return (self.end().tokens == tokens).then_some(self.end().loss);
        };
        let Some(before) = after.checked_sub(1) else { return Some(self.points[0].loss) };
        let (one, other) = (&self.points[before], &self.points[after]);
        let share = (tokens - one.tokens) as f64 / (other.tokens - one.tokens) as f64;
        Some(one.loss + share * (other.loss - one.loss))
    }

    /// Shares of the time in which the nodes trained, computing and waiting, and of their lives with their uplinks sending.
    pub fn shares(&self) -> (f64, f64, f64) {
        let sum = |of: fn(&NodeAccount) -> f64| self.nodes.iter().map(of).sum::<f64>();
        // Time in training is told to a fraction of a step.
        let computing = (sum(|node| node.computing) / sum(|node| node.training).max(f64::MIN_POSITIVE)).min(1.0);
        let sending = sum(|node| node.sending) / sum(|node| node.lived).max(f64::MIN_POSITIVE);
        (computing, 1.0 - computing, sending)
    }
}
