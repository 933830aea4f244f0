//! An allocator that counts. A program with it has one test: another one's allocations would be counted as well.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// In bytes: reference counts and the like are below; a buffer of a test's model is well above.
const LARGE: usize = 512;

static BYTES: AtomicUsize = AtomicUsize::new(0);

static LARGE_ONES: AtomicUsize = AtomicUsize::new(0);

fn count(size: usize) {
    BYTES.fetch_add(size, Ordering::SeqCst);
    LARGE_ONES.fetch_add(usize::from(size > LARGE), Ordering::SeqCst);
}

struct Counting;

// SAFETY: everything is the system allocator's, which upholds the contract; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `run` has asked for, and how often it asked for many at once.
pub(crate) fn allocated(run: impl FnOnce()) -> (usize, usize) {
    let now = || (BYTES.load(Ordering::SeqCst), LARGE_ONES.load(Ordering::SeqCst));
    let before = now();
    run();
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}
