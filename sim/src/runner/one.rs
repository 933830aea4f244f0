//! One seed: from a plan to a report, with a point of the plots every so often.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::verdicts::{Verdicts, verdicts};
use crate::Swarm;
use crate::file::{Plan, ScenarioFile};
use crate::report::{Point, SeedReport, Summary, Verdict, changes, windows};

/// Points of a plot over the longest phase of a file: with two phases enough for a page's width.
const POINTS: f64 = 40.0;

/// Events and effects in words: a few exchanges of a small swarm.
const LINES_KEPT: usize = 400;

/// How much of a run is kept besides its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The report alone.
    Off,
    /// Every change of state, and the last events.
    On,
}

/// A seed that has come to its end.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What machines read of it.
    pub report: SeedReport,
    /// Every change of state, a line each; empty where the trace is off.
    pub changes: Vec<String>,
    /// The last events (`<`) and effects (`>`) of nodes, a line each; empty where the trace is off.
    pub last_lines: Vec<String>,
}

/// Runs one seed; `None` when interrupted before its end. A broken invariant of the core, which panics, is a verdict.
pub fn run_seed(file: &ScenarioFile, seed: u64, trace: Trace, interrupted: &AtomicBool) -> Option<Ended> {
    let plan = file.draw(seed);
    let mut swarm = Swarm::new(plan.scenario.clone(), plan.seed);
    if trace == Trace::On {
        swarm.keep_lines(LINES_KEPT);
    }
    let run = || observe(file, &plan, &mut swarm, interrupted);
    let report = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let verdicts = vec![Verdict::failed("no broken invariant", &words(&*panic))];
        Some(SeedReport { verdicts, ..SeedReport::of(&plan) })
    })?;
    // What has led to a broken invariant is in the trace as well.
    Some(Ended {
        changes: if trace == Trace::On { changes(&plan, &swarm) } else { Vec::new() },
        last_lines: swarm.last_lines().map(|line| line.trim_end().to_owned()).collect(),
        report,
    })
}

fn observe(file: &ScenarioFile, plan: &Plan, swarm: &mut Swarm, interrupted: &AtomicBool) -> Option<SeedReport> {
    let begin = Instant::now();
    let mut series = Vec::new();
    for time in moments(file, plan) {
        if interrupted.load(Ordering::Relaxed) {
            return None;
        }
        swarm.run_until(time);
        series.push(Point::new(&swarm.sample()));
    }
    let record = swarm.record();
    let (digest, entries) = swarm.fingerprint();
    let Verdicts { verdicts, not_asked } = verdicts(plan, &record);
    let rounds = record.lives.iter().map(|life| life.rounds).sum();
    Some(SeedReport {
        verdicts,
        not_asked,
        summary: Summary::new(plan, &series, rounds),
        series,
        trace_entries: entries,
        trace_digest: blake3::Hash::from_bytes(digest).to_string(),
        simulated_seconds: plan.end.as_secs_f64(),
        real_seconds: begin.elapsed().as_secs_f64(),
        ..SeedReport::of(plan)
    })
}

/// The same moments for all seeds of a file, so that their points lie above each other, and the ends of the plan's own phases: as
/// many in the phase of faults as in the calm, which is often much longer.
fn moments(file: &ScenarioFile, plan: &Plan) -> Vec<Duration> {
    let end = plan.end;
    let (faults, calm) = (file.phases.faults_seconds.to, file.phases.calm_seconds.to);
    let period = |phase: f64| (phase / POINTS).max(1.0).round();
    let in_faults = (faults / period(faults)) as usize;
    let begin = in_faults as f64 * period(faults);
    let in_calm = ((end.as_secs_f64() - begin).max(0.0) / period(calm)) as usize;
    let first = (0..=in_faults).map(|number| number as f64 * period(faults));
    let then = (1..=in_calm).map(|number| begin + number as f64 * period(calm));
    let mut moments: Vec<Duration> = first.chain(then).map(Duration::from_secs_f64).collect();
    moments.retain(|moment| *moment < end);
    moments.extend([plan.faults_end, end]);
    moments.sort_unstable();
    moments.dedup();
    moments
}

impl SeedReport {
    /// What a plan says of its run.
    fn of(plan: &Plan) -> SeedReport {
        SeedReport {
            seed: plan.seed,
            nodes: plan.scenario.nodes.len(),
            drawn: plan.drawn.clone(),
            faults_end_seconds: plan.faults_end.as_secs_f64(),
            windows: windows(plan),
            ..SeedReport::default()
        }
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(ToString::to_string);
    literal.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}
