//! The asking side: requests to one peer, and the bytes as they come.

use std::io;
use std::sync::Arc;

use futures::{AsyncReadExt, TryFutureExt};
use murmur_protocol::shards::{ShardAnswer, ShardOffer, ShardRequest, ShardSet};
use murmur_protocol::{PeerId, codec};

use super::DataExchange;
use crate::bounds::{DATA_CHUNK_BYTES, DATA_PROGRESS_TIMEOUT, SHARD_WORDS_BYTES_MAX};
use crate::frame::{FrameError, read_frame, write_frame};
use crate::moving::{Stalled, within};
use crate::rate_limit::RateLimiter;
use crate::streams::{DATA_PROTOCOL, OpenError, Stream};

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// There is no connection to the peer.
    #[error("the peer is not connected")]
    NotConnected,
    /// No stream.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Nothing came.
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// The peer gave up or is gone: nobody's fault.
    #[error("it broke off: {0}")]
    BrokenOff(#[from] io::Error),
    /// No honest peer sends this.
    #[error("the peer sent something else: {0}")]
    Garbage(String),
}

/// A peer's answer to a request for a shard.
#[derive(Debug)]
pub enum Offered {
    /// It does not have it.
    Missing,
    /// It sends enough already.
    Busy,
    /// Here it comes.
    Coming(ShardStream),
}

/// The bytes of a shard, as they arrive.
#[derive(Debug)]
pub struct ShardStream {
    stream: Stream,
    left: u64,
    download: Arc<RateLimiter>,
}

impl ShardStream {
    /// The next bytes, 16 KiB at most; `None` after the last. Nothing is read ahead, so a slow reader slows the sender
    /// down.
    ///
    /// # Errors
    /// When the peer breaks off, or 16 KiB take longer than the limit for progress.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ShardError> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; self.left.min(DATA_CHUNK_BYTES as u64) as usize];
        self.download.wait(bytes.len()).await;
        within(DATA_PROGRESS_TIMEOUT, self.stream.read_exact(&mut bytes).err_into::<ShardError>()).await?;
        self.left -= bytes.len() as u64;
        Ok(Some(bytes))
    }
}

impl DataExchange {
    /// Asks what a peer holds.
    pub(crate) async fn ask_holdings(&self, peer: PeerId) -> Result<ShardSet, ShardError> {
        let (_, answer) = self.ask(peer, ShardRequest::Holdings).await?;
        Ok(answer.held)
    }

    /// Asks for the bytes of a shard of `length` bytes, from `offset` on.
    pub(crate) async fn ask_shard(
        &self,
        peer: PeerId,
        index: u16,
        offset: u64,
        length: u64,
    ) -> Result<(ShardSet, Offered), ShardError> {
        let (stream, answer) = self.ask(peer, ShardRequest::Shard { index, offset }).await?;
        let offered = match answer.offer {
            ShardOffer::Coming { length: announced } if announced == length => Offered::Coming(ShardStream {
                stream,
                left: length.saturating_sub(offset),
                download: self.download.clone(),
            }),
            ShardOffer::Coming { length: announced } => {
                return Err(ShardError::Garbage(format!("a shard of {announced} bytes instead of {length}")));
            }
            ShardOffer::Missing => Offered::Missing,
            ShardOffer::Busy => Offered::Busy,
            ShardOffer::Unasked => return Err(ShardError::Garbage("no word about the shard".to_owned())),
        };
        Ok((answer.held, offered))
    }

    async fn ask(&self, peer: PeerId, request: ShardRequest) -> Result<(Stream, ShardAnswer), ShardError> {
        let opener = self.opener_soon(peer).await.ok_or(ShardError::NotConnected)?;
        let mut stream = opener.open(DATA_PROTOCOL).await?;
        // The request must not keep a connection open that has lost its control stream.
        drop(opener);
        within(DATA_PROGRESS_TIMEOUT, async {
            write_frame(&mut stream, &codec::encode(&request)).await?;
            let bytes = match read_frame(&mut stream, SHARD_WORDS_BYTES_MAX).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Err(FrameError::Io(error)) => return Err(error.into()),
                Err(error @ FrameError::TooLong { .. }) => return Err(ShardError::Garbage(error.to_string())),
            };
            let answer = codec::decode(&bytes).map_err(|error| ShardError::Garbage(error.to_string()))?;
            Ok((stream, answer))
        })
        .await
    }
}
