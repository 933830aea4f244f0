//! Whether this machine's clock was set: it then leaves the time that passes, which counts while the machine sleeps as well.

use std::time::{Duration, SystemTime};

/// A clock that leaves the time that has passed by as much between two looks did not only drift.
const JUMP_MIN: Duration = Duration::from_secs(60);

/// Watches the clock from look to look.
#[derive(Debug)]
pub(crate) struct WallClock {
    /// The clock at the last look, and the time that had passed.
    seen: (SystemTime, Duration),
}

/// A clock that was set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Jump {
    /// By so much.
    Forward(Duration),
    /// By so much.
    Back(Duration),
}

impl WallClock {
    /// From now on.
    pub(crate) fn new() -> WallClock {
        WallClock { seen: (SystemTime::now(), passed()) }
    }

    /// Whether it was set since the last look.
    pub(crate) fn look(&mut self) -> Option<Jump> {
        self.look_at(SystemTime::now(), passed())
    }

    /// The same where the clock shows `now` when so much time has passed.
    pub(crate) fn look_at(&mut self, now: SystemTime, passed: Duration) -> Option<Jump> {
        let (before, passed_before) = std::mem::replace(&mut self.seen, (now, passed));
        let expected = before + passed.saturating_sub(passed_before);
        let jump = match now.duration_since(expected) {
            Ok(ahead) => Jump::Forward(ahead),
            Err(behind) => Jump::Back(behind.duration()),
        };
        let (Jump::Forward(by) | Jump::Back(by)) = jump;
        (by >= JUMP_MIN).then_some(jump)
    }
}

impl Jump {
    /// In seconds; negative where it was set back.
    pub(crate) fn seconds(self) -> f64 {
        match self {
            Jump::Forward(by) => by.as_secs_f64(),
            Jump::Back(by) => -by.as_secs_f64(),
        }
    }

    /// "was set forward by 8.5 h".
    pub(crate) fn described(self) -> String {
        let way = if self.seconds() > 0.0 { "forward" } else { "back" };
        format!("was set {way} by {:.1} h", self.seconds().abs() / 3600.0)
    }
}

/// Every Linux has it.
#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;

/// On macOS it counts while the machine sleeps, unlike the clock of `Instant`.
#[cfg(target_os = "macos")]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_RAW;

/// Time that has passed since the machine began, also while it slept.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) fn passed() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes this one value, and the system has this clock.
    unsafe { libc::clock_gettime(CLOCK, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Time that has passed; while the machine slept only where the system counts it.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn passed() -> Duration {
    static BEGIN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    BEGIN.elapsed()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_clock_that_is_set_is_seen_once_and_one_that_drifts_or_sleeps_is_not() {
        let at = |seconds: u64| (UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds), seconds);
        let (begin, _) = at(0);
        let mut clock = WallClock { seen: (begin, Duration::ZERO) };
        let mut look = |(now, _), passed| clock.look_at(now, Duration::from_secs(passed));
        assert_eq!(look(at(8 * 3600), 8 * 3600), None, "it slept");
        assert_eq!(look(at(8 * 3600 + 60), 8 * 3600 + 1), None, "it drifts");
        let jump = look(at(12 * 3600 + 61), 8 * 3600 + 2).expect("it was set");
        assert_eq!((jump.seconds(), &*jump.described()), (4.0 * 3600.0, "was set forward by 4.0 h"));
        assert_eq!(look(at(12 * 3600 + 62), 8 * 3600 + 3), None, "that is told already");
        let jump = look(at(9 * 3600), 8 * 3600 + 3).expect("it was set");
        assert_eq!(jump.described(), "was set back by 3.0 h");
        assert!(passed() > Duration::ZERO);
    }
}
