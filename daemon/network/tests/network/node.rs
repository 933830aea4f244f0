//! A node under test: a network with the core's end of its channels in the test's hands.

use std::sync::Arc;
use std::time::Duration;

use murmur_network::{Admission, Connectivity, Keypair, Multiaddr, Network, NetworkConfig, Throttle};
use murmur_protocol::NetworkOrder;
use murmur_protocol::message::{Message, TransferHeader};
use murmur_protocol::{Address, Event, Payload, PeerId, RunManifest, Secret, TransferId};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Everything in these tests happens within this, or fails. Loopback takes milliseconds; the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(25);

/// The longest payload that nodes accept here.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = 16 << 20;

/// The secret of an open run, and of a closed one: most of what works in one works in the other.
pub(crate) const RUNS: [Option<Secret>; 2] = [None, Some(Secret::from_bytes([7; 32]))];

/// How a node is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Tcp,
    Quic,
}

/// Waits for the next event of this pattern at a node, and gives what is made of it.
macro_rules! next_event {
    ($node:expr, $pattern:pat $(if $guard:expr)? => $found:expr) => {
        $node
            .wait_for(stringify!($pattern), |event| match event {
                $pattern $(if $guard)? => Some($found),
                _ => None,
            })
            .await
    };
}
pub(crate) use next_event;

/// Two tests of a name, one over TCP and one over QUIC.
macro_rules! over_tcp_and_quic {
    ($test:ident) => {
        mod $test {
            #[tokio::test(flavor = "multi_thread")]
            async fn over_tcp() {
                super::$test(crate::node::Over::Tcp).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn over_quic() {
                super::$test(crate::node::Over::Quic).await;
            }
        }
    };
}
pub(crate) use over_tcp_and_quic;

pub(crate) struct Node {
    pub(crate) network: Network,
    pub(crate) peer: PeerId,
    pub(crate) events: mpsc::Receiver<Event>,
}

pub(crate) fn config(over: Over) -> NetworkConfig {
    let listen = match over {
        Over::Tcp => "/ip4/127.0.0.1/tcp/0",
        Over::Quic => "/ip4/127.0.0.1/udp/0/quic-v1",
    };
    NetworkConfig {
        identity: Keypair::generate_ed25519(),
        listen: vec![listen.parse().expect("an address")],
        manifest: Arc::new(RunManifest::default()),
        secret: None,
        admission: Admission::default(),
        throttle: Throttle::default(),
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        inbound_bytes_budget: 4 * PAYLOAD_BYTES_MAX,
        shelf: None,
        connectivity: Connectivity::OFF,
    }
}

impl Node {
    pub(crate) async fn start(over: Over) -> Node {
        Node::start_with(config(over)).await
    }

    /// In a run with this secret.
    pub(crate) async fn start_in(over: Over, secret: &Option<Secret>) -> Node {
        Node::start_with(NetworkConfig { secret: secret.clone(), ..config(over) }).await
    }

    pub(crate) async fn start_with(config: NetworkConfig) -> Node {
        Node::start_with_room(config, 256).await
    }

    /// A node whose core has room for so many events.
    pub(crate) async fn start_with_room(config: NetworkConfig, events_max: usize) -> Node {
        let (sender, events) = mpsc::channel(events_max);
        let network = Network::start(config, sender).await.expect("a free port");
        Node { peer: network.peer_id(), network, events }
    }

    pub(crate) fn listen_address(&self) -> Multiaddr {
        self.network.listen_addresses().first().expect("it listens").clone()
    }

    pub(crate) fn address(&self) -> Address {
        Address::new(self.listen_address().to_string()).expect("short")
    }

    pub(crate) fn order(&self, order: NetworkOrder) {
        self.network.try_order(order).expect("there is room");
    }

    pub(crate) fn dial(&self, other: &Node) {
        self.order(NetworkOrder::Dial { peer: Some(other.peer), addresses: vec![other.address()] });
    }

    pub(crate) fn send(&self, peer: PeerId, message: Message) {
        self.order(NetworkOrder::Send { peer, message });
    }

    pub(crate) fn transfer(&self, number: u64, peer: PeerId, payload: Payload) {
        let transfer = TransferId(number);
        let header = TransferHeader::ProposalCodes { exchange: number };
        self.order(NetworkOrder::StartTransfer { transfer, peer, header, payload });
    }

    /// The next event that `wanted` makes something of; the others are passed over.
    pub(crate) async fn wait_for<Found>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(Event) -> Option<Found>,
    ) -> Found {
        let mut passed_over = Vec::new();
        let found = timeout(DEADLINE, async {
            loop {
                let event = self.events.recv().await.expect("the network runs");
                passed_over.push(format!("{event:?}"));
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!("waited in vain for {what}; there were only {passed_over:#?}"),
        }
    }

    /// Waits until `other` is connected; gives the addresses that it claims.
    pub(crate) async fn wait_connected(&mut self, other: PeerId) -> Vec<Address> {
        next_event!(self, Event::PeerConnected { peer, addresses } if peer == other => addresses)
    }

    pub(crate) async fn wait_disconnected(&mut self, other: PeerId) {
        next_event!(self, Event::PeerDisconnected { peer } if peer == other => ());
    }

    pub(crate) async fn wait_message(&mut self) -> (PeerId, Message) {
        next_event!(self, Event::MessageReceived { peer, message } => (peer, message))
    }

    pub(crate) async fn wait_dial_failed(&mut self) -> String {
        next_event!(self, Event::DialFailed { reason, .. } => reason)
    }

    /// The end of a transfer of this node's.
    pub(crate) async fn wait_transfer_end(&mut self, number: u64) -> Result<(), String> {
        self.wait_for("the end of a transfer", |event| match event {
            Event::TransferFinished { transfer } if transfer.0 == number => Some(Ok(())),
            Event::TransferFailed { transfer, reason } if transfer.0 == number => Some(Err(reason)),
            _ => None,
        })
        .await
    }

    pub(crate) async fn wait_transfer(&mut self) -> (TransferHeader, Payload) {
        next_event!(self, Event::TransferReceived { header, payload, .. } => (header, payload))
    }
}

/// Connects two nodes; the first dials.
pub(crate) async fn meet(one: &mut Node, other: &mut Node) {
    one.dial(other);
    one.wait_connected(other.peer).await;
    other.wait_connected(one.peer).await;
}

/// Two nodes that know each other.
pub(crate) async fn connected_pair(over: Over) -> (Node, Node) {
    let (mut one, mut other) = (Node::start(over).await, Node::start(over).await);
    meet(&mut one, &mut other).await;
    (one, other)
}

/// Messages arrive in both directions, all and in order.
pub(crate) async fn assert_they_talk(one: &mut Node, other: &mut Node) {
    for number in 0..20 {
        one.send(other.peer, message(number));
        other.send(one.peer, message(100 + number));
    }
    for number in 0..20 {
        assert_eq!(other.wait_message().await, (one.peer, message(number)));
        assert_eq!(one.wait_message().await, (other.peer, message(100 + number)));
    }
}

/// A message that can be told from others.
pub(crate) fn message(number: u64) -> Message {
    Message::RequestState { request: number, chunks: murmur_protocol::message::Chunks { first: 0, count: 1 } }
}

/// Bytes without a pattern that a mistake could hide in.
pub(crate) fn payload(length: usize, seed: u8) -> Payload {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    Payload::from(bytes)
}

/// An honest stranger can still connect and be served.
pub(crate) async fn assert_still_serves(node: &mut Node, over: Over) {
    let mut honest = Node::start(over).await;
    meet(&mut honest, node).await;
    let sent = payload(100_000, 9);
    honest.transfer(77, node.peer, sent.clone());
    let (_, received) = node.wait_transfer().await;
    assert_eq!(received, sent);
    assert_eq!(honest.wait_transfer_end(77).await, Ok(()));
}
