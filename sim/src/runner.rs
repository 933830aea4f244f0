//! Runs seeds: each on a thread of its own, results in the order of the seeds whatever the threads do.

mod determinism;
mod one;
mod verdicts;

pub use determinism::{Divergence, Repetition, check_determinism};
pub use one::{Ended, Trace, run_seed};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::file::ScenarioFile;
use crate::report::SeedReport;

/// How often progress is told while no seed ends.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// What the one who waits for the seeds hears.
#[derive(Debug)]
pub enum Heard<'a> {
    /// The next seed in order has ended.
    Seed(&'a Ended),
    /// So many have ended, in whatever order.
    Progress {
        /// Seeds that have ended.
        finished: u64,
        /// Those of them in which a check failed.
        failed: u64,
    },
}

/// Runs all seeds on `jobs` threads, until done or `interrupted`; then the seeds that had ended by that time.
///
/// The file has passed [`ScenarioFile::validate`]; `jobs` is at least 1.
pub fn run_seeds(
    file: &ScenarioFile,
    seeds: Range<u64>,
    jobs: usize,
    trace: Trace,
    interrupted: &AtomicBool,
    mut hear: impl FnMut(Heard<'_>),
) -> Vec<SeedReport> {
    // Counted from the first one: beyond the last there may be no number.
    let (next, count) = (AtomicU64::new(0), seeds.end - seeds.start);
    let mut finished: Vec<SeedReport> = Vec::new();
    // Those that ended before a seed that comes before them.
    let mut waiting: BTreeMap<u64, Ended> = BTreeMap::new();
    let mut failed = 0;
    std::thread::scope(|scope| {
        let (sender, ended) = channel();
        for _ in 0..jobs {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while !interrupted.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let run = || run_seed(file, seeds.start + number, trace, interrupted);
                    let Some(report) = (number < count).then(run).flatten() else { return };
                    if sender.send(report).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match ended.recv_timeout(PROGRESS_PERIOD) {
                Ok(ended) => {
                    failed += u64::from(!ended.report.has_passed());
                    waiting.insert(ended.report.seed, ended);
                    while let Some(next) = waiting.remove(&(seeds.start + finished.len() as u64)) {
                        hear(Heard::Seed(&next));
                        finished.push(next.report);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            hear(Heard::Progress { finished: (finished.len() + waiting.len()) as u64, failed });
        }
    });
    // After an interruption a slow seed may be missing between faster ones, which then have not been told yet.
    for ended in waiting.into_values() {
        hear(Heard::Seed(&ended));
        finished.push(ended.report);
    }
    finished
}
