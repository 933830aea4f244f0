//! Page-locked memory that transfers take by turns. Without it a transfer stops the computation; to lock it takes long.

use std::sync::Mutex;

use candle_core::Result;

use super::BUFFERS_UNDER_WAY;

/// Memory of a fixed length.
pub(super) trait Locked {
    /// In values.
    fn length(&self) -> usize;
}

pub(super) struct Pool<B> {
    free: Mutex<Vec<B>>,
}

impl<B> Default for Pool<B> {
    fn default() -> Pool<B> {
        Pool { free: Mutex::default() }
    }
}

impl<B: Locked> Pool<B> {
    /// Has `act` use a buffer of at least so many values: a free one, or what `lock` gives; `None` where that has none. Where it fails,
    /// a device may still read the buffer or write to it: `settle` waits until it does not. If that fails as well, nobody ever
    /// gets the buffer again.
    pub(super) fn with<R>(
        &self,
        values: usize,
        lock: impl FnOnce() -> Option<B>,
        act: impl FnOnce(Option<&mut B>) -> Result<R>,
        settle: impl FnOnce() -> Result<()>,
    ) -> Result<R> {
        let kept = {
            let mut free = self.free.lock().expect("nobody panics with the pool");
            let fitting = (0..free.len()).filter(|index| free[*index].length() >= values);
            fitting.min_by_key(|index| free[*index].length()).map(|index| free.swap_remove(index))
        };
        let mut buffer = kept.or_else(lock);
        let result = act(buffer.as_mut());
        let is_settled = result.is_ok() || settle().is_ok();
        match buffer {
            Some(buffer) if is_settled => self.give_back(buffer),
            lost => std::mem::forget(lost),
        }
        result
    }

    fn give_back(&self, buffer: B) {
        let surplus = {
            let mut free = self.free.lock().expect("nobody panics with the pool");
            free.push(buffer);
            // The largest stay: fragments are small, a whole model takes longest to lock.
            let smallest = (0..free.len()).min_by_key(|index| free[*index].length());
            smallest.filter(|_| free.len() > BUFFERS_UNDER_WAY).map(|index| free.swap_remove(index))
        };
        drop(surplus);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use candle_core::Error;

    use super::*;

    /// A number, and values.
    #[derive(Debug, PartialEq)]
    struct Buffer(usize, usize);

    impl Locked for Buffer {
        fn length(&self) -> usize {
            self.1
        }
    }

    fn failure() -> Error {
        Error::Msg("the device failed".to_owned())
    }

    /// The number of the buffer that a use of so many values got.
    fn used(pool: &Pool<Buffer>, values: usize, new: usize) -> usize {
        let act = |buffer: Option<&mut Buffer>| Ok(buffer.map_or(0, |buffer| buffer.0));
        let settle = || unreachable!("nothing failed");
        pool.with(values, || (new > 0).then_some(Buffer(new, values)), act, settle).expect("a number")
    }

    #[test]
    fn buffers_are_used_again_the_smallest_that_fits() {
        let pool = Pool::default();
        assert_eq!(used(&pool, 5, 0), 0, "none was locked");
        assert_eq!(used(&pool, 5, 1), 1);
        assert_eq!(used(&pool, 9, 2), 2);
        assert_eq!((used(&pool, 6, 3), used(&pool, 5, 3), used(&pool, 10, 3)), (2, 1, 3));
        for values in 11..11 + BUFFERS_UNDER_WAY {
            used(&pool, values, values);
        }
        let free = pool.free.lock().expect("nobody panics with the pool");
        assert_eq!(free.len(), BUFFERS_UNDER_WAY);
        assert!(free.iter().all(|buffer| buffer.1 >= 11), "the largest stay: {free:?}");
    }

    #[test]
    fn after_a_failure_a_buffer_is_free_once_nothing_is_under_way_or_never() {
        for is_idle in [true, false] {
            let (pool, waited) = (Pool::default(), Cell::new(false));
            let fail = |_: Option<&mut Buffer>| -> Result<()> { Err(failure()) };
            let settle = || {
                assert!(pool.free.lock().expect("nobody panics with the pool").is_empty(), "it is free too early");
                waited.set(true);
                if is_idle { Ok(()) } else { Err(failure()) }
            };
            assert!(pool.with(5, || Some(Buffer(1, 5)), fail, settle).is_err());
            assert!(waited.get());
            assert_eq!(used(&pool, 5, 2), if is_idle { 1 } else { 2 });
        }
    }
}
