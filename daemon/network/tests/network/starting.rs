//! Starting, and failing to start.

use murmur_network::{Multiaddr, Network};
use tokio::sync::mpsc;

use crate::node::{Node, Over, config};

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
    let mut settings = config(Over::Tcp);
    settings.listen = vec![address.clone()];
    let again = Node::start_with(settings).await;
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
