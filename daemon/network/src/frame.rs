//! Length-prefixed frames: a little-endian `u32`, then that many bytes. An announced length over the limit is refused
//! before anything is allocated.

use std::io;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// It announces more bytes than any honest frame has.
    #[error("a frame of {announced} bytes where the limit is {limit}")]
    TooLong { announced: u32, limit: usize },
    /// The stream failed, or ended within a frame.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads one frame; `None` where the stream ends before one begins.
pub(crate) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Option<Vec<u8>>, FrameError> {
    let mut length = [0; 4];
    let first = reader.read(&mut length).await?;
    if first == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut length[first..]).await?;
    let announced = u32::from_le_bytes(length);
    if announced as usize > limit {
        return Err(FrameError::TooLong { announced, limit });
    }
    let mut bytes = vec![0; announced as usize];
    reader.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

/// Writes one frame and flushes.
///
/// # Panics
/// When our own bytes are over 4 GiB; frames are bounded far below that.
pub(crate) async fn write_frame(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).expect("our own frames are bounded");
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(bytes);
    writer.write_all(&frame).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn frames_survive_the_stream_and_end_cleanly() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, b"one").await.expect("memory");
        write_frame(&mut bytes, b"").await.expect("memory");
        let mut reader = Cursor::new(bytes);
        assert_eq!(read_frame(&mut reader, 3).await.expect("whole"), Some(b"one".to_vec()));
        assert_eq!(read_frame(&mut reader, 3).await.expect("whole"), Some(Vec::new()));
        assert_eq!(read_frame(&mut reader, 3).await.expect("ended"), None);
    }

    #[tokio::test]
    async fn a_long_frame_is_refused_and_a_short_one_is_an_error() {
        let mut reader = Cursor::new([255, 255, 255, 255]);
        assert!(matches!(read_frame(&mut reader, 10).await, Err(FrameError::TooLong { announced: u32::MAX, .. })));
        let mut reader = Cursor::new([2, 0, 0, 0, 7]);
        assert!(matches!(read_frame(&mut reader, 10).await, Err(FrameError::Io(_))));
        let mut reader = Cursor::new([2, 0]);
        assert!(matches!(read_frame(&mut reader, 10).await, Err(FrameError::Io(_))));
    }
}
