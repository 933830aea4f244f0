//! One connection after its greeting: a queue of words to send and one of words that have come, each with a task that lives as
//! long as the connection.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt};
use murmur_protocol::PeerId;
use tokio::sync::mpsc;

use super::{HEARTBEAT_PERIOD, TeamWord, WORDS_MAX, wire};
use crate::rate_limit::Throttle;

/// A connection to another machine of a team. It ends when this is dropped with all its senders, or the other side is gone.
#[derive(Debug)]
pub struct TeamLink {
    /// Who is at the other end.
    pub peer: PeerId,
    sender: TeamSender,
    words: mpsc::Receiver<Result<TeamWord, Closed>>,
}

/// Sends words on a connection.
#[derive(Clone, Debug)]
pub struct TeamSender(mpsc::Sender<TeamWord>);

/// Why a word was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// So many wait already that the other side does not keep up.
    #[error("too much waits to be sent")]
    Full,
    /// The connection is gone.
    #[error("the connection is closed")]
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Closed(pub String);

impl TeamSender {
    /// Hands a word over without waiting.
    ///
    /// # Errors
    /// When the queue is full, or the connection gone.
    pub fn try_send(&self, word: TeamWord) -> Result<(), Unsent> {
        self.0.try_send(word).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unsent::Full,
            mpsc::error::TrySendError::Closed(_) => Unsent::Closed,
        })
    }

    /// Waits until there is room, and hands a word over.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&self, word: TeamWord) -> Result<(), Unsent> {
        self.0.send(word).await.map_err(|_| Unsent::Closed)
    }
}

impl TeamLink {
    /// Of a connection whose greeting is over. Bodies of up to `body_bytes_max` are taken, and what moves
    /// is drawn from the throttle.
    pub(super) fn start(
        peer: PeerId,
        muxer: StreamMuxerBox,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        (body_bytes_max, throttle): (u64, Throttle),
    ) -> TeamLink {
        let (sender, outgoing) = mpsc::channel(WORDS_MAX);
        let (incoming, words) = mpsc::channel(WORDS_MAX);
        tokio::spawn(carry(muxer, stream, outgoing, incoming, (body_bytes_max, throttle)));
        TeamLink { peer, sender: TeamSender(sender), words }
    }

    /// A sender, which may outlive this.
    pub fn sender(&self) -> TeamSender {
        self.sender.clone()
    }

    /// The next word that comes.
    ///
    /// # Errors
    /// When the connection has ended, and why.
    pub async fn next(&mut self) -> Result<TeamWord, Closed> {
        self.words.recv().await.unwrap_or_else(|| Err(Closed("it was closed".to_owned())))
    }
}

/// Moves words both ways until either side ends.
async fn carry(
    mut muxer: StreamMuxerBox,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    outgoing: mpsc::Receiver<TeamWord>,
    incoming: mpsc::Sender<Result<TeamWord, Closed>>,
    (body_bytes_max, throttle): (u64, Throttle),
) {
    let (reader, writer) = stream.split();
    let driven = poll_fn(|context| {
        loop {
            // Streams that the other side opens beside the first are dropped.
            if let Poll::Ready(Ok(_)) = muxer.poll_inbound_unpin(context) {
                continue;
            }
            match muxer.poll_unpin(context) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    let receiving = receive_all(reader, &incoming, body_bytes_max, &throttle);
    tokio::pin!(receiving);
    let closed = tokio::select! {
        error = driven => {
            // What has arrived before still counts.
            let _ = tokio::time::timeout(HEARTBEAT_PERIOD, receiving).await;
            error.to_string()
        }
        ended = send_all(writer, outgoing, &throttle) => match ended {
            Ok(()) => "this side has closed it".to_owned(),
            Err(error) => error.to_string(),
        },
        ended = &mut receiving => match ended {
            Ok(()) => "the other side has closed it".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => "nothing has come from it for too long".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    tracing::debug!(%closed, "a connection of a team has ended");
    // Who has dropped the link does not want to know. A full queue is read first.
    let _ = incoming.send(Err(Closed(closed))).await;
    // A farewell is on its way; who is gone does not take it.
    let closing = poll_fn(|context| muxer.poll_close_unpin(context));
    let _ = tokio::time::timeout(HEARTBEAT_PERIOD, closing).await;
}

/// Ends once no sender is left and all is sent.
async fn send_all(
    mut writer: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<TeamWord>,
    throttle: &Throttle,
) -> io::Result<()> {
    loop {
        match tokio::time::timeout(HEARTBEAT_PERIOD, outgoing.recv()).await {
            Ok(Some(word)) => wire::write(&mut writer, &word, &throttle.upload).await?,
            Ok(None) => return writer.close().await,
            Err(_) => wire::write_heartbeat(&mut writer).await?,
        }
    }
}

async fn receive_all(
    mut reader: impl AsyncRead + Unpin,
    incoming: &mpsc::Sender<Result<TeamWord, Closed>>,
    body_bytes_max: u64,
    throttle: &Throttle,
) -> io::Result<()> {
    while let Some(word) = wire::read(&mut reader, body_bytes_max, &throttle.download).await? {
        if incoming.send(Ok(word)).await.is_err() {
            // Nobody reads any more; what is to be sent still goes out.
            return std::future::pending().await;
        }
    }
    Ok(())
}
