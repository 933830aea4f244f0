//! What `GET /metrics` answers: a node's report for Prometheus, in the OpenMetrics text format.
//!
//! Names begin with `murmur_` and end in their unit, counters in `_total`. No label names a peer: in a large swarm each
//! would be a time series of its own.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::observe::report::NodeReport;

/// The type of the answer (OpenMetrics 1.0).
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything of a report that is a number over time.
pub(crate) fn rendered(report: &NodeReport) -> String {
    let mut page = Page(Registry::with_prefix("murmur"));
    let name = report.name.clone().unwrap_or_default();
    let labels = [("run", &report.run), ("peer", &report.peer), ("name", &name)];
    let version = [("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    let labels = labels.map(|(label, value)| (label.to_owned(), value.clone()));
    page.0.register("node", "This node", Info::new(labels.into_iter().chain(version).collect::<Vec<_>>()));
    page.training(report);
    page.swarm(report);
    page.traffic(report);
    let mut text = String::new();
    encode(&mut text, &page.0).expect("a string takes everything");
    text
}

struct Page(Registry);

impl Page {
    fn training(&mut self, report: &NodeReport) {
        let phase = Family::<[(&str, String); 1], Gauge>::default();
        phase.get_or_create(&[("phase", report.phase.clone())]).set(1);
        self.0.register("phase", "joining, training, settling, completed, leaving or left", phase);
        // No counter: a node that was killed goes on from its last checkpoint.
        self.gauge("own_steps", "Own steps, of all starts", None, report.steps as f64);
        self.gauge("progress_steps", "Progress of the swarm, in steps", None, report.progress);
        self.measured("loss_nats", "Training loss, averaged over the last steps", report.loss);
        self.measured("validation_loss_nats", "Loss on the held-out slice", report.validation_loss);
        self.measured("accuracy_ratio", "Share of held-out images or rows classified rightly", report.accuracy);
        let scores = report.scores.unwrap_or_default();
        self.measured("roc_auc_ratio", "Area under the ROC curve of held-out rows", scores.roc_auc);
        self.measured("root_mean_squared_error", "Of held-out rows, in the target's unit", scores.rmse);
        self.measured(
            "r_squared",
            "Share of the target's variance that is predicted, of held-out rows",
            scores.r_squared,
        );
        self.gauge("tokens_per_second", "Tokens or images a second, lately", None, report.tokens_per_second);
        self.gauge("step", "Time of a step, lately", Some(Unit::Seconds), report.step_seconds);
        let gap = report.times.longest_gap_seconds;
        self.gauge("longest_gap", "Longest gap between two steps", Some(Unit::Seconds), gap);
        let times = [
            ("training", "Time since the first step", report.times.seconds_in_training),
            ("boundaries", "Time between two steps, where models are averaged", report.times.seconds_at_boundaries),
            (
                "aside",
                "Time in evaluations, copies for checkpoints, and pauses that limits ask for",
                report.times.seconds_aside,
            ),
        ];
        for (name, help, seconds) in times {
            self.counter(name, help, Some(Unit::Seconds), seconds);
        }
        let memory = report.peak_memory_bytes as f64;
        self.gauge("peak_memory", "The most memory that this process has held", Some(Unit::Bytes), memory);
        let failed = f64::from(u8::from(report.checkpoint_failed));
        self.gauge("checkpoint_failed", "1 where the last checkpoint could not be written, else 0", None, failed);
        self.gauge("uptime", "Time since the start", Some(Unit::Seconds), report.seconds);
    }

    fn swarm(&mut self, report: &NodeReport) {
        self.gauge("peers", "Members connected", None, report.peers as f64);
        self.gauge("members", "Members heard of, connected or not", None, report.members.len() as f64);
        let speed = report.swarm_tokens_per_second;
        self.gauge("swarm_tokens_per_second", "Tokens or images a second of all members heard of", None, speed);
        let distance = "Distance of this node's model from its last partner's, over the square root of two";
        self.measured("disagreement", distance, report.disagreement);
        let ratio = "Disagreement over what own training does between two exchanges";
        self.measured("disagreement_ratio", ratio, report.disagreement_ratio);
        self.gauge(
            "interval_steps",
            "Own steps between two exchanges, 0 where all average at once",
            None,
            report.interval_steps,
        );
        self.gauge("peers_banned", "Peers that misbehaved again and again", None, report.peers_banned as f64);
        self.gauge("peers_distrusted", "Peers whose models count for little", None, report.peers_distrusted as f64);
        let offences = "What peers did that no honest peer does";
        self.counter("misbehaviours", offences, None, report.misbehaviours as f64);
    }

    fn traffic(&mut self, report: &NodeReport) {
        let exchanges = Family::<[(&str, &str); 1], Counter<f64, AtomicU64>>::default();
        let results = [("completed", report.exchanges_completed), ("failed", report.exchanges_failed)];
        for (result, count) in results {
            exchanges.get_or_create(&[("result", result)]).inc_by(count as f64);
        }
        self.0.register("exchanges", "Exchanges with other members", exchanges);
        let sent = report.bytes_sent as f64;
        self.counter("sent", "Sent to all peers", Some(Unit::Bytes), sent);
        let received = report.bytes_received as f64;
        self.counter("received", "Received from all peers", Some(Unit::Bytes), received);
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, gauge),
            None => self.0.register(name, help, gauge),
        }
    }

    /// A gauge, where its value is known: an unknown one is left out, and never zero.
    fn measured(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.gauge(name, help, None, value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<Unit>, value: f64) {
        let counter = Counter::<f64, AtomicU64>::default();
        counter.inc_by(value);
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, counter),
            None => self.0.register(name, help, counter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_lines_with_units_and_what_is_unknown_is_left_out() {
        let report = NodeReport {
            run: "5a19".to_owned(),
            phase: "training".to_owned(),
            steps: 1288,
            loss: Some(0.75),
            bytes_sent: 3_000_000_000,
            exchanges_failed: 2,
            checkpoint_failed: true,
            ..NodeReport::default()
        };
        let text = rendered(&report);
        for line in [
            "murmur_own_steps 1288.0",
            "murmur_loss_nats 0.75",
            "murmur_checkpoint_failed 1.0",
            "murmur_sent_bytes_total 3000000000.0",
            "murmur_exchanges_total{result=\"failed\"} 2.0",
            "murmur_phase{phase=\"training\"} 1",
            "# TYPE murmur_step_seconds gauge",
            "# UNIT murmur_step_seconds seconds",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("validation_loss") && text.contains("run=\"5a19\""), "{text}");
    }

    #[test]
    fn the_dashboard_shows_metrics_that_there_are() {
        let known = NodeReport {
            loss: Some(1.0),
            validation_loss: Some(1.0),
            disagreement: Some(1.0),
            ..NodeReport::default()
        };
        let page = rendered(&known);
        let dashboard = include_str!("../../../configs/grafana/murmur.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("a list");
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let shown: Vec<&str> = targets.filter_map(|target| target["expr"].as_str()).collect();
        assert!(panels.len() > 5 && shown.len() >= panels.len(), "{shown:?}");
        for expression in shown {
            let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
            for name in expression.split(|character| !is_name(character)).filter(|word| word.starts_with("murmur_")) {
                let is_it = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
                assert!(page.lines().any(is_it), "{name} of {expression}");
            }
        }
    }

    #[test]
    fn what_comes_from_outside_stays_one_value() {
        let name = "a\"} 1\nevil_total 7\\".to_owned();
        let text = rendered(&NodeReport { name: Some(name), ..NodeReport::default() });
        assert!(!text.lines().any(|line| line.starts_with("evil")), "{text}");
    }
}
