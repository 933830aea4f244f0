//! That training waits for nobody: bounds on the measured gaps between steps.
//!
//! Two bounds, because waits are of two kinds. A call that waits at every boundary, however shortly, shows in the share of
//! time: beside steps of some milliseconds 100 ms are nine tenths of it. A rare wait, as for a peer that is gone, hardly
//! shows there, but lasts until a deadline of seconds: it shows in the longest gap.

use std::time::Duration;

use murmur::observe::report::NodeReport;

/// Boundaries do work: copies, corrections, replies. In the dev profile, with an exchange every few steps of a tiny model
/// and more trainers than cores, that is a few hundredths of the time.
const SHARE_MAX: f64 = 0.25;

/// The shortest deadline of an exchange: a wait for a peer that is gone lasts longer. On a machine with many more threads than
/// cores one that wants to run is kept from it for a second or two.
const GAP_MAX: Duration = Duration::from_secs(3);

/// Asserts that a daemon's training has waited for nobody since it began.
///
/// # Panics
/// Where it may have waited, or has not trained.
pub fn assert_never_waited(report: &NodeReport) {
    assert!(
        report.times.seconds_in_training > 0.0 && report.times.median_step_seconds > 0.0,
        "it has trained: {report:?}"
    );
    assert_share(report.boundary_share(), report);
    let (gap, median) = (report.times.longest_gap_seconds, report.times.median_step_seconds);
    assert!(gap < GAP_MAX.as_secs_f64(), "{gap} s between two steps, where a step takes {median} s: {report:?}");
}

/// The same of what went on between two reports of one daemon.
///
/// # Panics
/// As [`assert_never_waited`].
pub fn assert_never_waited_between(before: &NodeReport, after: &NodeReport) {
    let training = after.times.seconds_in_training - before.times.seconds_in_training;
    assert!(training > 0.0, "it has trained meanwhile: {after:?}");
    assert_share((after.times.seconds_at_boundaries - before.times.seconds_at_boundaries) / training, after);
    assert_never_waited(after);
}

fn assert_share(share: f64, report: &NodeReport) {
    println!(
        "boundaries {:.2} %, longest gap {:.1} ms, median step {:.2} ms, {:.1} s in training",
        100.0 * share,
        1e3 * report.times.longest_gap_seconds,
        1e3 * report.times.median_step_seconds,
        report.times.seconds_in_training
    );
    assert!(share < SHARE_MAX, "{:.1} % of its time went by at boundaries: {report:?}", 100.0 * share);
}
