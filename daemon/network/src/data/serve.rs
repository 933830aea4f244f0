//! The serving side: answers a peer's requests on one connection.

use std::io;
use std::sync::Arc;

use futures::AsyncWriteExt;
use murmur_protocol::Misbehaviour;
use murmur_protocol::shards::{ShardAnswer, ShardOffer, ShardRequest};
use murmur_protocol::{Event, Payload, PeerId, codec};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Shelf;
use crate::bounds::{
    DATA_CHUNK_BYTES, DATA_PROGRESS_TIMEOUT, DATA_REQUESTS_PER_CONNECTION_MAX, HEADER_TIMEOUT, SHARD_WORDS_BYTES_MAX,
};
use crate::frame::{FrameError, read_frame, write_frame};
use crate::moving::within;
use crate::rate_limit::RateLimiter;
use crate::shared::Shared;
use crate::streams::{Stream, WeakOpener};

/// Serves one connection until it closes, and lists it as one on which the peer can be asked. `network`: in which the peer is
/// reached, where that is known; `turns` are the peer's, over all its connections.
pub(crate) async fn attend(
    shared: Arc<Shared>,
    peer: PeerId,
    link: (u64, WeakOpener),
    mut requests: mpsc::Receiver<Stream>,
    (network, turns): (Option<u128>, Arc<Semaphore>),
) {
    let _registration = shared.data.register(peer, link.0, link.1);
    let mut answering = JoinSet::new();
    loop {
        tokio::select! {
            request = requests.recv() => match request {
                Some(stream) if shared.data.shelf.is_some() && answering.len() < DATA_REQUESTS_PER_CONNECTION_MAX => {
                    answering.spawn(answer(shared.clone(), peer, stream, (network, turns.clone())));
                }
                // Dropping a stream resets it: the peer asks for too much at once, or nothing is shared here.
                Some(_) => {}
                None => return,
            },
            Some(_) = answering.join_next() => {}
        }
    }
}

async fn answer(
    shared: Arc<Shared>,
    peer: PeerId,
    mut stream: Stream,
    (network, turns): (Option<u128>, Arc<Semaphore>),
) {
    let Some(shelf) = &shared.data.shelf else { return };
    let request = match timeout(HEADER_TIMEOUT, read_frame(&mut stream, SHARD_WORDS_BYTES_MAX)).await {
        Ok(Ok(Some(bytes))) => codec::decode::<ShardRequest>(&bytes).map_err(|error| error.to_string()),
        Ok(Err(error @ FrameError::TooLong { .. })) => Err(error.to_string()),
        Ok(Ok(None) | Err(FrameError::Io(_))) | Err(_) => return,
    };
    let from = (shelf, &*shared.upload);
    let sent = match request {
        Ok(ShardRequest::Holdings) => reply(&mut stream, from, ShardOffer::Unasked, None).await,
        Ok(ShardRequest::Shard { index, offset }) => {
            let shard = shelf.shard(usize::from(index)).filter(|shard| offset < shard.len() as u64);
            let turn = turns.try_acquire_owned().ok();
            // Whoever asks for what it cannot have takes no place from others.
            let may_have = shard.is_some() && turn.is_some();
            let place = if may_have { shared.data.sending.take(Instant::now(), network) } else { None };
            match (shard, place) {
                (None, _) => reply(&mut stream, from, ShardOffer::Missing, None).await,
                (Some(_), None) => reply(&mut stream, from, ShardOffer::Busy, None).await,
                (Some(shard), Some(mut place)) => {
                    let offer = ShardOffer::Coming { length: shard.len() as u64 };
                    tokio::select! {
                        sent = reply(&mut stream, from, offer, Some((&shard, offset as usize))) => sent,
                        // The stream is reset.
                        () = place.given_way() => Err(io::Error::other("it gave way to another peer")),
                    }
                }
            }
        }
        Err(garbage) => {
            drop(stream);
            shared.emit(Event::PeerMisbehaved { peer, misbehaviour: Misbehaviour::Garbage(garbage) }).await;
            return;
        }
    };
    if let Err(error) = sent {
        tracing::debug!(%peer, %error, "a peer did not take the shard that it asked for");
    }
}

async fn reply(
    stream: &mut Stream,
    (shelf, upload): (&Shelf, &RateLimiter),
    offer: ShardOffer,
    shard: Option<(&Payload, usize)>,
) -> io::Result<()> {
    let answer = ShardAnswer { held: shelf.held(), offer };
    within(DATA_PROGRESS_TIMEOUT, write_frame(stream, &codec::encode(&answer))).await?;
    if let Some((shard, offset)) = shard {
        for chunk in shard.bytes()[offset..].chunks(DATA_CHUNK_BYTES) {
            upload.wait(chunk.len()).await;
            within(DATA_PROGRESS_TIMEOUT, stream.write_all(chunk)).await?;
            shelf.count_served(chunk.len());
        }
    }
    within(DATA_PROGRESS_TIMEOUT, stream.close()).await
}
