//! Control messages on an established control stream: one task reads, another writes, so that two peers that both write
//! first never wait for each other.

use futures::io::{ReadHalf, WriteHalf};
use futures::{AsyncWriteExt, io};
use murmur_protocol::Misbehaviour;
use murmur_protocol::codec::{self, CONTROL_BYTES_MAX};
use murmur_protocol::message::Message;
use murmur_protocol::{Event, PeerId};
use tokio::sync::mpsc;

use crate::bounds::{CONTROL_BURST, CONTROL_BYTES_PER_SECOND, CONTROL_MESSAGE_COST, PROGRESS_TIMEOUT};
use crate::frame::{FrameError, read_frame, write_frame};
use crate::moving::within;
use crate::rate_limit::RateLimiter;
use crate::scope::Scope;
use crate::shared::Shared;
use crate::streams::Stream;

/// Why no more messages come from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderEnd {
    /// The stream ended or failed.
    Closed,
    /// The peer sent something else than messages, and the core was told.
    Misbehaved,
}

/// Hands messages of a peer so far away to the core until the stream ends. While the core is busy, or messages come faster than any honest peer
/// sends them, nothing is read.
pub(crate) async fn read_messages(
    shared: &Shared,
    peer: PeerId,
    scope: Scope,
    mut reader: ReadHalf<Stream>,
) -> ReaderEnd {
    let limiter = RateLimiter::new(Some(CONTROL_BYTES_PER_SECOND), CONTROL_BURST);
    loop {
        let garbage = match read_frame(&mut reader, CONTROL_BYTES_MAX).await {
            Ok(Some(bytes)) => match codec::decode::<Message>(&bytes) {
                Ok(message) => {
                    shared.download.count(bytes.len());
                    limiter.wait(bytes.len() + CONTROL_MESSAGE_COST).await;
                    shared.emit(Event::MessageReceived { peer, message: scope.screen(message) }).await;
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Err(error @ FrameError::TooLong { .. }) => error.to_string(),
            Ok(None) => return ReaderEnd::Closed,
            Err(FrameError::Io(error)) => {
                tracing::debug!(%peer, %error, "a control stream failed");
                return ReaderEnd::Closed;
            }
        };
        shared.emit(Event::PeerMisbehaved { peer, misbehaviour: Misbehaviour::Garbage(garbage) }).await;
        return ReaderEnd::Misbehaved;
    }
}

/// Writes queued messages until the queue is closed, then closes this half of the stream.
///
/// # Errors
/// When the stream fails, or the peer reads nothing for twenty seconds.
pub(crate) async fn write_messages(
    shared: &Shared,
    mut queue: mpsc::Receiver<Message>,
    mut writer: WriteHalf<Stream>,
) -> io::Result<()> {
    while let Some(message) = queue.recv().await {
        let bytes = codec::encode(&message);
        // Counted, never delayed: a late control message would make everything else late.
        shared.upload.count(bytes.len());
        within(PROGRESS_TIMEOUT, write_frame(&mut writer, &bytes)).await?;
    }
    within(PROGRESS_TIMEOUT, writer.close()).await
}
