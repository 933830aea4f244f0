//! The sending side of a transfer.

use std::future::Future;
use std::io;

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::Stream;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Payload, codec};
use tokio::time::timeout;

use super::ACKNOWLEDGEMENT;
use crate::bounds::{CHUNK_BYTES, PROGRESS_TIMEOUT};
use crate::frame::write_frame;
use crate::pace::Pace;
use crate::streams::{BULK_PROTOCOL, OpenError, StreamOpener};

/// Why a transfer did not arrive, as far as this side knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No stream.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The peer did not read, or did not acknowledge.
    #[error("nothing moved for {} s", PROGRESS_TIMEOUT.as_secs())]
    Stalled,
    /// The peer dropped the stream, or the connection is gone.
    #[error("the peer dropped it: {0}")]
    Dropped(#[from] io::Error),
    /// The peer closed the stream without a word, or with a wrong one.
    #[error("the peer did not acknowledge it")]
    Unacknowledged,
}

/// Sends a payload straight from the shared memory and waits for the acknowledgement.
pub(crate) async fn send(
    opener: StreamOpener,
    header: &TransferHeader,
    payload: &Payload,
    upload: &Pace,
) -> Result<(), SendError> {
    let mut stream = opener.open(BULK_PROTOCOL).await?;
    // The transfer must not keep a connection open that has lost its control stream.
    drop(opener);
    progress(write_frame(&mut stream, &codec::encode(header))).await?;
    progress(stream.write_all(&(payload.len() as u64).to_le_bytes())).await?;
    let mut hasher = blake3::Hasher::new();
    for chunk in payload.bytes().chunks(CHUNK_BYTES) {
        hasher.update(chunk);
        // A wait of our own choice is no stall.
        upload.wait(chunk.len()).await;
        progress(stream.write_all(chunk)).await?;
    }
    progress(stream.write_all(hasher.finalize().as_bytes())).await?;
    progress(stream.flush()).await?;
    await_acknowledgement(&mut stream).await
}

async fn await_acknowledgement(stream: &mut Stream) -> Result<(), SendError> {
    let mut word = [0];
    if progress(stream.read(&mut word)).await? != 1 || word != [ACKNOWLEDGEMENT] {
        return Err(SendError::Unacknowledged);
    }
    // It has arrived; how the stream ends does not matter any more.
    let _ = progress(stream.close()).await;
    Ok(())
}

async fn progress<Output>(step: impl Future<Output = io::Result<Output>>) -> Result<Output, SendError> {
    Ok(timeout(PROGRESS_TIMEOUT, step).await.map_err(|_| SendError::Stalled)??)
}
