//! Which tests run beside each other. Most wait most of the time, and many of these fit on a core; those whose daemons compute
//! take turns, or each would find its daemons slower than they are.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Held while a test computes.
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    /// So many tests' worth.
    weight: usize,
    _network: Option<MutexGuard<'static, ()>>,
}

/// Tests that compute now.
static COMPUTING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Daemons on links of a set speed are louder still: one such network at a time.
static NETWORK: Mutex<()> = Mutex::new(());

/// Waits until fewer tests compute than there are cores.
pub fn computes() -> Turn {
    begin(1, None)
}

/// The same, and until no other test has a network whose speed matters.
pub fn has_a_network() -> Turn {
    begin(1, Some(network()))
}

/// Waits until no test computes, and keeps all others from it: for what is held to a time.
pub fn alone() -> Turn {
    begin(cores(), Some(network()))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn network() -> MutexGuard<'static, ()> {
    NETWORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn begin(weight: usize, network: Option<MutexGuard<'static, ()>>) -> Turn {
    let computing = COMPUTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let is_full = |computing: &mut usize| *computing + weight > cores();
    let mut computing = ENDED.wait_while(computing, is_full).unwrap_or_else(|poisoned| poisoned.into_inner());
    *computing += weight;
    Turn { weight, _network: network }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *COMPUTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) -= self.weight;
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
                    let (weight, has_network, _turn) = match number % 3 {
                        0 => (1, 0, super::computes()),
                        1 => (1, 1, super::has_a_network()),
                        _ => (cores, 1, super::alone()),
                    };
                    assert!(computing.fetch_add(weight, Ordering::SeqCst) + weight <= cores);
                    assert!(with_network.fetch_add(has_network, Ordering::SeqCst) + has_network <= 1);
                    std::thread::sleep(Duration::from_millis(2));
                    with_network.fetch_sub(has_network, Ordering::SeqCst);
                    computing.fetch_sub(weight, Ordering::SeqCst);
                });
            }
        });
    }
}
