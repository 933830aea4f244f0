//! Does one seed always give one run? Two swarms side by side, compared every few simulated milliseconds, so that the
//! first entry in which their traces differ is still at hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::Swarm;
use crate::file::ScenarioFile;

/// Simulated time between two comparisons: a swarm of hundreds writes fewer entries in it than a trace keeps.
const COMPARISON_PERIOD: Duration = Duration::from_millis(20);

/// Entries kept in words to be compared.
const LINES_KEPT: usize = 1000;

/// What two runs of one seed came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Entries of the first run's trace.
    pub entries: u64,
    /// BLAKE3 of the first run's trace, in hexadecimal.
    pub digest: String,
    /// Where the second run was another; `None` where it was the same.
    pub divergence: Option<Divergence>,
}

/// The first difference of two traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Not before this time.
    pub after: Duration,
    /// The first entry that differs, in each run; `None` where it is not kept any more.
    pub entries: Option<[String; 2]>,
}

/// Runs a seed twice; `None` when interrupted before the end.
pub fn check_determinism(file: &ScenarioFile, seed: u64, interrupted: &AtomicBool) -> Option<Repetition> {
    let plan = file.draw(seed);
    // Drawn twice, so that drawing is compared too.
    let again = file.draw(seed);
    let mut swarms = [Swarm::new(plan.scenario, seed), Swarm::new(again.scenario, seed)];
    swarms.iter_mut().for_each(|swarm| swarm.keep_lines(LINES_KEPT));
    let mut time = Duration::ZERO;
    while time < plan.end {
        if interrupted.load(Ordering::Relaxed) {
            return None;
        }
        let before = time;
        time = (time + COMPARISON_PERIOD).min(plan.end);
        swarms.iter_mut().for_each(|swarm| swarm.run_until(time));
        if swarms[0].fingerprint() != swarms[1].fingerprint() {
            return Some(repetition(
                &swarms[0],
                Some(Divergence { after: before, entries: first_difference(&swarms) }),
            ));
        }
    }
    Some(repetition(&swarms[0], None))
}

fn repetition(swarm: &Swarm, divergence: Option<Divergence>) -> Repetition {
    let (digest, entries) = swarm.fingerprint();
    Repetition { entries, digest: blake3::Hash::from_bytes(digest).to_string(), divergence }
}

/// Both keep their last lines; the numbers of all entries tell which of them belong together.
fn first_difference(swarms: &[Swarm; 2]) -> Option<[String; 2]> {
    let kept = swarms.each_ref().map(|swarm| {
        let lines: Vec<&str> = swarm.last_lines().collect();
        let first = swarm.fingerprint().1 - lines.len() as u64;
        (first, lines)
    });
    let begin = kept[0].0.max(kept[1].0);
    let line = |run: usize, number: u64| {
        let (first, lines) = &kept[run];
        lines.get((number - first) as usize).map_or("(nothing more)", |line| line.trim_end())
    };
    let end = begin + kept.iter().map(|(_, lines)| lines.len() as u64).max()?;
    let number = (begin..end).find(|number| line(0, *number) != line(1, *number))?;
    // A difference in the very first line that is left may have begun earlier.
    (number > begin || begin == 0).then(|| [line(0, number).to_owned(), line(1, number).to_owned()])
}
