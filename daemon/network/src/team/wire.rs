//! Words as bytes: the length of the header in 4 bytes and of the body in 8, little-endian, then both. A word without a header is a
//! heartbeat.

use std::io;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use murmur_protocol::Payload;

use super::{HEADER_BYTES_MAX, SILENCE_MAX};
use crate::moving::within;
use crate::rate_limit::RateLimiter;

/// Something that one machine of a team says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamWord {
    /// What it is: at least a byte, at most a control message.
    pub header: Vec<u8>,
    /// What is large of it; may be empty.
    pub body: Payload,
}

/// Bytes of the two lengths.
const LENGTHS_BYTES: usize = 12;

/// A body grows by so much at a time as it comes: an announcement alone takes no memory.
const PIECE_BYTES: usize = 1 << 20;

/// So much is drawn from a cap at a time: what else the machine sends has its turn in between.
const DRAWN_BYTES: usize = 1 << 14;

/// Reads the next word, no faster than the cap allows; `None` where the stream ends before one begins.
///
/// # Errors
/// When it is silent for too long, ends within a word, or announces more than a header or `body_bytes_max`.
pub(super) async fn read(
    reader: &mut (impl AsyncRead + Unpin),
    body_bytes_max: u64,
    download: &RateLimiter,
) -> io::Result<Option<TeamWord>> {
    loop {
        let mut lengths = [0; LENGTHS_BYTES];
        let first = within(SILENCE_MAX, reader.read(&mut lengths)).await?;
        if first == 0 {
            return Ok(None);
        }
        within(SILENCE_MAX, reader.read_exact(&mut lengths[first..])).await?;
        let (header, body) = lengths.split_first_chunk::<4>().expect("twelve bytes");
        let header_bytes = u32::from_le_bytes(*header) as usize;
        let body_bytes = u64::from_le_bytes(*body.first_chunk().expect("eight bytes"));
        if header_bytes > HEADER_BYTES_MAX || body_bytes > body_bytes_max || (header_bytes == 0 && body_bytes > 0) {
            let message =
                format!("a word of {header_bytes} and {body_bytes} bytes, where {body_bytes_max} are the most");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        download.count(LENGTHS_BYTES);
        let header = read_bytes(reader, header_bytes as u64, download).await?;
        let body = Payload::from(read_bytes(reader, body_bytes, download).await?);
        if !header.is_empty() {
            return Ok(Some(TeamWord { header, body }));
        }
    }
}

async fn read_bytes(reader: &mut (impl AsyncRead + Unpin), count: u64, download: &RateLimiter) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < count {
        let (start, left) = (bytes.len(), count - bytes.len() as u64);
        bytes.resize(start + left.min(PIECE_BYTES as u64) as usize, 0);
        let mut place = &mut bytes[start..];
        while !place.is_empty() {
            let read = within(SILENCE_MAX, reader.read(place)).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            download.wait(read).await;
            place = &mut place[read..];
        }
    }
    Ok(bytes)
}

/// Writes a word, no faster than the cap allows, and flushes.
///
/// # Panics
/// When our own header is longer than one is.
pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    word: &TeamWord,
    upload: &RateLimiter,
) -> io::Result<()> {
    assert!((1..=HEADER_BYTES_MAX).contains(&word.header.len()), "our own headers are bounded");
    let mut head = Vec::with_capacity(LENGTHS_BYTES + word.header.len());
    head.extend_from_slice(&(word.header.len() as u32).to_le_bytes());
    head.extend_from_slice(&(word.body.len() as u64).to_le_bytes());
    head.extend_from_slice(&word.header);
    for bytes in head.chunks(DRAWN_BYTES).chain(word.body.bytes().chunks(DRAWN_BYTES)) {
        upload.wait(bytes.len()).await;
        writer.write_all(bytes).await?;
    }
    writer.flush().await
}

/// Writes that there is nothing to say.
pub(super) async fn write_heartbeat(writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    writer.write_all(&[0; LENGTHS_BYTES]).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use futures::io::Cursor;

    use super::*;

    fn free() -> RateLimiter {
        RateLimiter::new(None, std::time::Duration::ZERO)
    }

    fn word(header: &[u8], body: &[u8]) -> TeamWord {
        TeamWord { header: header.to_vec(), body: Payload::from(body.to_vec()) }
    }

    #[tokio::test]
    async fn words_survive_the_stream_and_heartbeats_are_nothing() -> io::Result<()> {
        let mut bytes = Vec::new();
        let words = [word(b"a", b""), word(b"bc", &[7; 3 << 20])];
        for word in &words {
            write_heartbeat(&mut bytes).await?;
            write(&mut bytes, word, &free()).await?;
        }
        let mut reader = Cursor::new(bytes);
        for word in words {
            assert_eq!(read(&mut reader, 3 << 20, &free()).await?, Some(word));
        }
        assert_eq!(read(&mut reader, 3 << 20, &free()).await?, None);
        Ok(())
    }

    #[tokio::test]
    async fn long_words_are_refused_before_anything_is_allocated_and_cut_ones_are_errors() {
        let announcing = |header: u32, body: u64| [&header.to_le_bytes()[..], &body.to_le_bytes()[..], b"abc"].concat();
        for (bytes, kind) in [
            (announcing(u32::MAX, 0), io::ErrorKind::InvalidData),
            (announcing(1, u64::MAX), io::ErrorKind::InvalidData),
            (announcing(1, 101), io::ErrorKind::InvalidData),
            (announcing(0, 1), io::ErrorKind::InvalidData),
            (announcing(1, 100), io::ErrorKind::UnexpectedEof),
            (vec![1, 0], io::ErrorKind::UnexpectedEof),
        ] {
            let error = read(&mut Cursor::new(&bytes), 100, &free()).await.expect_err("no word");
            assert_eq!(error.kind(), kind, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_side_that_is_silent_is_gone() {
        let mut reader = futures::stream::pending::<io::Result<Vec<u8>>>().into_async_read();
        let error = read(&mut reader, 10, &free()).await.expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
