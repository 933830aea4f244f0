//! A run's length in hours or tokens, as its founder wishes it: when it is nearly over, the founder's daemon orders the
//! end.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::console::{figures, note};
use crate::daemon::finishing::{FinishWish, Finisher, NotFinished};
use crate::failure::Failure;
use crate::limits::clock::{Jump, WallClock};
use crate::observe::report::NodeReport;
use crate::store::Length;

/// The share of the length that is left for the decay: a sixth, as a fifth of the steps before it.
const DECAY_SHARE: f64 = 1.0 / 6.0;

/// How often it is looked whether the decay has to begin.
const PERIOD: Duration = Duration::from_secs(1);

/// Looks between two writings of the count, or of the time that is left.
const LOOKS_PER_WRITING: u32 = 10;

/// A length as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AskedLength {
    /// From now.
    Hours(f64),
    /// Of the whole swarm, from now.
    Tokens(f64),
}

impl AskedLength {
    /// The option that asks for it.
    pub(super) fn option(self) -> &'static str {
        match self {
            AskedLength::Hours(_) => "--hours",
            AskedLength::Tokens(_) => "--tokens",
        }
    }
}

/// The length that holds in a data directory: what is asked for now, else what was asked for before a restart. Who types the same
/// command again goes on with the length that it has begun.
///
/// # Errors
/// When it cannot be read.
pub(super) fn length(asked: Option<AskedLength>, root: &Path) -> Result<Option<Length>, Failure> {
    let now = unix_seconds();
    let known = Length::known(root, now)?;
    let Some(asked) = asked else { return Ok(known) };
    let goes_on = match (asked, known) {
        (AskedLength::Hours(asked), Some(Length::Hours { hours, .. })) => asked == hours,
        (AskedLength::Tokens(asked), Some(Length::Tokens { tokens, .. })) => asked == tokens,
        _ => false,
    };
    if let Some(known) = known.filter(|_| goes_on) {
        let left = match known {
            Length::Hours { until, .. } if until > now => format!("{:.2} h are left", (until - now) / 3600.0),
            Length::Tokens { tokens, counted } if counted < tokens => {
                format!("{} tokens are left", figures::count((tokens - counted) as u64))
            }
            _ => "it is over, so the run ends now".to_owned(),
        };
        note(&format!("length      {} as before: {left}; another number begins from now", asked.option()));
        return Ok(Some(known));
    }
    Ok(Some(match asked {
        AskedLength::Hours(hours) => Length::Hours { hours, until: now + 3600.0 * hours },
        AskedLength::Tokens(tokens) => Length::Tokens { tokens, counted: 0.0 },
    }))
}

/// The same length by a clock that was set meanwhile; `None` where that changes nothing.
fn after_jump(length: Length, jump: Jump) -> Option<Length> {
    match length {
        Length::Hours { hours, until } => Some(Length::Hours { hours, until: until + jump.seconds() }),
        Length::Tokens { .. } => None,
    }
}

/// Orders the end of the run so that it is complete when this length is over. `asked`: the option that has asked for it at this start.
pub(super) async fn finish_after(
    mut length: Length,
    asked: Option<AskedLength>,
    root: PathBuf,
    reports: watch::Receiver<NodeReport>,
    finisher: Finisher,
) {
    keep(length, &root).await;
    let (mut looked, mut trained, mut clock) = (Instant::now(), 0, WallClock::new());
    for look in 1.. {
        sleep(PERIOD).await;
        let report = reports.borrow().clone();
        if report.is_finishing {
            if let Some(asked) = asked.filter(|_| look == 1) {
                let (option, end) = (asked.option(), figures::count(report.ends_at.unwrap_or_default() as u64));
                note(&format!(
                    "warning: the end of this run is ordered already, at swarm step {end}: {option} changes nothing\n\
                     hint: `murmur finish --in TIME` orders another end"
                ));
            }
            return;
        }
        if let Some(set) = clock.look().and_then(|jump| after_jump(length, jump)) {
            length = set;
            keep(length, &root).await;
        }
        if let Length::Tokens { counted, .. } = &mut length {
            let own = report.times.tokens_trained.saturating_sub(trained);
            let told = report.swarm_tokens_per_second - report.tokens_per_second;
            *counted += own as f64 + told.max(0.0) * looked.elapsed().as_secs_f64();
        }
        (looked, trained) = (Instant::now(), report.times.tokens_trained);
        if look % LOOKS_PER_WRITING == 0 {
            keep(length, &root).await;
        }
        let Some(left) = left_for_decay(length, unix_seconds()) else { continue };
        let ordered = match length {
            Length::Hours { .. } => finisher.finish(FinishWish { seconds: Some(left) }).await,
            Length::Tokens { .. } => match own_steps(left, &report) {
                Some(steps) => finisher.finish_in(steps).await,
                // Its own steps are over, and the others train.
                None if report.swarm_tokens_per_second > 0.0 => {
                    let seconds = left / report.swarm_tokens_per_second;
                    finisher.finish(FinishWish { seconds: Some(seconds) }).await
                }
                None => Err(NotFinished::NoPace),
            },
        };
        match ordered {
            Ok(_) | Err(NotFinished::Complete) => return,
            Err(NotFinished::NoPace) => {}
            Err(reason) => {
                note(&format!("warning: this node cannot end the run: {reason}\nhint: {}", reason.remedy()));
                return;
            }
        }
    }
}

/// Writes it off the runtime's threads: a disk may hang.
async fn keep(length: Length, root: &Path) {
    let root = root.to_owned();
    let written = tokio::task::spawn_blocking(move || length.keep(&root, unix_seconds())).await;
    if let Ok(Err(error)) = written {
        note(&format!("warning: a restart will not know the length of the run: {error}"));
    }
}

/// What is left of a length, in seconds or tokens, where the decay has to begin now.
fn left_for_decay(length: Length, now: f64) -> Option<f64> {
    let (left, all) = match length {
        Length::Hours { hours, until } => (until - now, 3600.0 * hours),
        Length::Tokens { tokens, counted } => (tokens - counted, tokens),
    };
    (left <= DECAY_SHARE * all).then_some(left.max(0.0))
}

/// In how many steps of this node the swarm trains on so many tokens.
fn own_steps(tokens: f64, report: &NodeReport) -> Option<f64> {
    let tokens_per_step = report.tokens_per_second * report.step_seconds;
    let own_share = report.tokens_per_second / report.swarm_tokens_per_second;
    Some(tokens / tokens_per_step * own_share).filter(|steps| steps.is_finite())
}

pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decay_begins_with_the_last_sixth() {
        let hours = Length::Hours { hours: 1.0, until: 10_000.0 };
        assert_eq!(left_for_decay(hours, 9_399.0), None);
        assert_eq!(left_for_decay(hours, 9_400.0), Some(600.0));
        assert_eq!(left_for_decay(hours, 20_000.0), Some(0.0), "the machine was off when it should have ended");
        let tokens = |counted| Length::Tokens { tokens: 6e6, counted };
        assert_eq!(left_for_decay(tokens(4.9e6), 0.0), None);
        assert_eq!(left_for_decay(tokens(5e6), 0.0), Some(1e6));
        assert_eq!(left_for_decay(tokens(7e6), 0.0), Some(0.0));
    }

    #[test]
    fn tokens_of_the_swarm_are_so_many_own_steps() {
        let swarm_tokens_per_second = 4000.0;
        let report = |tokens_per_second| NodeReport {
            step_seconds: 0.5,
            tokens_per_second,
            swarm_tokens_per_second,
            ..NodeReport::default()
        };
        assert_eq!(own_steps(1e6, &report(4000.0)), Some(500.0), "alone, steps of 2,000 tokens");
        assert_eq!(own_steps(1e6, &report(1000.0)), Some(500.0), "a quarter of the work, in steps of a quarter");
        assert_eq!(own_steps(1e6, &report(0.0)), None, "no pace, no time");
    }

    #[test]
    fn a_length_survives_a_restart_until_another_one_is_asked_for() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let length = |asked| length(asked, folder.path()).expect("sound");
        assert_eq!(length(None), None);
        let before = Length::Tokens { tokens: 1e9, counted: 2.5e8 };
        before.keep(folder.path(), unix_seconds()).expect("written");
        assert_eq!(length(None), Some(before));
        let asked = length(Some(AskedLength::Hours(2.0)));
        assert!(matches!(asked, Some(Length::Hours { hours: 2.0, until }) if until > unix_seconds()), "{asked:?}");
    }

    #[test]
    fn the_same_command_typed_again_makes_no_run_longer() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let kept = |kept: Length, asked| {
            kept.keep(folder.path(), unix_seconds()).expect("written");
            length(Some(asked), folder.path()).expect("sound") == Some(kept)
        };
        let hours = |hours, left| Length::Hours { hours, until: unix_seconds() + left };
        let tokens = |counted| Length::Tokens { tokens: 1e9, counted };
        assert!(kept(hours(2.0, 1800.0), AskedLength::Hours(2.0)) && kept(tokens(2.5e8), AskedLength::Tokens(1e9)));
        assert!(!kept(hours(2.0, 1800.0), AskedLength::Hours(3.0)) && !kept(tokens(2.5e8), AskedLength::Tokens(2e9)));
        assert!(kept(hours(2.0, -1.0), AskedLength::Hours(2.0)) && kept(tokens(1e9), AskedLength::Tokens(1e9)), "over");
        assert!(!kept(hours(2.0, 1800.0), AskedLength::Tokens(2.0)));
    }

    #[test]
    fn a_clock_that_is_set_changes_no_length() {
        let hours = Length::Hours { hours: 1.0, until: 10_000.0 };
        let ahead = after_jump(hours, Jump::Forward(Duration::from_hours(1000))).expect("another time");
        let now = 8_000.0 + 3_600_000.0;
        assert_eq!(left_for_decay(hours, now), Some(0.0), "by the clock alone it would be over");
        assert_eq!(left_for_decay(ahead, now), None);
        assert_eq!(left_for_decay(ahead, now + 1_500.0), Some(500.0));
        assert_eq!(after_jump(ahead, Jump::Back(Duration::from_hours(1000))), Some(hours));
    }
}
