//! Into how large parts work is cut.

/// Tests have small ones, so that small tensors still have more parts than one; with [`in_production`] they have these.
pub(crate) struct Sizes {
    /// Threads of a block. Tests have few, which take turns.
    pub(crate) threads: usize,
    /// Rows of a block that sums columns.
    pub(crate) strip: usize,
    /// Queries of a head that are attended at once by products: few enough that most of what none of them sees is not computed.
    pub(crate) queries_at_once: usize,
    /// Attention scores that are held at once, unless those queries of one sequence have more.
    pub(crate) scores: usize,
    /// Logits that are held at once, unless `logit_rows` rows have more.
    pub(crate) logits: usize,
    /// Rows of logits that are held at once, at least.
    pub(crate) logit_rows: usize,
    /// Values of a piece of what is offloaded, unless it is a matrix that Muon steps: 64 MiB of each vector (a guess).
    pub(crate) piece_values: usize,
    /// Values of a panel of a coded base, unless a row has more: few beside a base, enough rows for a product of full speed.
    pub(crate) panel_values: usize,
}

static PRODUCTION: Sizes = Sizes {
    threads: 256,
    strip: 256,
    queries_at_once: 128,
    scores: 32 << 20,
    logits: 32 << 20,
    logit_rows: 128,
    piece_values: 16 << 20,
    panel_values: 16 << 20,
};

#[cfg(not(test))]
pub(crate) fn sizes() -> &'static Sizes {
    &PRODUCTION
}

#[cfg(test)]
pub(crate) use in_tests::{in_production, sizes};

#[cfg(test)]
mod in_tests {
    use std::cell::Cell;

    use super::{PRODUCTION, Sizes};

    static SMALL: Sizes = Sizes {
        threads: 64,
        strip: 16,
        queries_at_once: 5,
        scores: 600,
        logits: 600,
        logit_rows: 10,
        piece_values: 100,
        panel_values: 600,
    };

    thread_local! {
        static OF_THREAD: Cell<&'static Sizes> = const { Cell::new(&SMALL) };
    }

    pub(crate) fn sizes() -> &'static Sizes {
        OF_THREAD.get()
    }

    /// Has this thread cut work as outside of tests while it acts.
    pub(crate) fn in_production<R>(act: impl FnOnce() -> R) -> R {
        struct Before(&'static Sizes);
        impl Drop for Before {
            fn drop(&mut self) {
                OF_THREAD.set(self.0);
            }
        }
        let _before = Before(OF_THREAD.replace(&PRODUCTION));
        act()
    }
}
