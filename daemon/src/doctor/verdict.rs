//! The one line at the end: what the machine will contribute, and what it costs.

use murmur_protocol::RunManifest;
use serde::Serialize;

use super::{Finding, Found, Health, Measured};
use crate::console::human_bytes;
use crate::limits::daily_traffic::{Sent, sent};
use crate::settings::NodeSettings;

/// What to expect.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Whether nothing stands in the way.
    pub fit: bool,
    /// Share of the swarm's work that this machine would do, 0 to 1; `None` where the swarm was not asked or its speed
    /// is unknown.
    pub contribution: Option<f64>,
    /// Bytes sent and received at most in a day of training, or about in the whole run where that is less; `None` where the speed
    /// is unknown.
    pub bytes_per_day: Option<u64>,
    /// The same in words.
    pub text: String,
}

/// Sums up.
pub fn verdict(
    (manifest, settings): (&RunManifest, &NodeSettings),
    measured: Option<&Measured>,
    found: Option<&Found>,
    findings: &[Finding],
) -> Verdict {
    let problems = findings.iter().filter(|finding| finding.health == Health::Problem).count();
    let sent =
        measured.map(|Measured { parameters, step_seconds, .. }| sent(manifest, settings, *parameters, *step_seconds));
    // A node receives as much as it sends.
    let traffic = sent.map(|sent| match sent {
        Sent::InWholeRun(bytes) => ((2.0 * bytes) as u64, "about", "in the whole run"),
        Sent::InDay(bytes) => ((2.0 * bytes) as u64, "up to", "a day"),
    });
    let bytes_per_day = traffic.map(|(bytes, ..)| bytes);
    let contribution = measured.zip(found).and_then(|(measured, found)| {
        let others = found.mean_tokens_per_second()? * found.members as f64;
        Some(measured.tokens_per_second / (measured.tokens_per_second + others))
    });
    let cost = traffic.map(|(bytes, bound, when)| format!("uses {bound} {} {when}", human_bytes(bytes)));
    let text = match (problems, contribution, cost) {
        (0, Some(share), Some(cost)) => {
            format!("this machine will contribute about {:.0} % and {}", 100.0 * share, cost.replace("uses", "use"))
        }
        (0, None, Some(cost)) => format!("this machine can take part; it {cost}"),
        (0, _, None) => "this machine can take part".to_owned(),
        (1, ..) => "one problem stands in the way: see its fix".to_owned(),
        (count, ..) => format!("{count} problems stand in the way: see their fixes"),
    };
    Verdict { fit: problems == 0, contribution, bytes_per_day, text }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use murmur_protocol::manifest::GossipKind;

    use super::*;

    fn measured() -> Measured {
        Measured { parameters: 1_000_000, step_seconds: 0.4, tokens_per_second: 1000.0 }
    }

    fn usual(manifest: &RunManifest) -> (&RunManifest, &NodeSettings) {
        static USUAL: LazyLock<NodeSettings> = LazyLock::new(NodeSettings::default);
        (manifest, &USUAL)
    }

    #[test]
    fn a_short_run_costs_no_day() {
        let mut manifest = RunManifest::default();
        manifest.schedule.total_steps = 1200;
        let verdict = verdict(usual(&manifest), Some(&measured()), None, &[]);
        assert!(verdict.text.ends_with(" in the whole run"), "{}", verdict.text);
    }

    #[test]
    fn the_share_is_that_of_the_speeds() {
        let found = Found { members: 4, tokens_per_second: vec![500.0, 1500.0], megabits: None };
        let verdict = verdict(usual(&RunManifest::default()), Some(&measured()), Some(&found), &[]);
        assert_eq!(verdict.contribution, Some(0.2));
        assert!(verdict.text.starts_with("this machine will contribute about 20 % and use "), "{}", verdict.text);
    }

    #[test]
    fn a_day_of_exchanges_is_counted() {
        let mut manifest = RunManifest::default();
        let rounds = 86_400.0 / (0.4 * f64::from(manifest.gossip.interval_steps_min));
        // Two exchanges each way, of about one bit or one byte a parameter.
        for (kind, expected) in [(GossipKind::Links, 0.5e6 * rounds), (GossipKind::Pairs, 4e6 * rounds)] {
            manifest.gossip.kind = kind;
            let bytes =
                verdict(usual(&manifest), Some(&measured()), None, &[]).bytes_per_day.expect("the speed is known");
            assert!((bytes as f64) > expected && (bytes as f64) < 1.1 * expected, "{kind}: {bytes}");
        }
    }

    #[test]
    fn a_problem_is_the_verdict() {
        let problem = Finding::problem("disk", "full".to_owned(), "free some space");
        let verdict = verdict(usual(&RunManifest::default()), Some(&measured()), None, &[problem]);
        assert!(!verdict.fit && verdict.text.starts_with("one problem"));
    }
}
