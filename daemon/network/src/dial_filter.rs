//! The last look at every dial before it leaves.
//!
//! What the core, the owner or the driver wants to dial passes. libp2p dials of itself as well: nodes that a lookup names,
//! whoever wants to be tried or to punch a hole. Others choose those addresses, and who named which cannot be seen here.
//! So they must lie no nearer than the nearest member that this node has had, each host and port is tried a few times and
//! then seldom, and all together draw on one budget.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::time::{Duration, Instant};

use crate::address::{ip_of, is_loopback_only};
use crate::bounds::{
    UNASKED_DIAL_PERIOD, UNASKED_DIALS_MAX, UNASKED_PLACE_PERIOD, UNASKED_PLACES_MAX, UNASKED_TO_PLACE_MAX,
    VOUCHED_FOR, VOUCHED_MAX,
};
use crate::scope::Scope;

/// Everything below the streams.
pub type BoxedTransport = Boxed<(PeerId, StreamMuxerBox)>;

/// A host and a port.
type Place = (IpAddr, u16);

/// Why a dial does not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Denied {
    #[error("nobody who could know it has named this address")]
    OutOfScope,
    #[error("this host and port was dialed a moment ago")]
    TooSoon,
    #[error("too many addresses were dialed that nobody has asked for")]
    TooMany,
}

/// Decides which dials leave; clones are the same filter.
#[derive(Clone, Debug)]
pub(crate) struct DialFilter(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Of the nearest member that this node has had.
    nearest: Scope,
    /// Dials that somebody of this node wants: how many, and until when. At most [`VOUCHED_MAX`].
    vouched: HashMap<Multiaddr, (u32, Instant)>,
    /// The others, by host and port; at most [`UNASKED_PLACES_MAX`].
    places: HashMap<Place, Bucket>,
    all: Bucket,
}

impl DialFilter {
    /// Of a node that listens at `own`.
    pub(crate) fn new(own: &[Multiaddr]) -> DialFilter {
        let nearest = if is_loopback_only(own) { Scope::Machine } else { Scope::World };
        let now = Instant::now();
        let state = State { nearest, vouched: HashMap::new(), places: HashMap::new(), all: Bucket::full(now) };
        DialFilter(Arc::new(Mutex::new(state)))
    }

    /// Lets one dial of each of these addresses pass: this node wants it.
    pub(crate) fn vouch<'a>(&self, addresses: impl IntoIterator<Item = &'a Multiaddr>) {
        let now = Instant::now();
        let mut state = self.state();
        state.vouched.retain(|_, (_, until)| now < *until);
        for address in addresses {
            if state.vouched.len() < VOUCHED_MAX {
                let (count, until) = state.vouched.entry(first_hop(address)).or_insert((0, now));
                (*count, *until) = (*count + 1, now + VOUCHED_FOR);
            }
        }
    }

    /// A member speaks from there.
    pub(crate) fn met(&self, member: Scope) {
        let mut state = self.state();
        state.nearest = state.nearest.min(member);
    }

    /// How near what a lookup names may be.
    pub(crate) fn nearest(&self) -> Scope {
        self.state().nearest
    }

    /// In front of a transport.
    pub(crate) fn guard(self, transport: BoxedTransport) -> Guarded {
        Guarded { filter: self, transport }
    }

    fn judge(&self, now: Instant, address: &Multiaddr) -> Result<(), Denied> {
        self.state().judge(now, address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn judge(&mut self, now: Instant, address: &Multiaddr) -> Result<(), Denied> {
        let hop = first_hop(address);
        if let Some((count, until)) = self.vouched.get_mut(&hop).filter(|(_, until)| now < *until) {
            *count -= 1;
            if *count == 0 {
                *until = now;
            }
            return Ok(());
        }
        let place = place_of(&hop).filter(|_| self.nearest.admits(&hop)).ok_or(Denied::OutOfScope)?;
        self.places.retain(|_, bucket| !bucket.is_full(now));
        if !self.places.contains_key(&place) && self.places.len() >= UNASKED_PLACES_MAX {
            return Err(Denied::TooMany);
        }
        let bucket = self.places.entry(place).or_insert(Bucket::full(now));
        if !bucket.has_room(now, UNASKED_PLACE_PERIOD, UNASKED_TO_PLACE_MAX) {
            return Err(Denied::TooSoon);
        }
        if !self.all.has_room(now, UNASKED_DIAL_PERIOD, UNASKED_DIALS_MAX) {
            return Err(Denied::TooMany);
        }
        bucket.take(now, UNASKED_PLACE_PERIOD);
        self.all.take(now, UNASKED_DIAL_PERIOD);
        Ok(())
    }
}

/// What is left of a number that grows again with time, as the moment when it is whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    whole_at: Instant,
}

impl Bucket {
    pub(crate) fn full(now: Instant) -> Bucket {
        Bucket { whole_at: now }
    }

    fn is_full(&self, now: Instant) -> bool {
        self.whole_at <= now
    }

    pub(crate) fn has_room(&self, now: Instant, period: Duration, most: u32) -> bool {
        self.whole_at.saturating_duration_since(now) + period <= period * most
    }

    pub(crate) fn take(&mut self, now: Instant, period: Duration) {
        self.whole_at = self.whole_at.max(now) + period;
    }
}

/// What is dialed of an address: the relay, where it leads through one; without peers.
fn first_hop(address: &Multiaddr) -> Multiaddr {
    address.iter().take_while(|part| !matches!(part, Protocol::P2p(_) | Protocol::P2pCircuit)).collect()
}

fn place_of(address: &Multiaddr) -> Option<Place> {
    let port = match address.iter().nth(1)? {
        Protocol::Tcp(port) | Protocol::Udp(port) => port,
        _ => return None,
    };
    Some((ip_of(address)?, port))
}

/// A transport that dials only what its filter lets pass.
pub(crate) struct Guarded {
    filter: DialFilter,
    transport: BoxedTransport,
}

impl Transport for Guarded {
    type Output = <BoxedTransport as Transport>::Output;
    type Error = io::Error;
    type ListenerUpgrade = <BoxedTransport as Transport>::ListenerUpgrade;
    type Dial = <BoxedTransport as Transport>::Dial;

    fn listen_on(&mut self, listener: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.transport.listen_on(listener, address)
    }

    fn remove_listener(&mut self, listener: ListenerId) -> bool {
        self.transport.remove_listener(listener)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        match self.filter.judge(Instant::now(), &address) {
            Ok(()) => self.transport.dial(address, options),
            Err(denied) => {
                tracing::debug!(%address, %denied, "a dial was not let out");
                Err(TransportError::Other(io::Error::other(denied)))
            }
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.transport).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    fn public() -> DialFilter {
        DialFilter::new(&[address("/ip4/10.0.0.1/tcp/1")])
    }

    /// Dials that pass in so many seconds, of a hundred a second.
    fn passed(filter: &DialFilter, seconds: u64, place: impl Fn(u64) -> String) -> usize {
        let start = Instant::now();
        let at = |number: u64| start + Duration::from_millis(10 * number);
        (0..100 * seconds).filter(|number| filter.judge(at(*number), &address(&place(*number))).is_ok()).count()
    }

    #[test]
    fn what_lookups_name_is_no_nearer_than_any_member() {
        let filter = public();
        let judge = |text: &str| filter.judge(Instant::now(), &address(text));
        assert_eq!(judge("/ip4/10.0.0.7/tcp/80"), Err(Denied::OutOfScope));
        assert_eq!(judge("/ip4/8.8.8.8/tcp/80"), Ok(()));
        assert_eq!(judge("/dns4/localhost/tcp/80"), Err(Denied::OutOfScope), "a name leads anywhere");
        filter.met(Scope::Network);
        assert_eq!(judge("/ip4/10.0.0.7/tcp/80"), Ok(()));
        assert_eq!(judge("/ip4/127.0.0.1/tcp/80"), Err(Denied::OutOfScope));
    }

    #[test]
    fn who_listens_nowhere_is_not_sent_to_its_own_machine() {
        let judge = |own: &[Multiaddr]| DialFilter::new(own).judge(Instant::now(), &address("/ip4/127.0.0.1/tcp/80"));
        assert_eq!(judge(&[]), Err(Denied::OutOfScope));
        assert_eq!(judge(&[address("/ip4/127.0.0.1/tcp/1")]), Ok(()));
    }

    #[test]
    fn one_place_is_tried_a_few_times_and_then_seldom() {
        let to_one = |number: u64| match number % 2 {
            0 => "/ip4/8.8.8.8/tcp/80".to_owned(),
            _ => "/ip4/8.8.8.8/udp/80/quic-v1".to_owned(),
        };
        let most = UNASKED_TO_PLACE_MAX as usize + 30 / UNASKED_PLACE_PERIOD.as_secs() as usize;
        assert!((most - 1..=most).contains(&passed(&public(), 30, to_one)));
    }

    #[test]
    fn places_without_end_draw_on_one_budget() {
        let to_all = |number: u64| format!("/ip4/8.8.8.8/tcp/{}", 1 + number % 60_000);
        let most = UNASKED_DIALS_MAX as usize + (30_000 / UNASKED_DIAL_PERIOD.as_millis()) as usize;
        assert!((most - 1..=most).contains(&passed(&public(), 30, to_all)));
    }

    #[test]
    fn each_wanted_dial_passes_once_for_each_time_that_it_is_wanted() {
        let filter = public();
        let (wanted, now) = (address("/ip4/127.0.0.1/tcp/80"), Instant::now());
        let circuit: Multiaddr =
            address("/ip4/127.0.0.1/tcp/80/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit");
        filter.vouch([&wanted, &circuit]);
        assert_eq!([(); 3].map(|()| filter.judge(now, &wanted).is_ok()), [true, true, false]);
        filter.vouch([&wanted]);
        assert!(filter.judge(now + 2 * VOUCHED_FOR, &wanted).is_err(), "it was wanted long ago");
    }
}
