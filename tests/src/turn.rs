//! Which tests run beside each other. Most wait most of the time, and many of these fit on a core; those whose daemons compute
//! take turns, or each would find its daemons slower than they are.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Held while a test computes.
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    _network: Option<MutexGuard<'static, ()>>,
}

/// Tests that compute now.
static COMPUTING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Daemons on links of a set speed are louder still: one such network at a time.
static NETWORK: Mutex<()> = Mutex::new(());

/// Waits until fewer tests compute than there are cores.
pub fn computes() -> Turn {
    begin(None)
}

/// The same, and until no other test has a network whose speed matters.
pub fn has_a_network() -> Turn {
    begin(Some(network()))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn network() -> MutexGuard<'static, ()> {
    NETWORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn begin(network: Option<MutexGuard<'static, ()>>) -> Turn {
    let computing = COMPUTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let is_full = |computing: &mut usize| *computing == cores();
    let mut computing = ENDED.wait_while(computing, is_full).unwrap_or_else(|poisoned| poisoned.into_inner());
    *computing += 1;
    Turn { _network: network }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *COMPUTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) -= 1;
        ENDED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn no_more_compute_than_there_are_cores_and_one_has_a_network() {
        let cores = super::cores();
        let (computing, with_network) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 * cores {
                let (computing, with_network) = (&computing, &with_network);
                scope.spawn(move || {
                    let (has_network, _turn) = match number % 2 {
                        0 => (0, super::computes()),
                        _ => (1, super::has_a_network()),
                    };
                    assert!(computing.fetch_add(1, Ordering::SeqCst) < cores);
                    assert!(with_network.fetch_add(has_network, Ordering::SeqCst) + has_network <= 1);
                    std::thread::sleep(Duration::from_millis(2));
                    with_network.fetch_sub(has_network, Ordering::SeqCst);
                    computing.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
    }
}
