//! Starting, and failing to start.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use murmur_network::{Multiaddr, Network, NetworkConfig};
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Address, Event, NetworkOrder};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::node::{DEADLINE, Node, Over, config};

async fn start_error(listen: Multiaddr) -> String {
    let mut settings = config(Over::Tcp);
    settings.listen = vec![listen];
    let (events, _receiver) = mpsc::channel(16);
    Network::start(settings, events).await.expect_err("it cannot listen there").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_an_error_that_names_the_address() {
    for over in [Over::Tcp, Over::Quic] {
        let node = Node::start(over).await;
        let taken = node.listen_address();
        let error = start_error(taken.clone()).await;
        assert!(error.starts_with(&format!("cannot listen on {taken}: another program uses that port")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_cannot_be_listened_on_is_named() {
    let error = start_error("/ip4/127.0.0.1/udp/9".parse().expect("an address")).await;
    assert!(error.contains("/ip4/127.0.0.1/udp/9") && error.contains("quic-v1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_free_again_after_closing() {
    let node = Node::start(Over::Tcp).await;
    let address = node.listen_address();
    node.network.close().await;
    let again = Node::start_with(NetworkConfig { listen: vec![address.clone()], ..config(Over::Tcp) }).await;
    assert_eq!(again.listen_address(), address);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_port_serves_both_families_and_both_protocols() {
    let Ok(free) = std::net::TcpListener::bind("[::]:0") else { return };
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let mut settings = config(Over::Tcp);
    let places = ["/ip4/0.0.0.0/tcp/{}", "/ip6/::/tcp/{}", "/ip4/0.0.0.0/udp/{}/quic-v1", "/ip6/::/udp/{}/quic-v1"];
    settings.listen = places.map(|place| place.replace("{}", &port.to_string()).parse().expect("an address")).to_vec();
    let node = Node::start_with(settings).await;
    let addresses = node.network.listen_addresses();
    assert!(addresses.len() >= 4, "{addresses:?}");
    assert!(!addresses.iter().any(|address| address.to_string().starts_with("/ip4/0.0.0.0/")), "{addresses:?}");
}

/// A port on which nobody listens, and what listens there on all addresses.
fn everywhere() -> (u16, NetworkConfig) {
    let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|free| free.local_addr()).expect("a port").port();
    let listen = vec![format!("/ip4/0.0.0.0/tcp/{port}").parse().expect("an address")];
    (port, NetworkConfig { listen, ..config(Over::Tcp) })
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_and_closes_connections_does_not_keep_a_node_from_starting() {
    let (port, settings) = everywhere();
    let is_over = Arc::new(AtomicBool::new(false));
    let knockers: Vec<_> = (0..3)
        .map(|_| {
            let is_over = is_over.clone();
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                    std::thread::sleep(Duration::from_millis(3));
                }
            })
        })
        .collect();
    let started = timeout(Duration::from_secs(8), Node::start_with(settings)).await;
    is_over.store(true, Ordering::Relaxed);
    knockers.into_iter().for_each(|knocker| knocker.join().expect("it knocked"));
    assert!(started.is_ok(), "it waits for a pause");
}

/// Whoever dials a node as it begins to listen is let in, and not left without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn who_dials_a_node_while_it_starts_is_let_in() {
    let (port, settings) = everywhere();
    let mut dialer = Node::start(Over::Tcp).await;
    let address = Address::new(format!("/ip4/127.0.0.1/tcp/{port}")).expect("short");
    let starting = tokio::spawn(async move {
        sleep(Duration::from_millis(200)).await;
        Node::start_with(settings).await
    });
    let answered = timeout(DEADLINE, async {
        loop {
            dialer.order(NetworkOrder::Dial { peer: None, addresses: vec![address.clone()] });
            loop {
                match dialer.events.recv().await.expect("the network runs") {
                    Event::PeerConnected { peer, .. } => return Ok(peer),
                    Event::HandshakeRefused { refusal, .. } => return Err(refusal),
                    // Nobody listens yet.
                    Event::DialFailed { .. } => break,
                    _ => {}
                }
            }
        }
    });
    let answer: Result<_, Refusal> = answered.await.expect("in time");
    assert_eq!(answer, Ok(starting.await.expect("it starts").peer));
}
