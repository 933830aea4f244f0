//! A peer that writes whatever it likes to a node, and passes the handshake first where it wants.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use futures::AsyncReadExt;
use murmur_network::streams::{BULK_PROTOCOL, CONTROL_PROTOCOL, Stream};
use murmur_protocol::handshake::{Answer, Greeting};
use murmur_protocol::{RunManifest, codec};
use tokio::time::timeout;

use crate::node::{DEADLINE, Node};
pub(crate) use crate::raw::{Raw, honest_hello, read_frame, write, write_frame};

pub(crate) struct Hostile(Raw);

impl Deref for Hostile {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.0
    }
}

impl DerefMut for Hostile {
    fn deref_mut(&mut self) -> &mut Raw {
        &mut self.0
    }
}

impl Hostile {
    /// Connects to a node, and says nothing yet.
    pub(crate) async fn connect(node: &Node) -> Hostile {
        Hostile(Raw::connect(node.listen_address()).await)
    }

    /// Connects and passes the handshake, like an honest peer would.
    pub(crate) async fn join(node: &mut Node) -> (Hostile, Stream) {
        let hostile = Hostile::connect(node).await;
        let (answer, control) = hostile.greet(&honest_greeting()).await;
        assert_welcome(&answer);
        node.wait_connected(hostile.peer).await;
        (hostile, control)
    }

    pub(crate) async fn open_control(&self) -> Stream {
        self.streams.opener.open(CONTROL_PROTOCOL).await.expect("a stream")
    }

    pub(crate) async fn open_bulk(&self) -> Stream {
        self.streams.opener.open(BULK_PROTOCOL).await.expect("a stream")
    }
}

/// The answer lets in who has greeted.
pub(crate) fn assert_welcome(answer: &[u8]) {
    let answer: Answer = codec::decode(answer).expect("an answer");
    assert!(matches!(answer, Answer::Run { welcome: true, .. }), "{answer:?}");
}

pub(crate) fn honest_greeting() -> Greeting {
    let manifest = RunManifest::default().canonical_text();
    Greeting::Join { proof: None, manifest, addresses: Vec::new() }
}

/// Says that a payload of so many bytes follows, as it is.
pub(crate) fn announced(bytes: u64) -> Vec<u8> {
    let mut announced = vec![0];
    announced.extend(bytes.to_le_bytes());
    announced
}

/// Waits until the other side has ended or reset the stream.
pub(crate) async fn wait_ended(stream: &mut Stream) {
    let ended = async {
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    };
    timeout(DEADLINE, ended).await.expect("the node ends the stream");
}

/// The socket of a node that listens on TCP.
pub(crate) fn socket_of(node: &Node) -> SocketAddr {
    let text = node.listen_address().to_string();
    let parts: Vec<&str> = text.split('/').collect();
    format!("{}:{}", parts[2], parts[4]).parse().expect("an IP address and a port")
}
