//! Ctrl-C in the middle of a simulation: the first one ends it in order, a later one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::console::screen::note_after_ctrl_c;
use crate::failure::ExitCode;
use crate::process::signal::Signals;

/// A flag that Ctrl-C or SIGTERM raises, for threads that look at it now and then.
pub(in crate::commands) fn on_interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (listens, listening) = std::sync::mpsc::channel();
    // Ends with the process: nothing waits for it.
    std::thread::Builder::new().name("interruption".to_owned()).spawn(move || {
        runtime.block_on(async {
            let mut signals = Signals::new();
            let _ = listens.send(());
            signals.first().await;
            raised.store(true, Ordering::Relaxed);
            note_after_ctrl_c("interrupted: ending what is under way; once more to stop at once");
            signals.second(|| ()).await;
        });
        std::process::exit(ExitCode::Interrupted as i32);
    })?;
    // From now on a signal ends nothing by itself.
    let _ = listening.recv();
    Ok(flag)
}
