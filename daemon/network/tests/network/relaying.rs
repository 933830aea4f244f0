//! Nodes that cannot be reached: relays, hole punching, and what a node knows about its own place.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use murmur_network::{Connectivity, Exposure, Network, Reachability, ReachabilityState};
use murmur_protocol::NetworkOrder;
use murmur_protocol::handshake::Credentials;
use murmur_protocol::{Address, Event, RunManifest, Secret};
use tokio::time::timeout;

use crate::node::{DEADLINE, Node, Over, RUNS, assert_they_talk, config, meet, message, next_event, payload};

/// Everything about NATs, nothing about finding.
const NAT: Connectivity = Connectivity { nat: true, relay_server: true, ..Connectivity::OFF };

async fn exposed(exposure: Exposure, secret: &Option<Secret>) -> Node {
    let mut settings = config(Over::Tcp);
    settings.connectivity = Connectivity { exposure, ..NAT };
    settings.secret = secret.clone();
    Node::start_with(settings).await
}

/// A first attempt to punch a hole, and a second one half a minute later where a busy machine spoils it; or the time until a
/// node offers probes (10 s), its peers hear of it with the next ping, and one asks.
const PATIENT_DEADLINE: Duration = Duration::from_secs(60);

/// What is logged of connections between all nodes of this process, the last lines: it is seldom that no hole can be punched, and then
/// nothing else tells why.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

const LOGGED_LINES_MAX: usize = 5_000;

struct Logged;

impl Write for Logged {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() >= LOGGED_LINES_MAX {
            log.drain(..LOGGED_LINES_MAX / 2);
        }
        log.push(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_connections() {
    let filter = "libp2p_dcutr=debug,libp2p_swarm=debug,libp2p_tcp=debug,murmur_network=debug";
    let logging = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Logged);
    // Only the first test of the process that asks for it begins.
    let _ = logging.try_init();
}

/// The lines that name one of these nodes.
fn logged_of(nodes: [&Node; 2]) -> String {
    let names = nodes.map(|node| node.peer.to_string());
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.iter().filter(|line| names.iter().any(|name| line.contains(name))).cloned().collect()
}

/// A node behind a firewall that lets nothing in: it listens nowhere.
async fn walled_in(secret: &Option<Secret>) -> Node {
    let mut settings = config(Over::Tcp);
    settings.secret = secret.clone();
    settings.connectivity = Connectivity { exposure: Exposure::Private, ..NAT };
    settings.listen = Vec::new();
    Node::start_with(settings).await
}

async fn wait_reachability(network: &Network, what: &str, wanted: impl Fn(&Reachability) -> bool) -> Reachability {
    wait_reachability_within(DEADLINE, network, what, wanted).await
}

async fn wait_reachability_within(
    deadline: Duration,
    network: &Network,
    what: &str,
    wanted: impl Fn(&Reachability) -> bool,
) -> Reachability {
    let mut view = network.reachability();
    let found = timeout(deadline, view.wait_for(|reachability| wanted(reachability))).await;
    let found = found.map(|found| found.expect("the network runs").clone());
    found.unwrap_or_else(|_| panic!("waited in vain for {what}: {:?}", network.reachability().borrow()))
}

async fn wait_path(node: &mut Node, direct: bool) {
    next_event!(node, Event::PathChanged { is_direct, .. } if is_direct == direct => ());
}

/// Where a private node is found through its relay.
async fn circuit_to(node: &Node) -> Address {
    let reserved = wait_reachability(&node.network, "a place at the relay", |known| !known.relayed.is_empty()).await;
    assert!(matches!(reserved.state, ReachabilityState::Relayed | ReachabilityState::HolePunching), "{reserved:?}");
    assert_eq!(node.network.public_addresses(), reserved.public_addresses());
    Address::new(reserved.relayed[0].to_string()).expect("short")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_carries_messages_and_no_transfers() {
    for secret in RUNS {
        let mut relay = exposed(Exposure::Public, &secret).await;
        let (mut hidden, mut other) = (walled_in(&secret).await, walled_in(&secret).await);
        meet(&mut hidden, &mut relay).await;
        let circuit = circuit_to(&hidden).await;
        other.order(NetworkOrder::Dial { peer: Some(hidden.peer), addresses: vec![circuit.clone()] });
        other.wait_connected(hidden.peer).await;
        wait_path(&mut other, false).await;
        hidden.wait_connected(other.peer).await;
        wait_path(&mut hidden, false).await;
        assert_they_talk(&mut other, &mut hidden).await;
        other.transfer(1, hidden.peer, payload(1000, 1));
        let reason = other.wait_transfer_end(1).await.expect_err("it is relayed");
        assert!(reason.contains("relays carry no transfers"), "{reason}");
        // Nobody is to blame: the connection goes on.
        hidden.send(other.peer, message(7));
        let next = other.wait_for("a message and nothing else", |event| match event {
            Event::MessageReceived { message, .. } => Some(message),
            Event::PeerDisconnected { .. } | Event::PeerMisbehaved { .. } => panic!("unexpected {event:?}"),
            _ => None,
        });
        assert_eq!(next.await, message(7));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_fetched_through_a_relay() {
    for secret in RUNS {
        let mut relay = exposed(Exposure::Public, &secret).await;
        let mut hidden = walled_in(&secret).await;
        meet(&mut hidden, &mut relay).await;
        let circuit = circuit_to(&hidden).await;
        let address = format!("{circuit}/p2p/{}", hidden.peer).parse().expect("an address");
        let identity = murmur_network::Keypair::generate_ed25519();
        // Both the relay and the hidden one let nobody in without the secret of a closed run.
        let run = RunManifest::default().run_id();
        let ticket = secret.map(|secret| Credentials { run, secret: Some(secret) });
        let question = murmur_network::Question { identity: &identity, address: &address, ticket: ticket.as_ref() };
        let peer = murmur_network::fetch_manifest(question, DEADLINE).await.expect("it answers").peer;
        assert_eq!(peer, hidden.peer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_punch_makes_the_way_direct_and_transfers_possible() {
    log_connections();
    for secret in RUNS {
        let mut relay = exposed(Exposure::Public, &secret).await;
        let (mut hidden, mut other) =
            (exposed(Exposure::Private, &secret).await, exposed(Exposure::Private, &secret).await);
        meet(&mut hidden, &mut relay).await;
        meet(&mut other, &mut relay).await;
        for node in [&hidden, &other] {
            wait_reachability(&node.network, "an observed address", |known| !known.observed.is_empty()).await;
        }
        let circuit = circuit_to(&hidden).await;
        other.order(NetworkOrder::Dial { peer: Some(hidden.peer), addresses: vec![circuit] });
        other.wait_connected(hidden.peer).await;
        hidden.wait_connected(other.peer).await;
        let punched = |known: &Reachability| known.state == ReachabilityState::HolePunching;
        let mut view = other.network.reachability();
        let known =
            timeout(PATIENT_DEADLINE, view.wait_for(punched)).await.map(|known| known.expect("it runs").clone());
        let known = known.unwrap_or_else(|_| {
            let (own, log) = (other.network.reachability(), logged_of([&other, &hidden]));
            let (own, hidden) = (own.borrow(), hidden.network.reachability());
            panic!("no hole was punched: {own:?}\nto {:?}\n{log}", hidden.borrow())
        });
        assert!(known.observed.iter().all(|address| !address.is_empty()), "{known:?}");
        // The direct connection may be there before the relayed one has shaken hands, or a little later.
        let sent = payload(3 << 20, 2);
        let deadline = tokio::time::Instant::now() + DEADLINE;
        for number in 5.. {
            other.transfer(number, hidden.peer, sent.clone());
            match other.wait_transfer_end(number).await {
                Ok(()) => break,
                Err(reason) => assert!(reason.contains("relays carry no transfers"), "{reason}"),
            }
            assert!(tokio::time::Instant::now() < deadline, "no direct way");
        }
        assert!(hidden.wait_transfer().await.1 == sent);
        assert_they_talk(&mut other, &mut hidden).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_peers_observe_is_tried_and_confirmed() {
    for secret in RUNS {
        let (mut one, mut other) =
            (exposed(Exposure::FindOut, &secret).await, exposed(Exposure::FindOut, &secret).await);
        assert_eq!(one.network.reachability().borrow().state, ReachabilityState::Unknown);
        meet(&mut one, &mut other).await;
        let own = one.listen_address();
        let seen = |known: &Reachability| known.observed.contains(&own);
        wait_reachability(&one.network, "the observed address", seen).await;
        let tried = |known: &Reachability| known.confirmed.contains(&own);
        let known = wait_reachability_within(PATIENT_DEADLINE, &one.network, "a confirmed address", tried).await;
        // Loopback proves nothing about the world.
        assert_eq!(known.state, ReachabilityState::ReachableLocally);
        // The probe's own connection is nobody's membership.
        one.send(other.peer, message(1));
        assert_eq!(other.wait_message().await, (one.peer, message(1)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_given_up_with_its_relay() {
    for secret in RUNS {
        let mut relay = exposed(Exposure::Public, &secret).await;
        let mut hidden = walled_in(&secret).await;
        meet(&mut hidden, &mut relay).await;
        let circuit = circuit_to(&hidden).await;
        relay.network.close().await;
        let lost = next_event!(hidden, Event::AddressLost { address } => address);
        assert_eq!(lost, circuit);
        let alone = |known: &Reachability| known.relayed.is_empty() && known.state == ReachabilityState::Unreachable;
        wait_reachability(&hidden.network, "the loss", alone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_everything_on_nodes_meet_and_transfer_as_ever() {
    for (over, secret) in [Over::Tcp, Over::Quic].into_iter().flat_map(|over| RUNS.map(|secret| (over, secret))) {
        let mut settings = config(over);
        settings.secret = secret;
        // Not mDNS: other nodes on this machine's network are none of the test's business.
        settings.connectivity = Connectivity { mdns: false, ..Connectivity::default() };
        let mut one = Node::start_with(settings.clone()).await;
        settings.identity = murmur_network::Keypair::generate_ed25519();
        let mut other = Node::start_with(settings).await;
        meet(&mut one, &mut other).await;
        let sent = payload(3 << 20, 2);
        one.transfer(5, other.peer, sent.clone());
        assert!(other.wait_transfer().await.1 == sent);
        assert_eq!(one.wait_transfer_end(5).await, Ok(()));
        one.order(NetworkOrder::Disconnect { peer: other.peer });
        one.wait_disconnected(other.peer).await;
        other.wait_disconnected(one.peer).await;
    }
}
