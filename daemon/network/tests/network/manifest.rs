//! Asking for a manifest, without becoming a member.

use std::time::Duration;

use murmur_network::{FetchError, Keypair, Multiaddr, fetch_manifest};
use murmur_protocol::handshake::Refusal;
use murmur_protocol::{Event, RunId, RunManifest};

use crate::node::{DEADLINE, Node, Over, assert_still_serves};

async fn a_manifest_is_fetched_quietly(over: Over) {
    let mut node = Node::start(over).await;
    let identity = Keypair::generate_ed25519();
    let manifest = RunManifest::default();
    let address: Multiaddr = format!("{}/p2p/{}", node.listen_address(), node.peer).parse().expect("an address");
    for (address, run) in [(node.listen_address(), None), (address, Some(manifest.run_id()))] {
        let fetched = fetch_manifest(&identity, &address, run, DEADLINE).await.expect("it answers");
        assert_eq!(fetched, (manifest.clone(), node.peer));
    }
    while let Ok(event) = node.events.try_recv() {
        assert!(matches!(event, Event::AddressFound { .. }), "asking is no event, but there was {event:?}");
    }
    assert_still_serves(&mut node, over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_fetched_quietly_over_tcp() {
    a_manifest_is_fetched_quietly(Over::Tcp).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_fetched_quietly_over_quic() {
    a_manifest_is_fetched_quietly(Over::Quic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_for_another_run_is_refused() {
    let node = Node::start(Over::Tcp).await;
    let identity = Keypair::generate_ed25519();
    let fetched = fetch_manifest(&identity, &node.listen_address(), Some(RunId([3; 32])), DEADLINE).await;
    assert!(matches!(fetched, Err(FetchError::Refused { refusal: Refusal::OtherRun { .. }, .. })), "{fetched:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_where_nobody_answers_is_named() {
    let identity = Keypair::generate_ed25519();
    let nobody: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().expect("an address");
    let error = fetch_manifest(&identity, &nobody, None, DEADLINE).await.expect_err("nobody is there").to_string();
    assert_eq!(error, "cannot reach /ip4/127.0.0.1/tcp/1: nobody listens there (connection refused)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_address_is_given_up_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address");
    let limit = Duration::from_millis(300);
    let fetched = fetch_manifest(&Keypair::generate_ed25519(), &address, None, limit).await;
    assert!(matches!(fetched, Err(FetchError::TimedOut { .. })), "{fetched:?}");
}
