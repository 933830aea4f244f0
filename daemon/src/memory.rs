//! Memory that training has used goes back to the system when training rests.
//!
//! The allocator keeps freed pages for the next step, in huge pages where the system has them: training is faster for it
//! (BENCHMARKS.md). A member that only serves needs neither, and on a shared machine others do.

/// Gives back what the allocator holds and nobody uses. Takes milliseconds; not between two steps.
pub(crate) fn give_back() {
    // SAFETY: it may be called from any thread at any time, also where another allocator is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// The process trains no more: small pages from now on, or the system fills up around every small remainder again what
/// was given back.
pub(crate) fn use_small_pages() {
    // Without it the process is only larger.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
