//! Ctrl-C in the middle of a simulation: the first one ends it in order, a later one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::console::screen::note_after_ctrl_c;
use crate::process::signal::hear_aside;

/// A flag that Ctrl-C or SIGTERM raises, for threads that look at it now and then.
pub(in crate::commands) fn on_interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    hear_aside(async move |mut signals| {
        signals.first().await;
        raised.store(true, Ordering::Relaxed);
        note_after_ctrl_c("interrupted: ending what is under way; once more to stop at once");
        signals.second(|| ()).await;
    })?;
    Ok(flag)
}
