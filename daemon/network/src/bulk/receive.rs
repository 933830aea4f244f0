//! The receiving side of a transfer.

use std::io;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use murmur_protocol::Misbehaviour;
use murmur_protocol::message::TransferHeader;
use murmur_protocol::{Event, Payload, PeerId, codec};
use tokio::time::{Instant, timeout, timeout_at};

use super::digest::RunningDigest;
use super::packing::{BLOCK_BYTES, BLOCK_WORD_BYTES, NotPacked, unpack};
use super::room::{Held, Inflow};
use super::{DIGEST_BYTES, FORM_AND_LENGTH_BYTES, IN_BLOCKS, LAST_WORD, PLAIN};
use crate::bounds::{
    CHUNK_BYTES, CONFIRM_BYTES, CONFIRM_BYTES_MAX, CONFIRM_PERIOD, CONFIRM_PERIOD_MAX, HEADER_BYTES_MAX,
    HEADER_TIMEOUT, MOVED_BYTES_MAX, PROGRESS_TIMEOUT, ROOM_START_BYTES, ROOM_TIMEOUT, STALL_HEARD_WITHIN,
};
use crate::frame::{FrameError, read_frame};
use crate::moving::{Stalled, within};
use crate::shared::Shared;
use crate::streams::Stream;

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
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// Less came than any link carries.
    #[error("it came far slower than the peer's link carries")]
    TooSlow,
    /// There was no memory for it in time.
    #[error("there was no room for it")]
    NoRoom,
}

/// Receives one transfer, hands it to the core and acknowledges it. Tells the core of misbehaviour.
pub(crate) async fn receive(shared: &Shared, peer: PeerId, inflow: &Inflow, mut stream: Stream) {
    match receive_and_acknowledge(shared, peer, inflow, &mut stream).await {
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
    inflow: &Inflow,
    stream: &mut Stream,
) -> Result<(), ReceiveError> {
    let header = within(HEADER_TIMEOUT, read_header(stream)).await?;
    let is_part = matches!(header, TransferHeader::State { .. });
    let (is_in_blocks, length) = within(PROGRESS_TIMEOUT, read_form_and_length(stream)).await?;
    if length > shared.payload_bytes_max {
        return Err(Misbehaviour::WrongLength { expected: shared.payload_bytes_max, actual: length }.into());
    }
    let own_share = inflow.begin(length).await;
    let told = Told { unconfirmed: 0, at: None };
    let mut incoming = Incoming { shared, inflow, stream, came: 0, taken: Duration::ZERO, told, held: Held::new() };
    let received = incoming.read_payload(length, is_in_blocks).await;
    let held = incoming.held;
    let payload = match received {
        Err(ReceiveError::TooSlow) => return Err(stalled(inflow)),
        // Who is there, and says other things meanwhile, could have sent it.
        Err(ReceiveError::Stalled(_)) if stream.activity().is_fresh(STALL_HEARD_WITHIN) => return Err(stalled(inflow)),
        received => received?,
    };
    inflow.on_delivered(length, &own_share);
    if is_part {
        shared.copying.hear();
    }
    shared.emit(Event::TransferReceived { peer, header, payload }).await;
    drop((held, own_share));
    within(PROGRESS_TIMEOUT, acknowledge(stream)).await
}

fn stalled(inflow: &Inflow) -> ReceiveError {
    inflow.on_stalled();
    Misbehaviour::Stalled.into()
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

/// Whether the payload comes in blocks, and its length.
async fn read_form_and_length(stream: &mut Stream) -> Result<(bool, u64), ReceiveError> {
    let mut announced = [0; FORM_AND_LENGTH_BYTES];
    stream.read_exact(&mut announced).await?;
    let [form, length @ ..] = announced;
    match form {
        PLAIN | IN_BLOCKS => Ok((form == IN_BLOCKS, u64::from_le_bytes(length))),
        _ => Err(Misbehaviour::Garbage(format!("a payload in the form {form}")).into()),
    }
}

/// A payload on its way in.
struct Incoming<'a> {
    shared: &'a Shared,
    inflow: &'a Inflow,
    stream: &'a mut Stream,
    /// Bytes of its form so far.
    came: usize,
    /// The time that the peer has had so far: waits of this side do not count.
    taken: Duration,
    told: Told,
    held: Held,
}

impl Incoming<'_> {
    /// Reads `length` bytes and their digest. Memory is asked for as bytes arrive, each time as much as has come before, so that an
    /// announcement alone costs nothing. Once a peer has sent some the address space is taken for all of it: pages that nothing was
    /// written to are no memory, and the bytes need not move.
    async fn read_payload(&mut self, length: u64, is_in_blocks: bool) -> Result<Payload, ReceiveError> {
        let too_long = Misbehaviour::WrongLength { expected: isize::MAX as u64, actual: length };
        let length = usize::try_from(length).map_err(|_| too_long)?;
        let mut bytes: Vec<u8> = Vec::new();
        let mut room = 0;
        let mut running = RunningDigest::default();
        while bytes.len() < length {
            let start = bytes.len();
            if start == room {
                let more = start.max(ROOM_START_BYTES).min(length - start);
                self.make_room(more, length).await?;
                room += more;
                let whole = if start < MOVED_BYTES_MAX { room } else { length };
                bytes.try_reserve_exact(whole - start).map_err(|_| ReceiveError::NoRoom)?;
            }
            if is_in_blocks {
                // Rooms are of whole blocks.
                bytes.resize(room.min(start + BLOCK_BYTES), 0);
                self.read_block(&mut bytes[start..]).await?;
            } else {
                bytes.resize(room.min(start + CHUNK_BYTES), 0);
                let read = self.read_some(&mut bytes[start..]).await?;
                bytes.truncate(start + read);
            }
            running.catch_up(&bytes);
        }
        let mut digest = [0; DIGEST_BYTES];
        within(PROGRESS_TIMEOUT, fill(self.stream, &mut digest)).await?;
        if running.of(&bytes) != digest {
            return Err(Misbehaviour::Garbage("a payload whose digest is another".to_owned()).into());
        }
        Ok(Payload::from(bytes))
    }

    /// Reads the next block, whole.
    async fn read_block(&mut self, plain: &mut [u8]) -> Result<(), ReceiveError> {
        let mut word = [0; BLOCK_WORD_BYTES];
        self.read_all(&mut word).await?;
        let length = u32::from_le_bytes(word) as usize;
        let no_block = || ReceiveError::from(Misbehaviour::Garbage(format!("a block of {length} bytes")));
        if length == plain.len() {
            return self.read_all(plain).await;
        }
        if length > plain.len() {
            return Err(no_block());
        }
        let mut packed = vec![0; length];
        self.read_all(&mut packed).await?;
        unpack(&packed, plain).map_err(|NotPacked| no_block())
    }

    async fn read_all(&mut self, mut place: &mut [u8]) -> Result<(), ReceiveError> {
        while !place.is_empty() {
            let read = self.read_some(place).await?;
            place = &mut place[read..];
        }
        Ok(())
    }

    async fn make_room(&mut self, bytes: usize, length: usize) -> Result<(), ReceiveError> {
        let room = self.shared.room.grow(self.inflow, bytes as u64, length as u64, &mut self.held);
        // Several that wait for each other's memory must not wait for ever.
        timeout(ROOM_TIMEOUT, room).await.map_err(|_| ReceiveError::NoRoom)
    }

    /// Reads what is there, and tells the sender what has come, now and where nothing comes.
    async fn read_some(&mut self, place: &mut [u8]) -> Result<usize, ReceiveError> {
        if self.told.is_due() {
            self.confirm().await?;
        }
        let may_take = PROGRESS_TIMEOUT + Duration::from_secs_f64(self.came as f64 / self.inflow.rate_min());
        let begin = Instant::now();
        let too_slow = begin + may_take.saturating_sub(self.taken);
        let end = too_slow.min(begin + PROGRESS_TIMEOUT);
        let read = loop {
            let until = self.told.due_at().map_or(end, |due| due.min(end));
            match timeout_at(until, self.stream.read(place)).await {
                Ok(Ok(0)) => return Err(ReceiveError::BrokenOff(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => break read?,
                Err(_) if until == too_slow => return Err(ReceiveError::TooSlow),
                Err(_) if until == end => return Err(Stalled(PROGRESS_TIMEOUT).into()),
                Err(_) => self.confirm().await?,
            }
        };
        self.taken += begin.elapsed();
        self.shared.download.wait(read).await;
        self.came += read;
        self.told.unconfirmed += read;
        Ok(read)
    }

    async fn confirm(&mut self) -> Result<(), ReceiveError> {
        let bytes = u32::try_from(self.told.unconfirmed).expect("a few pieces");
        within(PROGRESS_TIMEOUT, say(self.stream, bytes)).await?;
        self.told = Told { unconfirmed: 0, at: Some(Instant::now()) };
        Ok(())
    }
}

/// What the sender knows of what has come.
struct Told {
    unconfirmed: usize,
    /// When it was last told.
    at: Option<Instant>,
}

impl Told {
    fn is_due(&self) -> bool {
        self.unconfirmed >= CONFIRM_BYTES_MAX || self.due_at().is_some_and(|due| due <= Instant::now())
    }

    /// When it is to be told; `None` where there is nothing to tell.
    fn due_at(&self) -> Option<Instant> {
        let period = if self.unconfirmed >= CONFIRM_BYTES { CONFIRM_PERIOD } else { CONFIRM_PERIOD_MAX };
        // The first word tells that the line is fast, so that more comes at once.
        let due = self.at.map_or_else(Instant::now, |at| at + period);
        (self.unconfirmed > 0).then_some(due)
    }
}

async fn fill(stream: &mut Stream, buffer: &mut [u8]) -> Result<(), ReceiveError> {
    Ok(stream.read_exact(buffer).await?)
}

async fn say(stream: &mut Stream, word: u32) -> Result<(), ReceiveError> {
    stream.write_all(&word.to_le_bytes()).await?;
    Ok(stream.flush().await?)
}

async fn acknowledge(stream: &mut Stream) -> Result<(), ReceiveError> {
    say(stream, LAST_WORD).await?;
    Ok(stream.close().await?)
}
