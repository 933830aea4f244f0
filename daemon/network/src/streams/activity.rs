//! A connection's streams, and when bytes last came on any of them: a connection on which something arrives is alive, though
//! its pings wait behind what it carries.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// When something came on a connection; clones share it.
#[derive(Clone, Debug)]
pub struct Activity {
    begin: Instant,
    /// Milliseconds after `begin`; 0 before something has come.
    heard: Arc<AtomicU64>,
}

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity { begin: Instant::now(), heard: Arc::default() }
    }

    /// Whether bytes have come within this time.
    pub fn is_fresh(&self, within: Duration) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && self.begin.elapsed().saturating_sub(Duration::from_millis(heard)) < within
    }

    /// Whether nothing has come so far.
    pub(crate) fn is_silent(&self) -> bool {
        self.heard.load(Ordering::Relaxed) == 0
    }

    /// Something has come.
    pub(crate) fn hear(&self) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(now.max(1), Ordering::Relaxed);
    }
}

/// One stream of a connection.
#[derive(Debug)]
pub struct Stream {
    inner: libp2p::swarm::Stream,
    activity: Activity,
}

impl Stream {
    pub(super) fn new(inner: libp2p::swarm::Stream, activity: Activity) -> Stream {
        Stream { inner, activity }
    }

    /// That of its connection.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(1..))) {
            self.activity.hear();
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}
