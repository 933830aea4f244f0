//! Connections of others that still negotiate: where there are too many, one gives way to the newcomer.
//!
//! What negotiates proves nothing yet: a socket that was opened and says nothing looks like a slow peer. An honest one is
//! through in a few round trips, so the oldest is the least likely to be one; and whoever wants to keep others out has many, so
//! it is one of the network that has the most. libp2p's swarm can only deny newcomers, so this
//! is a part of the transport. Connections through a relay have no address of their own; the limit on all holds for them.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::{AbortHandle, BoxFuture, abortable};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::{Multiaddr, PeerId, Transport};

use crate::bounds::{NEGOTIATING_MAX, NEGOTIATING_PER_HOST_MAX, NEGOTIATING_PER_NETWORK_MAX};
use crate::sources::{Source, Waiting, who_gives_way};
use crate::transport::BoxedTransport;

type Negotiated = io::Result<(PeerId, StreamMuxerBox)>;

/// Bounds what negotiates in a transport.
pub(crate) struct OldestGivesWay {
    transport: BoxedTransport,
    queue: Queue,
}

impl OldestGivesWay {
    pub(crate) fn guard(transport: BoxedTransport) -> BoxedTransport {
        OldestGivesWay { transport, queue: Queue::default() }.boxed()
    }
}

impl Transport for OldestGivesWay {
    type Output = (PeerId, StreamMuxerBox);
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, Negotiated>;
    type Dial = <BoxedTransport as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.transport.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.transport.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        self.transport.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let this = &mut *self;
        Pin::new(&mut this.transport).poll(context).map(|event| {
            let source = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => Source::of(send_back_addr),
                _ => None,
            };
            event.map_upgrade(|upgrade| this.queue.admit(source, upgrade))
        })
    }
}

/// What negotiates, oldest first, at most [`NEGOTIATING_MAX`].
#[derive(Default)]
pub(crate) struct Queue(Vec<Negotiating>);

struct Negotiating {
    source: Option<Source>,
    /// Lives as long as the negotiation.
    under_way: Weak<()>,
    handle: AbortHandle,
}

impl Queue {
    /// Lets one more negotiate, from this place.
    pub(crate) fn admit<Done: Send + 'static>(
        &mut self,
        source: Option<Source>,
        upgrade: impl Future<Output = io::Result<Done>> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<Done>> {
        self.0.retain(|negotiating| negotiating.under_way.strong_count() > 0);
        while let Some(oldest) = self.next_to_go(source) {
            self.0.remove(oldest).handle.abort();
        }
        let token = Arc::new(());
        let (upgrade, handle) = abortable(upgrade);
        self.0.push(Negotiating { source, under_way: Arc::downgrade(&token), handle });
        let negotiation = async move {
            let _token = token;
            upgrade.await.unwrap_or_else(|_| Err(io::Error::other("it said nothing for long, and newer ones came")))
        };
        negotiation.boxed()
    }

    /// Who gives way to a newcomer from there; `None` where there is room.
    fn next_to_go(&self, source: Option<Source>) -> Option<usize> {
        let first = |max: usize, is_alike: &dyn Fn(&Source) -> bool| {
            let mut alike = self.0.iter().enumerate().filter(|(_, it)| it.source.as_ref().is_some_and(is_alike));
            let oldest = alike.next().map(|(index, _)| index);
            oldest.filter(|_| alike.count() + 1 >= max)
        };
        let of_place = source.and_then(|source| {
            let of_host = first(NEGOTIATING_PER_HOST_MAX, &|other| other.host == source.host);
            of_host.or_else(|| first(NEGOTIATING_PER_NETWORK_MAX, &|other| other.network == source.network))
        });
        of_place.or_else(|| {
            let is_full = self.0.len() >= NEGOTIATING_MAX;
            let waiting = self.0.iter().map(|it| Waiting { source: it.source, is_silent: true });
            if is_full { who_gives_way(&waiting.collect::<Vec<_>>(), source) } else { None }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn from(address: &str) -> Option<Source> {
        Source::of(&address.parse().expect("an address"))
    }

    /// Whether each has been asked to give way, in the order of their arrival.
    fn gone(negotiations: Vec<BoxFuture<'static, Negotiated>>) -> Vec<bool> {
        negotiations.into_iter().map(|negotiation| negotiation.now_or_never().is_some()).collect()
    }

    fn arrivals(queue: &mut Queue, places: impl IntoIterator<Item = String>) -> Vec<BoxFuture<'static, Negotiated>> {
        places.into_iter().map(|place| queue.admit(from(&place), pending())).collect()
    }

    #[test]
    fn the_oldest_of_all_gives_way_when_all_places_are_taken() {
        let mut queue = Queue::default();
        let networks =
            (0..NEGOTIATING_MAX + 2).map(|number| format!("/ip4/10.{}.{}.1/tcp/1", number / 256, number % 256));
        let gone = gone(arrivals(&mut queue, networks));
        assert!(gone[0] && gone[1] && !gone[2..].contains(&true));
        assert_eq!(queue.0.len(), NEGOTIATING_MAX);
    }

    #[test]
    fn who_has_opened_many_gives_way_before_an_older_one_that_is_alone() {
        let mut queue = Queue::default();
        let alone = std::iter::once("/ip4/10.99.0.1/tcp/1".to_owned());
        // Three in each of many networks.
        let many = (0..NEGOTIATING_MAX).map(|number| format!("/ip4/10.0.{}.{}/tcp/1", number / 3, number % 3));
        let gone = gone(arrivals(&mut queue, alone.chain(many)));
        assert_eq!(gone.iter().position(|gone| *gone), Some(1), "the oldest of those that have three");
    }

    #[test]
    fn hosts_and_networks_give_way_to_themselves_first() {
        let mut queue = Queue::default();
        let host = |network: usize, host: usize| format!("/ip4/10.0.{network}.{host}/tcp/1");
        let one_host = std::iter::repeat_n(host(1, 1), NEGOTIATING_PER_HOST_MAX + 1);
        let one_network = (0..NEGOTIATING_PER_NETWORK_MAX + 1).map(|number| host(2, number));
        let elsewhere = std::iter::once(host(3, 1));
        let gone = gone(arrivals(&mut queue, elsewhere.chain(one_host).chain(one_network)));
        let indices: Vec<usize> = (0..gone.len()).filter(|index| gone[*index]).collect();
        assert_eq!(indices, [1, 1 + NEGOTIATING_PER_HOST_MAX + 1], "one of each, and not the one elsewhere");
    }

    #[test]
    fn who_is_through_takes_no_place() {
        let mut queue = Queue::default();
        drop(arrivals(&mut queue, (0..10).map(|_| "/ip4/10.0.0.1/tcp/1".to_owned())));
        let negotiations = arrivals(&mut queue, ["/ip4/10.0.0.1/tcp/1".to_owned()]);
        assert_eq!((queue.0.len(), gone(negotiations)), (1, vec![false]));
    }
}
