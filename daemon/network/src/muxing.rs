//! One stream on a connection that no libp2p swarm has: for what comes before one, or needs none.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use libp2p::StreamProtocol;
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox};
use multistream_select::{Negotiated, listener_select_proto};

use crate::bounds::NEGOTIATING_STREAMS_MAX;

/// The first stream on which the other side wants to speak this protocol. All else that it asks for does not exist here.
pub(crate) async fn first_stream(
    muxer: &mut StreamMuxerBox,
    protocol: StreamProtocol,
) -> io::Result<Negotiated<SubstreamBox>> {
    let mut negotiating = FuturesUnordered::new();
    poll_fn(|context| {
        loop {
            match negotiating.poll_next_unpin(context) {
                Poll::Ready(Some(Ok((_, stream)))) => return Poll::Ready(Ok(stream)),
                Poll::Ready(Some(Err(_))) => continue,
                Poll::Ready(None) | Poll::Pending => {}
            }
            if negotiating.len() < NEGOTIATING_STREAMS_MAX
                && let Poll::Ready(stream) = muxer.poll_inbound_unpin(context)
            {
                negotiating.push(listener_select_proto(stream?, [protocol.clone()]));
                continue;
            }
            match muxer.poll_unpin(context) {
                Poll::Ready(event) => drop(event?),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// A stream of this side's.
pub(crate) async fn open_stream(muxer: &mut StreamMuxerBox) -> io::Result<SubstreamBox> {
    poll_fn(|context| {
        if let Poll::Ready(stream) = muxer.poll_outbound_unpin(context) {
            return Poll::Ready(stream);
        }
        while let Poll::Ready(event) = muxer.poll_unpin(context) {
            event?;
        }
        Poll::Pending
    })
    .await
}

/// Moves the connection's bytes while a conversation on one of its streams goes on. What has arrived before the
/// connection was lost still counts.
pub(crate) async fn driven<Outcome>(
    muxer: &mut StreamMuxerBox,
    conversation: impl Future<Output = Outcome>,
) -> io::Result<Outcome> {
    let mut conversation = pin!(conversation);
    poll_fn(|context| {
        let lost = loop {
            match muxer.poll_unpin(context) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => break Some(error),
                Poll::Pending => break None,
            }
        };
        match (conversation.as_mut().poll(context), lost) {
            (Poll::Ready(outcome), _) => Poll::Ready(Ok(outcome)),
            (Poll::Pending, Some(error)) => Poll::Ready(Err(error)),
            (Poll::Pending, None) => Poll::Pending,
        }
    })
    .await
}
