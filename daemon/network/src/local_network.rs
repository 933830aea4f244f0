//! Who else is on the local network, by mDNS.
//!
//! Anybody whose packets reach port 5353 of this machine may answer, from the local network or not, for as many made-up peers as
//! it likes. libp2p keeps all of them for as long as the sender says, looks through all that it has at each that comes, and takes
//! in whatever is there before it returns. So it runs on a thread of its own: while it takes in what has come, nothing more comes
//! but what waits in its queue of ten, and nobody else waits for it. Where it knows too many, all that it has is dropped, its
//! sockets as well, and for a while nobody is looked for.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::Endpoint;
use libp2p::core::transport::{ListenerId, PortUse};
use libp2p::mdns;
use libp2p::swarm::behaviour::{ExpiredListenAddr, FromSwarm, NewListenAddr};
use libp2p::swarm::{ConnectionDenied, ConnectionId, NetworkBehaviour, THandlerInEvent, ToSwarm, dummy};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{mpsc, watch};

use crate::bounds::{NEIGHBOURS_FOUND_MAX, NEIGHBOURS_KNOWN_MAX};

/// Peers, and where they listen.
type Found = Vec<(PeerId, Multiaddr)>;

/// Tells the swarm of whom the thread finds, and the thread where this node listens.
pub(crate) struct LocalNetwork {
    found: mpsc::Receiver<Found>,
    listen: watch::Sender<Vec<Multiaddr>>,
}

/// Why the thread stops looking.
enum End {
    /// Too many are known.
    Crowded,
    /// This node closes.
    Closed,
}

impl LocalNetwork {
    /// Looks for others for as long as it lives; `pause`: for how long not, where there are too many.
    pub(crate) fn watch(me: PeerId, pause: Duration) -> io::Result<LocalNetwork> {
        let (finds, found) = mpsc::channel(NEIGHBOURS_FOUND_MAX);
        let (listen, own) = watch::channel(Vec::new());
        std::thread::Builder::new().name("mdns".to_owned()).spawn(move || {
            if let Err(error) = run(me, pause, &finds, own) {
                tracing::warn!(%error, "the local network cannot be watched: no peers are found on it");
            }
        })?;
        Ok(LocalNetwork { found, listen })
    }
}

fn run(
    me: PeerId,
    pause: Duration,
    finds: &mpsc::Sender<Found>,
    mut own: watch::Receiver<Vec<Multiaddr>>,
) -> io::Result<()> {
    loop {
        // All that libp2p has started ends with it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match runtime.block_on(look(me, finds, &mut own))? {
            End::Crowded => {
                tracing::warn!("the local network tells of too many peers: it is not listened to for {pause:?}")
            }
            End::Closed => return Ok(()),
        }
        drop(runtime);
        let resting = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let _ = resting.block_on(async { tokio::time::timeout(pause, finds.closed()).await });
    }
}

async fn look(me: PeerId, finds: &mpsc::Sender<Found>, own: &mut watch::Receiver<Vec<Multiaddr>>) -> io::Result<End> {
    let mut mdns = mdns::tokio::Behaviour::new(mdns::Config::default(), me)?;
    let (listener_id, mut told) = (ListenerId::next(), Vec::<Multiaddr>::new());
    loop {
        let listen = own.borrow_and_update().clone();
        for addr in listen.iter().filter(|address| !told.contains(address)) {
            mdns.on_swarm_event(FromSwarm::NewListenAddr(NewListenAddr { listener_id, addr }));
        }
        for addr in told.iter().filter(|address| !listen.contains(address)) {
            mdns.on_swarm_event(FromSwarm::ExpiredListenAddr(ExpiredListenAddr { listener_id, addr }));
        }
        told = listen;
        let event = tokio::select! {
            event = poll_fn(|context| mdns.poll(context)) => event,
            changed = own.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ok(End::Closed),
            },
        };
        if let ToSwarm::GenerateEvent(mdns::Event::Discovered(found)) = event {
            // Where the swarm has no time for them, they are too many.
            let _ = finds.try_send(found);
        }
        if mdns.discovered_nodes().len() > NEIGHBOURS_KNOWN_MAX {
            return Ok(End::Crowded);
        }
    }
}

impl NetworkBehaviour for LocalNetwork {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Found;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::NewListenAddr(NewListenAddr { addr, .. }) => {
                self.listen.send_modify(|own| own.push(addr.clone()));
            }
            FromSwarm::ExpiredListenAddr(ExpiredListenAddr { addr, .. }) => {
                self.listen.send_modify(|own| own.retain(|known| known != addr));
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ToSwarm<Found, THandlerInEvent<Self>>> {
        match self.found.poll_recv(context) {
            Poll::Ready(Some(found)) => Poll::Ready(ToSwarm::GenerateEvent(found)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use libp2p::identity::Keypair;
    use tokio::time::{Instant, timeout};

    use super::*;

    const PAUSE: Duration = Duration::from_secs(2);

    /// Addresses of each made-up peer: as many as fit into what libp2p reads at once.
    const ADDRESSES: usize = 20;

    /// A name as DNS has it.
    fn name(text: &str) -> Vec<u8> {
        let labels = text.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
        labels.chain([0]).collect()
    }

    /// A record that lives for an hour.
    fn record(owner: &str, kind: u8, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).expect("short").to_be_bytes();
        [&name(owner)[..], &[0, kind, 0, 1], &[0, 0, 14, 16], &length, data].concat()
    }

    /// The answer of a peer that listens at many places.
    fn answer(number: u32) -> Vec<u8> {
        let seed = *blake3::hash(&number.to_le_bytes()).as_bytes();
        let peer = Keypair::ed25519_from_bytes(seed).expect("32 bytes").public().to_peer_id();
        let place = |port: usize| {
            let text = format!("dnsaddr=/ip4/192.0.2.9/tcp/{port}/p2p/{peer}");
            record("made-up", 16, &[&[text.len() as u8], text.as_bytes()].concat())
        };
        let head = [0, 0, 132, 0, 0, 0, 0, 1, 0, 0, 0, ADDRESSES as u8];
        let places = (1..=ADDRESSES).flat_map(place);
        head.into_iter().chain(record("_p2p._udp.local", 12, &name("made-up"))).chain(places).collect()
    }

    /// How many places are found with what comes next; none where nothing comes in time.
    async fn found(local: &mut LocalNetwork, within: Duration) -> usize {
        match timeout(within, poll_fn(|context| local.poll(context))).await {
            Ok(ToSwarm::GenerateEvent(found)) => found.len(),
            _ => 0,
        }
    }

    /// Somebody to whom the one that looks listens; nobody, where this machine has no network.
    async fn heard(local: &mut LocalNetwork) -> Option<UdpSocket> {
        let end = Instant::now() + 2 * PAUSE + Duration::from_secs(10);
        for number in 1_000_000.. {
            // What comes from one port goes to one of the sockets at 5353, and others on this machine may have some.
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            socket.send_to(&answer(number), (Ipv4Addr::LOCALHOST, 5353)).expect("it is sent");
            if found(local, Duration::from_millis(100)).await > 0 {
                return Some(socket);
            }
            if Instant::now() > end {
                break;
            }
        }
        None
    }

    /// libp2p kept a million of them, and went through all at each step of the swarm.
    #[tokio::test]
    async fn of_thousands_of_made_up_neighbours_some_are_known_and_then_nobody_is_listened_to_for_a_while() {
        let mut local = LocalNetwork::watch(PeerId::random(), PAUSE).expect("a thread");
        let Some(hostile) = heard(&mut local).await else {
            println!("skipped: this machine has no network but loopback");
            return;
        };
        let (mut known, mut sent, mut is_heard) = (0, 0, true);
        while is_heard && sent < 5_000 {
            hostile.send_to(&answer(sent as u32), (Ipv4Addr::LOCALHOST, 5353)).expect("it is sent");
            sent += ADDRESSES;
            // Nothing is lost on the way where each is waited for.
            while is_heard && known < sent {
                let more = found(&mut local, 2 * PAUSE).await;
                (known, is_heard) = (known + more, more > 0);
            }
        }
        // A few were found before.
        let bounds = NEIGHBOURS_KNOWN_MAX - 20 * ADDRESSES..=NEIGHBOURS_KNOWN_MAX + 2 * ADDRESSES;
        assert!(!is_heard && bounds.contains(&known), "{known} of {sent} are known");
        assert!(heard(&mut local).await.is_some(), "after a while it looks again");
    }
}
