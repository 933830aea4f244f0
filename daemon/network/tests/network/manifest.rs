//! Asking for a manifest, without becoming a member.

use std::time::Duration;

use murmur_network::{FetchError, Keypair, Multiaddr, NetworkConfig, Question, fetch_manifest};
use murmur_protocol::handshake::{Credentials, Refusal};
use murmur_protocol::{Event, PeerId, RunId, RunManifest, Secret};

use crate::node::{DEADLINE, Node, Over, assert_still_serves, config, over_tcp_and_quic};

/// Asks `address` for its manifest, with what a ticket says, if there is one.
async fn ask(
    address: &Multiaddr,
    ticket: Option<&Credentials>,
    limit: Duration,
) -> Result<(RunManifest, PeerId), FetchError> {
    let identity = Keypair::generate_ed25519();
    let told = fetch_manifest(Question { identity: &identity, address, ticket }, limit).await?;
    // Both clocks are this machine's: what is measured is within its error, and the way over loopback is short.
    let clock = told.clock;
    assert!(clock.ahead.unsigned_abs() <= clock.error + 1 && clock.error < 5_000_000, "{clock:?}");
    Ok((told.manifest, told.peer))
}

fn open(run: RunId) -> Credentials {
    Credentials { run, secret: None }
}

async fn a_manifest_is_fetched_quietly(over: Over) {
    let mut node = Node::start(over).await;
    let manifest = RunManifest::default();
    let address: Multiaddr = format!("{}/p2p/{}", node.listen_address(), node.peer).parse().expect("an address");
    for (address, run) in [(node.listen_address(), None), (address, Some(open(manifest.run_id())))] {
        let fetched = ask(&address, run.as_ref(), DEADLINE).await.expect("it answers");
        assert_eq!(fetched, (manifest.clone(), node.peer));
    }
    while let Ok(event) = node.events.try_recv() {
        assert!(matches!(event, Event::AddressFound { .. }), "asking is no event, but there was {event:?}");
    }
    assert_still_serves(&mut node, over).await;
}

over_tcp_and_quic!(a_manifest_is_fetched_quietly);

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_for_another_run_is_refused() {
    let node = Node::start(Over::Tcp).await;
    let fetched = ask(&node.listen_address(), Some(&open(RunId([3; 32]))), DEADLINE).await;
    assert!(matches!(fetched, Err(FetchError::Refused(_, Refusal::OtherRun { .. }))), "{fetched:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_where_nobody_answers_is_named() {
    let nobody: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().expect("an address");
    let error = ask(&nobody, None, DEADLINE).await.expect_err("nobody is there").to_string();
    assert_eq!(error, "cannot reach /ip4/127.0.0.1/tcp/1: nobody listens there (connection refused)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_address_is_given_up_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address");
    let limit = Duration::from_millis(300);
    let fetched = ask(&address, None, limit).await;
    assert!(matches!(fetched, Err(FetchError::TimedOut(..))), "{fetched:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_run_is_told_to_ticket_holders_only() {
    let node = Node::start_with(NetworkConfig { secret: Some(Secret::from_bytes([7; 32])), ..config(Over::Tcp) }).await;
    let run = RunManifest::default().run_id();
    let refused = |fetched: Result<(RunManifest, PeerId), FetchError>| match fetched {
        Err(FetchError::Refused(_, refusal)) => refusal,
        other => panic!("unexpected {other:?}"),
    };
    let address = node.listen_address();
    assert_eq!(refused(ask(&address, None, DEADLINE).await), Refusal::Closed);
    assert_eq!(refused(ask(&address, Some(&open(run)), DEADLINE).await), Refusal::Closed);
    let wrong = Credentials { run, secret: Some(Secret::from_bytes([8; 32])) };
    assert_eq!(refused(ask(&address, Some(&wrong), DEADLINE).await), Refusal::OtherSecret);
    let right = Credentials { run, secret: Some(Secret::from_bytes([7; 32])) };
    let (manifest, peer) = ask(&address, Some(&right), DEADLINE).await.expect("it answers");
    assert_eq!((manifest, peer), (RunManifest::default(), node.peer));
}
