//! The wish to stop from outside: Ctrl-C, or SIGTERM where there is such a thing.

#[cfg(unix)]
pub(crate) async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("the runtime handles signals");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
pub(crate) async fn signal() {
    let _ = tokio::signal::ctrl_c().await;
}
