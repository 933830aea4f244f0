//! A stream whose short writes go out with what follows them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};

/// yamux's header of 12 bytes, and a short message behind it.
const SHORT_BYTES: usize = 128;

/// An encrypted stream. Each write to TLS is a record and a packet of its own, and yamux writes the header of a frame and its body
/// one after the other: they travel together, or short messages take twice the line. A long body is not copied for that.
pub(crate) struct Gathered<Inner> {
    inner: Inner,
    /// Written by the owner, and not yet to `inner`: at most [`SHORT_BYTES`].
    held: Vec<u8>,
}

impl<Inner: AsyncWrite + Unpin> Gathered<Inner> {
    pub(super) fn new(inner: Inner) -> Gathered<Inner> {
        Gathered { inner, held: Vec::with_capacity(SHORT_BYTES) }
    }

    /// Writes what is held, and of `more` what goes with it: so many bytes.
    fn poll_write_held(&mut self, context: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        while !self.held.is_empty() {
            let both = [IoSlice::new(&self.held), IoSlice::new(more)];
            let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(context, &both))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_held = written.min(self.held.len());
            self.held.drain(..of_held);
            if written > of_held {
                return Poll::Ready(Ok(written - of_held));
            }
        }
        Poll::Ready(Ok(0))
    }
}

impl<Inner: AsyncWrite + Unpin> AsyncWrite for Gathered<Inner> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.held.len() + bytes.len() <= SHORT_BYTES {
            this.held.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        match ready!(this.poll_write_held(context, bytes))? {
            0 => Pin::new(&mut this.inner).poll_write(context, bytes),
            written => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_held(context, &[]))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_write_held(context, &[]))?;
        Pin::new(&mut this.inner).poll_close(context)
    }
}

impl<Inner: AsyncRead + Unpin> AsyncRead for Gathered<Inner> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_read(context, bytes)
    }
}
