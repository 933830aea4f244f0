//! Caps on what a node sends and receives, over all peers.

use std::time::Instant;

use murmur_network::{Caps, NetworkConfig, Throttle};

use crate::node::{Node, Over, config, payload};

async fn capped(caps: Caps) -> Node {
    Node::start_with(NetworkConfig { throttle: Throttle::new(caps), ..config(Over::Tcp) }).await
}

/// Bytes a second that `one` moves to two peers at once, two megabytes each.
async fn speed(mut one: Node, others: [Node; 2]) -> f64 {
    const BYTES: usize = 2_000_000;
    let [mut first, mut second] = others;
    for other in [&mut first, &mut second] {
        one.dial(other);
        one.wait_connected(other.peer).await;
        other.wait_connected(one.peer).await;
    }
    let begin = Instant::now();
    for (number, other) in [&first, &second].into_iter().enumerate() {
        one.transfer(number as u64, other.peer, payload(BYTES, 1));
    }
    tokio::join!(first.wait_transfer(), second.wait_transfer());
    2.0 * BYTES as f64 / begin.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_cap_holds_for_all_peers_together() {
    let one = capped(Caps { upload: Some(1_000_000), download: None }).await;
    let others = [capped(Caps::default()).await, capped(Caps::default()).await];
    let speed = speed(one, others).await;
    // Slower is the machine's business.
    assert!((500_000.0..1_100_000.0).contains(&speed), "{speed} bytes a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_cap_holds_and_slows_the_sender_down() {
    let cap = Caps { upload: None, download: Some(500_000) };
    let others = [capped(cap).await, capped(cap).await];
    let speed = speed(capped(Caps::default()).await, others).await;
    assert!((500_000.0..1_100_000.0).contains(&speed), "{speed} bytes a second into two");
}
