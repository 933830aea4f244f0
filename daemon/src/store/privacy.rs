//! `privacy.json`: what a node's private steps have told of its records so far.
//!
//! It is written, and flushed to disk, before the steps that it counts are taken: whatever of them leaves this machine has been
//! counted. So a node that is killed has counted some steps that it never took, and none that it took is missing. Checkpoints
//! have no part in it: who goes back to an older one has spent no less.

use std::io;
use std::path::{Path, PathBuf};

use murmur_training::privacy::{Budget, Mechanism, Spending};
use serde::{Deserialize, Serialize};

use super::write_atomically;

/// The name of the ledger in a data directory.
pub const PRIVACY_FILE: &str = "privacy.json";

/// Changes with the meaning of the file.
const VERSION: u32 = 1;

/// The ledger of a data directory, for steps of one kind.
#[derive(Clone, Debug)]
pub struct PrivacyLedger {
    path: PathBuf,
    spending: Spending,
    mechanism: Mechanism,
    budget: Budget,
    /// ε of `spending`, and what is left of the budget: both take a millisecond to compute.
    epsilon: f64,
    steps_left: u64,
    /// Steps of `spending` that may not be on disk yet, and have not been taken.
    unwritten: u64,
    /// How the file is written.
    write: fn(&Path, &[u8]) -> io::Result<()>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    #[serde(flatten)]
    spending: Spending,
}

impl PrivacyLedger {
    /// Whether a data directory has one.
    pub fn exists(root: &Path) -> bool {
        root.join(PRIVACY_FILE).exists()
    }

    /// Opens the ledger of a data directory, or begins it.
    ///
    /// # Errors
    /// When there is one that cannot be read: what was spent is not known then.
    pub fn open(root: &Path, mechanism: Mechanism, budget: Budget) -> io::Result<PrivacyLedger> {
        let path = root.join(PRIVACY_FILE);
        let spending = match std::fs::read(&path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is damaged"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Spending::default(),
            Err(error) => return Err(error),
        };
        let write = write_atomically;
        let mut ledger =
            PrivacyLedger { path, spending, mechanism, budget, epsilon: 0.0, steps_left: 0, unwritten: 0, write };
        ledger.sum_up();
        Ok(ledger)
    }

    /// Counts steps that are about to be taken. So many as it returns may be taken: `steps`, or those of an earlier call whose
    /// ledger was not written.
    ///
    /// # Errors
    /// When it is not on disk for certain. The steps stay counted, and must not be taken before a later call has written them.
    pub fn spend(&mut self, steps: u64) -> io::Result<u64> {
        if self.unwritten == 0 {
            if !self.spending.add(self.mechanism, steps) {
                return Err(io::Error::other("data or settings have changed too often"));
            }
            self.unwritten = steps;
            self.sum_up();
        }
        let written = Written { version: VERSION, spending: self.spending.clone() };
        (self.write)(&self.path, &serde_json::to_vec_pretty(&written).expect("numbers"))?;
        Ok(std::mem::take(&mut self.unwritten))
    }

    /// ε of all steps counted, at the budget's δ.
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// Steps counted.
    pub fn steps(&self) -> u64 {
        self.spending.steps()
    }

    /// What may be spent in all.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Steps that stay within the budget and have not been permitted, those that wait for the disk included.
    pub fn steps_left(&self) -> u64 {
        self.steps_left + self.unwritten
    }

    fn sum_up(&mut self) {
        self.epsilon = self.spending.epsilon(self.budget.delta);
        self.steps_left = self.spending.steps_left(self.mechanism, self.budget);
    }
}

fn parse(bytes: &[u8]) -> Option<Spending> {
    let written: Written = serde_json::from_slice(bytes).ok()?;
    (written.version == VERSION && written.spending.is_sound()).then_some(written.spending)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    const MECHANISM: Mechanism = Mechanism { records: 1000, batch: 64, noise: 2.0 };
    const BUDGET: Budget = Budget { epsilon: 3.0, delta: 1e-5 };

    fn open(root: &Path) -> PrivacyLedger {
        PrivacyLedger::open(root, MECHANISM, BUDGET).expect("a ledger")
    }

    thread_local! {
        /// The operation of a write at which the machine stops.
        static CRASH: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Operations of one write, as [`write_atomically`] has them: create, write a part, write all, flush, rename, flush the folder.
    const OPERATIONS: usize = 6;

    /// As [`write_atomically`], and leaves the disk as it is before the operation at which the machine stops.
    fn write_until_the_crash(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let operation = |number: usize| match CRASH.get() {
            crash if crash == number => Err(io::Error::other("the machine has stopped")),
            _ => Ok(()),
        };
        let temporary = path.with_extension("tmp");
        operation(0)?;
        fs::write(&temporary, [])?;
        operation(1)?;
        fs::write(&temporary, &bytes[..bytes.len() / 2])?;
        operation(2)?;
        fs::write(&temporary, bytes)?;
        operation(3)?;
        fs::File::open(&temporary)?.sync_all()?;
        operation(4)?;
        fs::rename(&temporary, path)?;
        operation(5)
    }

    #[test]
    fn a_crash_at_any_write_leaves_all_steps_that_were_allowed_counted() {
        for crash in 0..OPERATIONS {
            for earlier in [0, 1, 5] {
                let folder = tempfile::tempdir().expect("a folder");
                let (mut allowed, mut ledger) = (0, open(folder.path()));
                ledger.write = write_until_the_crash;
                CRASH.set(usize::MAX);
                for _ in 0..earlier {
                    ledger.spend(16).expect("no crash yet");
                    allowed += 16;
                }
                let before = ledger.epsilon();
                CRASH.set(crash);
                assert!(ledger.spend(16).is_err(), "these steps may not be taken");
                assert!(ledger.epsilon() > before, "a ledger that goes on does not fall");
                let after = open(folder.path());
                assert!(after.steps() >= allowed, "{crash}: {} of {allowed}", after.steps());
                assert!(after.steps() <= allowed + 16 && after.epsilon() >= before, "{crash}");
                // Where it goes on after all, it writes the same steps, however often that fails: a full disk spends nothing.
                (0..100).for_each(|_| assert!(ledger.spend(16).is_err()));
                CRASH.set(usize::MAX);
                let left = ledger.steps_left();
                assert_eq!(ledger.spend(3).expect("no crash"), 16, "those that were counted");
                assert_eq!((ledger.steps(), ledger.steps_left()), (allowed + 16, left - 16), "{crash}");
                assert_eq!(open(folder.path()).steps(), allowed + 16, "{crash}");
                assert_eq!(ledger.spend(3).expect("no crash"), 3);
            }
        }
    }

    #[test]
    fn a_ledger_goes_on_where_it_was_with_other_settings_too_and_never_falls() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!PrivacyLedger::exists(folder.path()));
        let mut last = 0.0;
        for noise in [2.0, 1.0, 2.0, 4.0, 1.1] {
            let mechanism = Mechanism { noise, ..MECHANISM };
            let mut ledger = PrivacyLedger::open(folder.path(), mechanism, BUDGET).expect("a ledger");
            assert_eq!(ledger.epsilon(), last);
            ledger.spend(10).expect("written");
            assert!(ledger.epsilon() > last);
            last = ledger.epsilon();
        }
        let written = fs::read_to_string(folder.path().join(PRIVACY_FILE)).expect("written");
        assert_eq!(written.matches("\"steps\": 20").count(), 1, "one line for each kind: {written}");
        assert_eq!(open(folder.path()).steps(), 50);
    }

    #[test]
    fn a_ledger_ends_at_its_budget() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ledger = open(folder.path());
        let left = ledger.steps_left();
        ledger.spend(left).expect("written");
        let mut ledger = open(folder.path());
        assert!(left > 100 && ledger.steps_left() == 0 && ledger.epsilon() <= BUDGET.epsilon);
        ledger.spend(1).expect("written");
        assert!(ledger.epsilon() > BUDGET.epsilon);
    }

    #[test]
    fn a_damaged_ledger_is_not_an_empty_one() {
        let folder = tempfile::tempdir().expect("a folder");
        open(folder.path()).spend(5).expect("written");
        let path = folder.path().join(PRIVACY_FILE);
        let whole = fs::read(&path).expect("there");
        let other_version = String::from_utf8_lossy(&whole).replace("\"version\": 1", "\"version\": 2").into_bytes();
        let no_noise = String::from_utf8_lossy(&whole).replace("2.0", "-2.0").into_bytes();
        for damaged in [Vec::new(), b"{}".to_vec(), whole[..whole.len() - 9].to_vec(), other_version, no_noise] {
            assert_ne!(damaged, whole);
            fs::write(&path, &damaged).expect("written");
            assert!(PrivacyLedger::open(folder.path(), MECHANISM, BUDGET).is_err());
        }
    }
}
