//! What a local swarm came to: per node, and how far apart the models are in the end.

use std::path::Path;
use std::time::Duration;

use murmur_protocol::manifest::GossipSpec;
use murmur_training::generate::Sampling;
use murmur_training::{DeviceChoice, LanguageModel};
use serde::Serialize;

use super::child::Child;
use crate::observe::report::NodeReport;
use crate::setup::base_model::whole_model;
use crate::store::{Checkpoint, load_latest};

/// Exchanges that each node must have had before its traffic counts as the steady state.
const SETTLED_EXCHANGES: u64 = 3;

/// Bytes of text shown at the end.
const SAMPLE_BYTES: usize = 600;

/// The end of a local run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) nodes: Vec<NodeSummary>,
    /// √(1/N · Σ ‖θᵢ − θ̄‖²) over the final checkpoints of the nodes that left in order.
    pub(crate) disagreement: Option<f64>,
    /// Bytes sent for each parameter that is exchanged, everything included, in the steady state: after the first exchanges, which
    /// take 16-bit codes. An exchange is of one fragment.
    pub(crate) bytes_per_parameter_per_exchange: Option<f64>,
    pub(crate) seconds: f64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct NodeSummary {
    /// As in the view, from 0.
    pub(crate) node: usize,
    pub(crate) peer: String,
    /// Whether it came to the run's end, or did all that it was to do of it; not where it was stopped before, or training failed.
    pub(crate) is_completed: bool,
    pub(crate) steps: u64,
    pub(crate) validation_loss: Option<f64>,
    /// Of images and rows.
    pub(crate) accuracy: Option<f64>,
    /// Of tables.
    pub(crate) scores: Option<murmur_training::Scores>,
    /// Over all its time in training: steps, what is between them, evaluations.
    pub(crate) tokens_per_second: f64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) exchanges_completed: u64,
    pub(crate) exchanges_failed: u64,
    pub(crate) seconds_in_training: f64,
    pub(crate) seconds_at_boundaries: f64,
    pub(crate) longest_gap_seconds: f64,
    pub(crate) median_step_seconds: f64,
    pub(crate) peak_memory_bytes: u64,
}

/// Bytes and exchanges of the whole swarm, from when every node had settled.
#[derive(Debug)]
pub(super) struct Traffic {
    gossip: GossipSpec,
    settled_at: Option<(u64, u64)>,
}

fn total(children: &[Child]) -> (u64, u64) {
    let reports = || children.iter().filter_map(|child| child.report.as_ref());
    let bytes = reports().map(|report| report.bytes_sent).sum();
    (bytes, reports().map(|report| report.exchanges_completed).sum())
}

impl Traffic {
    pub(super) fn new(gossip: &GossipSpec) -> Traffic {
        Traffic { gossip: gossip.clone(), settled_at: None }
    }

    pub(super) fn observe(&mut self, children: &[Child]) {
        let has_settled = |report: &NodeReport| report.exchanges_completed >= SETTLED_EXCHANGES;
        let all = children.iter().all(|child| child.report.as_ref().is_some_and(has_settled));
        if self.settled_at.is_none() && all {
            self.settled_at = Some(total(children));
        }
    }

    /// Bytes that a node sends for each parameter of an exchange: both partners of an exchange count it and send once.
    fn bytes_per_parameter_per_exchange(&self, children: &[Child]) -> Option<f64> {
        let (first_bytes, first_exchanges) = self.settled_at?;
        let (bytes, exchanges) = total(children);
        let parameters = children.iter().find_map(|child| child.report.as_ref())?.parameters;
        let exchanges = exchanges.checked_sub(first_exchanges).filter(|exchanges| *exchanges > 0)?;
        Some(bytes.saturating_sub(first_bytes) as f64 / self.exchanged(exchanges, parameters))
    }

    /// Parameters of so many exchanges: each is of one fragment of the model.
    fn exchanged(&self, exchanges: u64, parameters: usize) -> f64 {
        let fragments = self.gossip.clone().sized(parameters).fragments;
        exchanges as f64 * parameters as f64 / f64::from(fragments.max(1))
    }
}

impl Summary {
    pub(super) fn new(children: &[Child], traffic: &Traffic, elapsed: Duration) -> Summary {
        let node = |(child, report): (&Child, &NodeReport)| NodeSummary {
            node: child.number,
            is_completed: child.is_completed,
            peer: report.peer.clone(),
            steps: report.steps,
            validation_loss: report.validation_loss,
            accuracy: report.accuracy,
            scores: report.scores,
            tokens_per_second: report.times.mean_tokens_per_second(),
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            exchanges_completed: report.exchanges_completed,
            exchanges_failed: report.exchanges_failed,
            seconds_in_training: report.times.seconds_in_training,
            seconds_at_boundaries: report.times.seconds_at_boundaries,
            longest_gap_seconds: report.times.longest_gap_seconds,
            median_step_seconds: report.times.median_step_seconds,
            peak_memory_bytes: report.peak_memory_bytes,
        };
        let models: Vec<Vec<f32>> = children
            .iter()
            .filter(|child| child.last.is_some())
            .filter_map(|child| latest(child).map(|checkpoint| checkpoint.state.parameters))
            .collect();
        Summary {
            nodes: children.iter().filter_map(|child| Some((child, child.last.as_ref()?))).map(node).collect(),
            disagreement: disagreement(&models),
            bytes_per_parameter_per_exchange: traffic.bytes_per_parameter_per_exchange(children),
            seconds: elapsed.as_secs_f64(),
        }
    }

    /// Mean validation loss over the nodes.
    pub(super) fn mean_validation_loss(&self) -> Option<f64> {
        mean(self.nodes.iter().filter_map(|node| node.validation_loss))
    }

    /// Where training stood still for longest.
    pub(super) fn node_with_longest_gap(&self) -> Option<&NodeSummary> {
        self.nodes.iter().max_by(|left, right| left.longest_gap_seconds.total_cmp(&right.longest_gap_seconds))
    }

    /// (mean, lowest) accuracy over the nodes; none for texts.
    pub(super) fn accuracy(&self) -> Option<(f64, f64)> {
        let accuracies = || self.nodes.iter().filter_map(|node| node.accuracy);
        Some((mean(accuracies())?, accuracies().fold(1.0, f64::min)))
    }
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn latest(child: &Child) -> Option<Checkpoint> {
    load_latest(&child.directory.join("checkpoints")).0
}

fn disagreement(models: &[Vec<f32>]) -> Option<f64> {
    let first = models.first()?;
    let count = models.len() as f64;
    let mut sum = 0.0;
    for index in 0..first.len() {
        let mean = models.iter().map(|model| f64::from(model[index])).sum::<f64>() / count;
        sum += models.iter().map(|model| (f64::from(model[index]) - mean).powi(2)).sum::<f64>();
    }
    Some((sum / count).sqrt())
}

/// Text from the first model that there is, with the number of its node.
pub(super) fn sample(children: &[Child], base: Option<&Path>) -> Option<(usize, Vec<u8>)> {
    let (number, checkpoint) = children.iter().find_map(|child| Some((child.number, latest(child)?)))?;
    let spec = checkpoint.manifest.model.transformer()?;
    let (device, _) = DeviceChoice::Cpu.open().ok()?;
    let parameters = whole_model(&checkpoint, base).ok()?;
    let model = LanguageModel::from_parameters(spec, &parameters, &device).ok()?;
    let sampling = Sampling { temperature: 0.7, top_p: 1.0, seed: checkpoint.manifest.run.seed };
    let tokens = model.generate(&[], &sampling).ok()?.take(SAMPLE_BYTES).map_while(Result::ok);
    // `None` for a model whose tokens are not bytes.
    let bytes = tokens.map(|token| u8::try_from(token).ok()).collect::<Option<Vec<u8>>>()?;
    Some((number, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_of_one_fragment() {
        let exchanged = |fragments, parameters| {
            Traffic::new(&GossipSpec { fragments, ..GossipSpec::default() }).exchanged(20, parameters)
        };
        assert_eq!((exchanged(1, 1000), exchanged(8, 1000)), (20_000.0, 2500.0));
        assert_eq!(exchanged(0, 1000), 20_000.0, "by size: a small model is one fragment");
    }

    #[test]
    fn disagreement_is_the_root_mean_square_distance_from_the_mean() {
        assert_eq!(disagreement(&[]), None);
        assert_eq!(disagreement(&[vec![1.0, 2.0], vec![1.0, 2.0]]), Some(0.0));
        assert_eq!(disagreement(&[vec![0.0, 0.0], vec![6.0, 8.0]]), Some(5.0));
    }
}
