//! Which checks a plan admits, and what they say.

use std::time::Duration;

use murmur_protocol::Time;

use crate::checks::{Violation, liveness, nothing_one_sided, safety};
use crate::file::Plan;
use crate::record::Record;
use crate::report::Verdict;

/// What [`safety`] asks, in the order of a reader's interest.
const SAFETY: [&str; 18] = [
    "training never waits",
    "exactly once",
    "answered once",
    "antisymmetric",
    "mean preserved",
    "crash shift",
    "pair distance",
    "toward the partner",
    "step bounded",
    "loop gain",
    "bounded",
    "bounded views",
    "forgotten",
    "links last",
    "only held",
    "one replica",
    "left alone",
    "nobody accused",
];

/// What [`liveness`] asks.
const LIVENESS: [&str; 6] =
    ["converged", "nobody isolated", "everybody exchanges", "clear of liars", "completed", "nothing one-sided"];

/// Models of a run that has ended are at most this share of what they were apart when that was ordered: members settle
/// again where they are further apart than a twentieth of the usual distance.
const SETTLED_SHARE_MAX: f64 = 0.05;

/// Share of the exchanges whose reply may come after its deadline, on lines that were drawn slow: three times the most
/// that 160 seeds show.
const ONE_SIDED_SHARE_MAX: f64 = 0.01;

/// So long after the faults, everything that they have broken off is over.
const AFTERMATH: Duration = Duration::from_secs(60);

/// Asks every check that holds for runs of this kind: a verdict for each.
pub(super) fn verdicts(plan: &Plan, record: &Record) -> Vec<Verdict> {
    let expectations = &plan.expectations;
    let asked: Vec<&str> = SAFETY.iter().chain(&LIVENESS).copied().collect();
    let mut found = safety(record, plan.scenario.layout().parameters());
    // Once a run is over, nothing brings models nearer that count as one.
    let settled = record.end.map_or(0.0, |end| SETTLED_SHARE_MAX * end.disagreement);
    let disagreement_max = expectations.disagreement_max.max(settled);
    found.extend(liveness(record, expectations.present.len(), disagreement_max));
    let (since, allowed) =
        if expectations.lossless { (Duration::ZERO, 0.0) } else { (plan.faults_end + AFTERMATH, ONE_SIDED_SHARE_MAX) };
    found.extend(nothing_one_sided(record, Time::from_start(since), allowed).err());
    verdicts_of(&asked, found)
}

/// A violation of a check that is not in the list must not be lost.
fn verdicts_of(asked: &[&str], found: Vec<Violation>) -> Vec<Verdict> {
    let of = |check: &str| found.iter().find(|violation| violation.check == check).cloned();
    let known = asked.iter().map(|check| Verdict::new(check, of(check)));
    let others = found.iter().filter(|violation| !asked.contains(&violation.check));
    known.chain(others.map(|violation| Verdict::new(violation.check, Some(violation.clone())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_becomes_a_verdict_even_of_an_unlisted_check() {
        let violation = |check| Violation { check, finding: "found".to_owned() };
        let verdicts = verdicts_of(&["exactly once", "bounded"], vec![violation("bounded"), violation("new")]);
        let names: Vec<(&str, bool)> =
            verdicts.iter().map(|verdict| (verdict.check.as_str(), verdict.finding.is_some())).collect();
        assert_eq!(names, [("exactly once", false), ("bounded", true), ("new", true)]);
    }
}
