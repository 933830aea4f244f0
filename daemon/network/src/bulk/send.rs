//! The sending side of a transfer.

use std::io;
use std::sync::Arc;

use futures::io::{ReadHalf, WriteHalf};
use futures::{AsyncReadExt, AsyncWriteExt, TryFutureExt};
use murmur_protocol::Misbehaviour;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Payload, codec};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use super::digest::RunningDigest;
use super::flow::{Flow, InFlight, TransferProgress};
use super::packing::{BLOCK_BYTES, Packer};
use super::{FORM_AND_LENGTH_BYTES, IN_BLOCKS, LAST_WORD, PLAIN, WORD_BYTES};
use crate::bounds::{PACKED_BELOW_WINDOW, PROGRESS_TIMEOUT, STALL_HEARD_WITHIN};
use crate::frame::write_frame;
use crate::moving::{Stalled, within};
use crate::rate_limit::RateLimiter;
use crate::streams::{BULK_PROTOCOL, OpenError, Stream, StreamOpener};

/// Why a transfer did not arrive, as far as this side knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No stream.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The peer did not read, or did not acknowledge.
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// The peer reads so slowly as no link is, or nothing although it was heard meanwhile.
    #[error(transparent)]
    Misbehaved(Misbehaviour),
    /// The peer dropped the stream, or the connection is gone.
    #[error("the peer dropped it: {0}")]
    Dropped(#[from] io::Error),
    /// The peer closed the stream without a word, or with a wrong one.
    #[error("the peer did not acknowledge it")]
    Unacknowledged,
}

/// Turns of the transfers to one peer, which are written one after the other: a line that breaks costs little.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// Held until no more than the window is left to be written. The next stream is opened then: agreeing on its protocol takes
    /// as long as what is on its way, and longer on a busy machine, and the line must not be idle meanwhile.
    opening: Arc<Mutex<()>>,
    /// Held while a transfer is written.
    writing: Arc<Mutex<()>>,
}

/// Sends a payload straight from the shared memory and waits for the acknowledgement. Its turn ends once all is written, so
/// that the next transfer can follow while this one is being confirmed.
pub(crate) async fn send(
    opener: StreamOpener,
    header: &TransferHeader,
    payload: &Payload,
    (upload, flow): (&RateLimiter, &Arc<Flow>),
    turns: Turns,
) -> Result<(), SendError> {
    let opens = turns.opening.lock_owned().await;
    let mut stream = opener.open(BULK_PROTOCOL).await?;
    // The transfer must not keep a connection open that has lost its control stream.
    drop(opener);
    // What is left of the one before is soon through: the other side does not wait long for a header.
    let turn = turns.writing.lock_owned().await;
    within(PROGRESS_TIMEOUT, write_frame(&mut stream, &codec::encode(header)).err_into::<SendError>()).await?;
    let transfer = flow.begin();
    let packer = (is_of_values(header) && transfer.window() < PACKED_BELOW_WINDOW).then(Packer::new);
    let mut announced = [if packer.is_some() { IN_BLOCKS } else { PLAIN }; FORM_AND_LENGTH_BYTES];
    announced[1..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    within(PROGRESS_TIMEOUT, stream.write_all(&announced).err_into::<SendError>()).await?;
    let activity = stream.activity().clone();
    let (reader, writer) = stream.split();
    // Both at once: confirmations come while bytes are still to be written.
    let written = async {
        let writer = Outgoing { writer, upload, transfer: &transfer }.write(payload, packer, opens).await?;
        drop(turn);
        Ok(writer)
    };
    let (mut writer, ()) = match futures::try_join!(written, listen(reader, &transfer)) {
        // Who is there, and says other things meanwhile, could have taken it.
        Err(SendError::Stalled(_)) if activity.is_fresh(STALL_HEARD_WITHIN) => {
            return Err(SendError::Misbehaved(Misbehaviour::Stalled));
        }
        sent => sent?,
    };
    // It has arrived; how the stream ends does not matter any more.
    let _ = within(PROGRESS_TIMEOUT, writer.close()).await;
    Ok(())
}

/// Whether it carries `f32`s, or may: slices are in the codec of the run.
fn is_of_values(header: &TransferHeader) -> bool {
    matches!(header, TransferHeader::State { .. } | TransferHeader::Replica { .. } | TransferHeader::Slices(_))
}

/// A payload on its way out.
struct Outgoing<'a> {
    writer: WriteHalf<Stream>,
    upload: &'a RateLimiter,
    transfer: &'a InFlight,
}

impl Outgoing<'_> {
    /// Writes the payload and its digest. `opens` is let go once no more than the window is left.
    async fn write(
        mut self,
        payload: &Payload,
        mut packer: Option<Packer>,
        opens: OwnedMutexGuard<()>,
    ) -> Result<WriteHalf<Stream>, SendError> {
        let bytes = payload.bytes();
        let mut digest = RunningDigest::default();
        let (mut rest, mut opens) = (&bytes[..], Some(opens));
        while !rest.is_empty() {
            opens = opens.filter(|_| rest.len() > self.transfer.window());
            let step = packer.as_ref().map_or_else(|| self.transfer.piece(), |_| BLOCK_BYTES);
            let (block, behind) = rest.split_at(step.min(rest.len()));
            rest = behind;
            digest.catch_up(&bytes[..bytes.len() - rest.len()]);
            match &mut packer {
                Some(packer) => self.put(packer.pack(block)).await?,
                None => self.put(block).await?,
            }
        }
        self.writer.write_all(digest.of(bytes).as_bytes()).await?;
        self.writer.flush().await?;
        self.transfer.end();
        Ok(self.writer)
    }

    /// Writes what may be written, piece by piece.
    async fn put(&mut self, mut bytes: &[u8]) -> Result<(), SendError> {
        while !bytes.is_empty() {
            let (piece, behind) = bytes.split_at(self.transfer.piece().min(bytes.len()));
            bytes = behind;
            self.upload.wait(piece.len()).await;
            if !self.transfer.try_admit(piece.len()) {
                self.writer.flush().await?;
                self.transfer.admit(piece.len()).await;
            }
            self.writer.write_all(piece).await?;
        }
        Ok(())
    }
}

/// Hears what has arrived until the peer has the whole.
async fn listen(mut reader: ReadHalf<Stream>, transfer: &InFlight) -> Result<(), SendError> {
    let (mut word, mut read) = ([0; WORD_BYTES], 0);
    loop {
        let (progress, look_at) = transfer.progress();
        match progress {
            TransferProgress::Moving => {}
            TransferProgress::Stalled => return Err(Stalled(PROGRESS_TIMEOUT).into()),
            TransferProgress::TooSlow => return Err(SendError::Misbehaved(Misbehaviour::Stalled)),
        }
        match timeout_at(look_at, reader.read(&mut word[read..])).await {
            Ok(Ok(0)) => return Err(SendError::Unacknowledged),
            Ok(bytes) => read += bytes?,
            Err(_) => {}
        }
        if read == WORD_BYTES {
            read = 0;
            match u32::from_le_bytes(word) {
                LAST_WORD if transfer.is_written() => return Ok(()),
                LAST_WORD => return Err(SendError::Unacknowledged),
                bytes => transfer.confirm(bytes as usize).map_err(|_| SendError::Unacknowledged)?,
            }
        }
    }
}
