//! The receiving side of a transfer.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::Stream;
use murmur_protocol::event::Misbehaviour;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Event, Payload, PeerId, codec};
use tokio::time::timeout;

use super::{ACKNOWLEDGEMENT, DIGEST_BYTES};
use crate::bounds::{CHUNK_BYTES, HEADER_BYTES_MAX, HEADER_TIMEOUT, PROGRESS_TIMEOUT};
use crate::frame::{FrameError, read_frame};
use crate::pace::Pace;
use crate::shared::{InboundBudget, Shared};

/// Why a transfer was not received.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    /// No honest peer does this.
    #[error(transparent)]
    Misbehaved(#[from] Misbehaviour),
    /// The sender gave up or is gone: nobody's fault.
    #[error("it broke off: {0}")]
    BrokenOff(#[from] io::Error),
    /// Nothing came.
    #[error("nothing moved for {} s", .0.as_secs())]
    Stalled(Duration),
}

/// Receives one transfer, hands it to the core and acknowledges it. Tells the core of misbehaviour.
/// `own_budget` is the peer's own share of the memory for what comes in.
pub(crate) async fn receive(shared: &Shared, peer: PeerId, own_budget: &InboundBudget, mut stream: Stream) {
    match receive_and_acknowledge(shared, peer, own_budget, &mut stream).await {
        Ok(()) => {}
        Err(ReceiveError::Misbehaved(misbehaviour)) => {
            // Reset first: the core may be busy.
            drop(stream);
            shared.emit(Event::PeerMisbehaved { peer, misbehaviour }).await;
        }
        Err(error) => tracing::debug!(%peer, %error, "an inbound transfer came to nothing"),
    }
}

async fn receive_and_acknowledge(
    shared: &Shared,
    peer: PeerId,
    own_budget: &InboundBudget,
    stream: &mut Stream,
) -> Result<(), ReceiveError> {
    let header = within(HEADER_TIMEOUT, read_header(stream)).await?;
    let length = within(PROGRESS_TIMEOUT, read_length(stream)).await?;
    if length > shared.payload_bytes_max {
        return Err(Misbehaviour::WrongLength { expected: shared.payload_bytes_max, actual: length }.into());
    }
    // Its own first: while it waits for that, it holds nothing that others need.
    let share = (own_budget.acquire(length).await, shared.inbound_budget.acquire(length).await);
    let payload = read_payload(stream, length, &shared.download).await?;
    shared.emit(Event::TransferReceived { peer, header, payload }).await;
    drop(share);
    within(PROGRESS_TIMEOUT, acknowledge(stream)).await
}

async fn read_header(stream: &mut Stream) -> Result<TransferHeader, ReceiveError> {
    let bytes = match read_frame(stream, HEADER_BYTES_MAX).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(ReceiveError::BrokenOff(io::ErrorKind::UnexpectedEof.into())),
        Err(FrameError::Io(error)) => return Err(error.into()),
        Err(error @ FrameError::TooLong { .. }) => return Err(Misbehaviour::Garbage(error.to_string()).into()),
    };
    Ok(codec::decode(&bytes).map_err(|error| Misbehaviour::Garbage(error.to_string()))?)
}

async fn read_length(stream: &mut Stream) -> Result<u64, ReceiveError> {
    let mut length = [0; 8];
    stream.read_exact(&mut length).await?;
    Ok(u64::from_le_bytes(length))
}

/// Reads `length` bytes and their digest. The buffer doubles as bytes arrive, up to the announced length, so that an
/// announcement alone costs nothing.
async fn read_payload(stream: &mut Stream, length: u64, download: &Pace) -> Result<Payload, ReceiveError> {
    let too_long = Misbehaviour::WrongLength { expected: isize::MAX as u64, actual: length };
    let length = usize::try_from(length).map_err(|_| too_long)?;
    let mut bytes: Vec<u8> = Vec::new();
    let mut hasher = blake3::Hasher::new();
    while bytes.len() < length {
        let start = bytes.len();
        let chunk = CHUNK_BYTES.min(length - start);
        if bytes.capacity() - start < chunk {
            bytes.reserve_exact(start.max(chunk).min(length - start));
        }
        bytes.resize(start + chunk, 0);
        download.wait(chunk).await;
        within(PROGRESS_TIMEOUT, fill(stream, &mut bytes[start..])).await?;
        hasher.update(&bytes[start..]);
    }
    let mut digest = [0; DIGEST_BYTES];
    within(PROGRESS_TIMEOUT, fill(stream, &mut digest)).await?;
    if hasher.finalize() != digest {
        return Err(Misbehaviour::Garbage("a payload whose digest is another".to_owned()).into());
    }
    Ok(Payload::from(bytes))
}

async fn fill(stream: &mut Stream, buffer: &mut [u8]) -> Result<(), ReceiveError> {
    Ok(stream.read_exact(buffer).await?)
}

async fn acknowledge(stream: &mut Stream) -> Result<(), ReceiveError> {
    stream.write_all(&[ACKNOWLEDGEMENT]).await?;
    Ok(stream.close().await?)
}

async fn within<Output>(
    limit: Duration,
    step: impl Future<Output = Result<Output, ReceiveError>>,
) -> Result<Output, ReceiveError> {
    timeout(limit, step).await.unwrap_or(Err(ReceiveError::Stalled(limit)))
}
