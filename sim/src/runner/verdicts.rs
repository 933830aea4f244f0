//! Which checks a plan admits, and what they say.

use std::time::Duration;

use murmur_protocol::Time;

use crate::checks::{Violation, can_be_remembered_too_long, liveness, nothing_one_sided, safety};
use crate::file::Plan;
use crate::record::Record;
use crate::report::Verdict;
use crate::scenario::Incident;

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

/// So long after the faults, everything that they have broken off is over; half of a shorter calm must do.
const AFTERMATH: Duration = Duration::from_secs(60);

/// What the checks say.
pub(super) struct Verdicts {
    /// Of those that were asked.
    pub(super) verdicts: Vec<Verdict>,
    /// Names of those that could not fail in this run.
    pub(super) not_asked: Vec<String>,
}

/// Asks every check that holds for runs of this kind: a verdict for each that can fail.
pub(super) fn verdicts(plan: &Plan, record: &Record) -> Verdicts {
    let expectations = &plan.expectations;
    let mut found = safety(record, plan.scenario.layout().parameters());
    // Once a run is over, nothing brings models nearer that count as one.
    let settled = record.end.map_or(0.0, |end| SETTLED_SHARE_MAX * end.disagreement);
    let disagreement_max = expectations.disagreement_max.max(settled);
    found.extend(liveness(record, expectations.present.len(), disagreement_max));
    let (since, allowed) = if expectations.lossless {
        (Duration::ZERO, 0.0)
    } else {
        (plan.faults_end + aftermath(plan), ONE_SIDED_SHARE_MAX)
    };
    let since = Time::from_start(since);
    found.extend(nothing_one_sided(record, since, allowed).err());
    let totals = &record.exchanges;
    let cannot_fail = [
        ("forgotten", !can_be_remembered_too_long(record)),
        ("pair distance", totals.on_links == totals.merges),
        ("toward the partner", totals.on_links == 0),
        ("links last", totals.on_links == 0),
        ("one replica", !plan.scenario.synchronous.is_on()),
        ("completed", record.end.is_none()),
        ("only held", all_hold_all(plan)),
        ("nothing one-sided", totals.pairs_since(since) == 0),
    ];
    let is_not_asked = |check: &str| {
        let cannot = cannot_fail.iter().any(|(name, cannot)| *name == check && *cannot);
        cannot && found.iter().all(|violation| violation.check != check)
    };
    let (not_asked, asked): (Vec<&str>, Vec<&str>) =
        SAFETY.iter().chain(&LIVENESS).copied().partition(|check| is_not_asked(check));
    Verdicts { not_asked: not_asked.into_iter().map(str::to_owned).collect(), verdicts: verdicts_of(&asked, found) }
}

/// Whether every host holds the whole model, from beginning to end.
fn all_hold_all(plan: &Plan) -> bool {
    let changes = |(_, incident): &(Duration, Incident)| matches!(incident, Incident::Holds(..));
    plan.scenario.nodes.iter().all(|node| node.holding.is_all()) && !plan.scenario.incidents.iter().any(changes)
}

fn aftermath(plan: &Plan) -> Duration {
    AFTERMATH.min(plan.averaging_ends.saturating_sub(plan.faults_end) / 2)
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
    use crate::file::{ScenarioFile, built_in};

    #[test]
    fn what_cannot_fail_is_not_asked() {
        let text = built_in("everything").expect("a built-in scenario").text;
        let plan = toml::from_str::<ScenarioFile>(text).expect("it parses").draw(0);
        let mut record = Record::default();
        let expected = [
            "pair distance",
            "toward the partner",
            "links last",
            "one replica",
            "forgotten",
            "nothing one-sided",
            "completed",
        ];
        assert_eq!(sorted(verdicts(&plan, &record).not_asked), sorted(expected.map(str::to_owned).into()));
        record.longest_dead = plan.end * 10;
        (record.exchanges.merges, record.exchanges.pairs_by_second) = (2, vec![1; plan.end.as_secs() as usize]);
        let Verdicts { verdicts, not_asked } = verdicts(&plan, &record);
        assert_eq!(not_asked, ["toward the partner", "links last", "one replica", "completed"]);
        assert_eq!(verdicts.len() + not_asked.len(), SAFETY.len() + LIVENESS.len());
    }

    fn sorted(mut names: Vec<String>) -> Vec<String> {
        names.sort();
        names
    }

    #[test]
    fn every_violation_becomes_a_verdict_even_of_an_unlisted_check() {
        let violation = |check| Violation { check, finding: "found".to_owned() };
        let verdicts = verdicts_of(&["exactly once", "bounded"], vec![violation("bounded"), violation("new")]);
        let names: Vec<(&str, bool)> =
            verdicts.iter().map(|verdict| (verdict.check.as_str(), verdict.finding.is_some())).collect();
        assert_eq!(names, [("exactly once", false), ("bounded", true), ("new", true)]);
    }
}
