//! What the node's limits leave for loading: bytes a second, bytes a day, hours of the day.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use murmur_network::Traffic;

use super::progress::PATIENCE;
use crate::console::note;
use crate::limits::rest::Rest;
use crate::process::service_manager::ServiceManager;
use crate::settings::LimitsSettings;

/// How often the clock is looked at while nothing may be loaded.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How often the day's bytes are written: a killed process loses the count of as long.
const WRITE_PERIOD: Duration = Duration::from_secs(5);

/// How much of the rate may come at once after a pause.
const BURST: Duration = Duration::from_millis(200);

/// Limits on what is loaded, shared by all that load.
pub(crate) struct Allowance {
    /// Locked for a few instructions; never while bytes or hours are waited for.
    state: Mutex<State>,
    seconds_per_byte: Option<f64>,
}

struct State {
    /// The owner's hours and the bytes of the day; `None` where nothing limits them and nothing counts them.
    rest: Option<Rest>,
    loaded: u64,
    /// When all that has come so far is paid for.
    free_at: Instant,
    /// Whether it has been said that loading waits.
    has_said: bool,
    written_at: Instant,
}

impl Allowance {
    /// No limits: of commands that are not a node's.
    pub(crate) fn unlimited() -> Allowance {
        Allowance::new(None, None)
    }

    /// A node's limits; the bytes of its day are counted in the file at `traffic`.
    pub(crate) fn of(limits: &LimitsSettings, traffic: PathBuf) -> Allowance {
        Allowance::new(Some(Rest::new(limits, traffic)), limits.caps().download)
    }

    /// A machine's cap, where no node is begun.
    pub(crate) fn capped(limits: &LimitsSettings) -> Allowance {
        Allowance::new(None, limits.caps().download)
    }

    fn new(rest: Option<Rest>, rate: Option<u64>) -> Allowance {
        let state = State { rest, loaded: 0, free_at: Instant::now(), has_said: false, written_at: Instant::now() };
        Allowance { state: Mutex::new(state), seconds_per_byte: rate.map(|rate| 1.0 / rate.max(1) as f64) }
    }

    /// Bytes loaded so far.
    pub(crate) fn loaded(&self) -> u64 {
        self.state().loaded
    }

    /// Counts bytes that have come, and waits as long as they take at the owner's rate.
    pub(crate) fn take(&self, bytes: usize) {
        let mut state = self.state();
        state.loaded += bytes as u64;
        if state.written_at.elapsed() >= WRITE_PERIOD {
            state.keep();
        }
        let Some(seconds_per_byte) = self.seconds_per_byte else { return };
        let now = Instant::now();
        let from = state.free_at.max(now.checked_sub(BURST).unwrap_or(now));
        state.free_at = from + Duration::from_secs_f64(bytes as f64 * seconds_per_byte);
        let free_at = state.free_at;
        drop(state);
        std::thread::sleep(free_at.saturating_duration_since(now));
    }

    /// Why nothing may be loaded now, where it may not.
    pub(crate) fn reason(&self) -> Option<String> {
        let mut state = self.state();
        let traffic = Traffic { sent: 0, received: state.loaded };
        state.rest.as_mut()?.look(SystemTime::now(), traffic).reason
    }

    /// Waits until something may be loaded.
    pub(crate) fn wait(&self) {
        let manager = ServiceManager::from_environment();
        while let Some(reason) = self.reason() {
            let has_said = std::mem::replace(&mut self.state().has_said, true);
            if !has_said {
                self.keep();
                note(&format!(
                    "resting     {reason}; loading waits until then\nhint: to load now, start again with other \
                     --quiet-hours or --daily-gigabytes"
                ));
            }
            manager.iter().for_each(|manager| manager.wait_for(PATIENCE));
            std::thread::sleep(LOOK_PERIOD);
        }
        self.state().has_said = false;
    }

    /// Writes the bytes of the day, for the node that begins or the next process.
    pub(crate) fn keep(&self) {
        self.state().keep();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self) {
        self.written_at = Instant::now();
        let traffic = Traffic { sent: 0, received: self.loaded };
        if let Some(rest) = self.rest.as_mut() {
            rest.look(SystemTime::now(), traffic);
            rest.write_count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_keeps_to_the_cap_and_counts_in_the_day() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("traffic.json");
        let limits = LimitsSettings { download_mbit: 8.0, daily_gigabytes: 0.0004, ..LimitsSettings::default() };
        let allowance = Allowance::of(&limits, path.clone());
        let begin = Instant::now();
        for _ in 0..7 {
            allowance.take(50_000);
        }
        // A megabyte a second, of which a fifth may come at once.
        assert!(begin.elapsed() >= Duration::from_millis(140), "{:?}", begin.elapsed());
        assert_eq!(allowance.reason(), None);
        allowance.keep();
        let next = Allowance::of(&limits, path);
        next.take(50_000);
        let reason = next.reason().expect("the budget of the day is used up");
        assert!(reason.starts_with("daily budget used up"), "{reason}");
        assert_eq!(Allowance::unlimited().reason(), None);
    }
}
