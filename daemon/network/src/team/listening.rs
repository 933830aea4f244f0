//! The helper's side: listens, and lets in one captain at a time that knows the secret of the helper's line.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use libp2p::Multiaddr;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{ListenerId, TransportEvent};
use libp2p::core::{Transport, transport};
use libp2p::identity::Keypair;
use murmur_protocol::{PeerId, Secret};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, timeout, timeout_at};

use super::greeting::answer;
use super::link::TeamLink;
use super::taken::{Place, Taken};
use super::{GREETING_TIMEOUT, TEAM_PROTOCOL, WAITING_CAPTAINS_MAX};
use crate::address::to_core_peer;
use crate::bounds::LISTEN_TIMEOUT;
use crate::free_port;
use crate::identity::peer_id;
use crate::muxing::{driven, first_stream};
use crate::pending::Queue;
use crate::rate_limit::Throttle;
use crate::sources::Source;
use crate::traffic::TrafficCounter;
use crate::transport::{BoxedTransport, TransportError, build};

/// From the first address to the last one of a listener on all of a machine's addresses: they come at once.
const LISTEN_PAUSE: Duration = Duration::from_millis(200);

/// Why nobody can be listened for.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Encryption could not be prepared.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {0}: {1}")]
    Address(Multiaddr, String),
}

/// Listens for captains.
#[derive(Debug)]
pub struct TeamListener {
    addresses: Vec<Multiaddr>,
    captains: mpsc::Receiver<TeamLink>,
}

impl TeamListener {
    /// Listens on these addresses for whoever knows the secret, as far as `taken` lets them in. Bodies of up to `body_bytes_max` bytes
    /// are taken, and what is said after the greeting keeps to the throttle.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub async fn start(
        identity: &Keypair,
        listen: &[Multiaddr],
        secret: Secret,
        (taken, counter, throttle): (Taken, &TrafficCounter, &Throttle),
        body_bytes_max: u64,
    ) -> Result<TeamListener, ListenError> {
        let mut transport = build(identity, counter)?;
        for address in listen {
            let taken = |error: std::io::Error| ListenError::Address(address.clone(), free_port::describe(&error));
            free_port::ensure(address).map_err(taken)?;
            let failed = |error: transport::TransportError<std::io::Error>| {
                ListenError::Address(address.clone(), error.to_string())
            };
            transport.listen_on(ListenerId::next(), address.clone()).map_err(failed)?;
        }
        let addresses = addresses(&mut transport, listen).await?;
        let (found, captains) = mpsc::channel(WAITING_CAPTAINS_MAX);
        let host = Host { me: peer_id(identity), secret, taken, body_bytes_max, throttle: throttle.clone() };
        tokio::spawn(accept(transport, Arc::new(host), found));
        Ok(TeamListener { addresses, captains })
    }

    /// Where this machine listens.
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// The next captain that is let in; also one that comes again. `None` once nothing is listened for any more.
    pub async fn next(&mut self) -> Option<TeamLink> {
        self.captains.recv().await
    }
}

/// Waits until each address is listened on.
async fn addresses(transport: &mut BoxedTransport, listen: &[Multiaddr]) -> Result<Vec<Multiaddr>, ListenError> {
    let mut heard = BTreeSet::new();
    let mut listeners = BTreeSet::new();
    let mut deadline = Instant::now() + LISTEN_TIMEOUT;
    while let Ok(Some(event)) = timeout_at(deadline, transport.next()).await {
        match event {
            TransportEvent::NewAddress { listener_id, listen_addr } => {
                listeners.insert(format!("{listener_id:?}"));
                heard.insert(listen_addr);
                if listeners.len() == listen.len() {
                    deadline = Instant::now() + LISTEN_PAUSE;
                }
            }
            TransportEvent::ListenerError { error, .. } | TransportEvent::ListenerClosed { reason: Err(error), .. } => {
                let address = listen.first().cloned().unwrap_or_else(Multiaddr::empty);
                return Err(ListenError::Address(address, error.to_string()));
            }
            _ => {}
        }
    }
    Ok(heard.into_iter().collect())
}

struct Host {
    me: PeerId,
    secret: Secret,
    taken: Taken,
    body_bytes_max: u64,
    throttle: Throttle,
}

/// Greets who comes, until nobody wants captains any more. Of too many greetings the oldest of the place with the most ends.
async fn accept(mut transport: BoxedTransport, host: Arc<Host>, found: mpsc::Sender<TeamLink>) {
    let (mut under_way, mut queue) = (JoinSet::new(), Queue::default());
    loop {
        tokio::select! {
            () = found.closed() => return,
            Some(_) = under_way.join_next() => {}
            Some(event) = transport.next() => {
                if let TransportEvent::Incoming { upgrade, send_back_addr, .. } = event {
                    let (host, found) = (host.clone(), found.clone());
                    let greeting = async move {
                        let welcomed = timeout(GREETING_TIMEOUT, async {
                            let (peer, muxer) = upgrade.await.ok()?;
                            welcome(&host, to_core_peer(&peer)?, muxer).await
                        });
                        if let Ok(Some((link, place))) = welcomed.await
                            && let Ok(room) = found.reserve().await
                        {
                            place.keep();
                            room.send(link);
                        }
                        Ok(())
                    };
                    under_way.spawn(queue.admit(Source::of(&send_back_addr), greeting));
                }
            }
        }
    }
}

async fn welcome(host: &Host, captain: PeerId, mut muxer: StreamMuxerBox) -> Option<(TeamLink, Place)> {
    let mut stream = first_stream(&mut muxer, TEAM_PROTOCOL).await.ok()?;
    let takes = || host.taken.takes(captain);
    let greeted = driven(&mut muxer, answer(&mut stream, (captain, host.me), &host.secret, takes)).await;
    match greeted {
        Ok(Ok(place)) => {
            let about = (host.body_bytes_max, host.throttle.clone());
            Some((TeamLink::start(captain, muxer, stream, about), place))
        }
        Ok(Err(error)) => {
            tracing::info!(%captain, "a machine was not let in: {error}");
            // What it is told has to reach it.
            let _ = driven(&mut muxer, tokio::time::sleep(LISTEN_PAUSE)).await;
            None
        }
        Err(_) => None,
    }
}
