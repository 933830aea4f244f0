//! Memory that training has used goes back to the system when training rests.
//!
//! The allocator keeps freed pages for the next step, each thread its own, in huge pages where the system has them:
//! training is faster for it (BENCHMARKS.md). A member that only serves needs neither, and others on its machine do.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Models of fewer parameters are trained in small pages: with gradient and moments this one takes 16 MB, and 1,536 entries
/// of a second-level TLB reach 6 MiB. A step of 0.13 million parameters took as long in either, one of 10 million 7 % longer
/// in small ones; huge ones held 22 MB more around small remainders.
const HUGE_PAGES_FROM: usize = 1_000_000;

/// A thread that does not train gives memory back once it had nothing to do for this long: exchanges come in rows.
const IDLE_BEFORE_GIVING_BACK: Duration = Duration::from_secs(1);

/// How often all threads were to give back what they hold.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Rounds in which this thread has.
    static ROUNDS_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Gives memory back once, where there was nothing to do for long enough since `busy_at`, which is emptied then.
pub(crate) fn rest(busy_at: &mut Option<Instant>, has_ended: bool) {
    if busy_at.take_if(|busy_at| busy_at.elapsed() >= IDLE_BEFORE_GIVING_BACK).is_some() {
        if has_ended {
            set_huge_pages(false);
        }
        give_back();
    }
}

/// Gives back what this thread's allocator and those of the threads for training hold and nobody uses; other threads do
/// so when they next [`follow`]. Takes milliseconds, so never between two steps.
pub(crate) fn give_back() {
    ROUNDS.fetch_add(1, Ordering::Relaxed);
    rayon::broadcast(|_| collect());
    follow();
}

/// Gives back what this thread holds, where it has not done so since the last [`give_back`] of another.
pub(crate) fn follow() {
    let rounds = ROUNDS.load(Ordering::Relaxed);
    if ROUNDS_HERE.replace(rounds) != rounds {
        collect();
    }
}

/// To be called before memory is taken for a model of so many parameters.
pub(crate) fn choose_pages(parameters: usize) {
    set_huge_pages(parameters >= HUGE_PAGES_FROM);
}

/// Whether the system backs large pieces of memory with huge pages. Training is faster with them; without, a process that
/// does not train is smaller by what the system fills up around every small remainder.
pub fn set_huge_pages(_wanted: bool) {
    // Where it fails, the process is only larger, or training a little slower.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(!_wanted);
}

/// Gives back what this thread holds, and what lies free between all threads.
pub(crate) fn collect() {
    // SAFETY: it may be called from any thread at any time, also where another allocator is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
