//! Closed runs: what somebody without the secret learns of one, and that members find and reach each other in it.

use std::collections::BTreeSet;

use murmur_network::streams::BULK_PROTOCOL;
use murmur_network::{Connectivity, Exposure, NetworkConfig};
use murmur_protocol::NetworkOrder;
use murmur_protocol::handshake::{Answer, Denial, Refusal, Stamps};
use murmur_protocol::{Address, Event, RunManifest, Secret, codec};
use tokio::time::timeout;

use crate::finding::find_each_other;
use crate::node::{DEADLINE, Node, Over, config, meet, next_event, over_tcp_and_quic};
use crate::raw::Raw;
use crate::stranger::{Learnt, Trap, knock};

/// Everything that a node can offer, but for what it tells the local network.
const EVERYTHING: Connectivity = Connectivity {
    mdns: false,
    kademlia: true,
    nat: true,
    relay_server: true,
    upnp: false,
    exposure: Exposure::Public,
};

const CLOSED: Option<Secret> = Some(Secret::from_bytes([7; 32]));

async fn with_everything(over: Over, secret: &Option<Secret>) -> Node {
    let (connectivity, secret) = (EVERYTHING, secret.clone());
    Node::start_with(NetworkConfig { connectivity, secret, ..config(over) }).await
}

/// Three members that know of each other, two of them by the third's table only: that one first.
async fn three_members(over: Over, secret: &Option<Secret>) -> [Node; 3] {
    let mut hub = with_everything(over, secret).await;
    let (mut first, mut last) = (with_everything(over, secret).await, with_everything(over, secret).await);
    meet(&mut first, &mut hub).await;
    meet(&mut last, &mut hub).await;
    find_each_other(&mut first, &mut last).await;
    [hub, first, last]
}

/// By which a member would be known, and the run: peer ids, addresses, the run's id.
fn secrets_of(members: &[Node]) -> Vec<(String, Vec<u8>)> {
    let run = RunManifest::default().run_id();
    let mut secrets =
        vec![("the run's id".to_owned(), run.0.to_vec()), ("its text".to_owned(), run.to_string().into())];
    for member in members {
        secrets.push((format!("the id {}", member.peer), member.peer.as_bytes().to_vec()));
        secrets.push((format!("{}", member.listen_address()), member.listen_address().to_vec()));
    }
    secrets
}

/// All that a node knows of others is told to whoever asks, in an open run. This shows that [`Learnt`] would find it.
async fn anybody_learns_the_members_of_an_open_run(over: Over) {
    let members = three_members(over, &None).await;
    // In its first ten seconds it may be given a model, and offers no probes.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let learnt = Learnt::of(&members[0].listen_address(), RunManifest::default().run_id()).await;
    let unheard: Vec<_> = secrets_of(&members).into_iter().filter(|(_, bytes)| !learnt.heard(bytes)).collect();
    // Whole ids of runs travel in manifests only.
    assert_eq!(unheard.iter().map(|(what, _)| what.as_str()).collect::<Vec<_>>(), ["the run's id"], "{learnt:?}");
    let info = learnt.identified.expect("it was identified");
    assert!(info.agent_version.starts_with("murmur/"), "{info:?}");
    assert_eq!(learnt.table.len(), 3, "{:?}", learnt.table);
    assert!(learnt.ponged);
    for spoken in ["/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/libp2p/autonat/2/dial-request", BULK_PROTOCOL.as_ref()] {
        assert!(learnt.listed.iter().any(|listed| listed == spoken), "{:?}", learnt.listed);
    }
    let reservation = &learnt.answers["/libp2p/circuit/relay/0.2.0/hop"];
    assert!(reservation.len() > 20, "it grants a place: {reservation:?}");
}

/// What there is to know: who listens (the encryption shows its id), that it speaks the handshake of a murmur of such a
/// version, and that its run is closed.
async fn a_stranger_learns_that_a_node_of_a_closed_run_listens_and_no_more(over: Over) {
    let mut members = three_members(over, &CLOSED).await;
    let address = members[0].listen_address();
    let learnt = Learnt::of(&address, RunManifest::default().run_id()).await;
    assert_eq!(learnt.listed, ["/murmur/control/1"], "all that is listed");
    assert!(learnt.answers.is_empty(), "nothing else is spoken: {:?}", learnt.answers);
    assert!(learnt.identified.is_none() && learnt.table.is_empty() && !learnt.ponged, "{learnt:?}");

    while members[0].events.try_recv().is_ok() {}
    let heard = knock(&address).await;
    for (challenge, answer) in &heard {
        assert_eq!(challenge.stamps(), Some(Stamps::default()), "not even what time it is there");
        assert!(matches!(answer, Answer::Denied(Denial::Closed | Denial::OtherSecret)), "{answer:?}");
        let said = [codec::encode(challenge), codec::encode(answer)].concat();
        for (what, bytes) in secrets_of(&members) {
            assert!(!said.windows(bytes.len()).any(|window| window == bytes), "{what} was told");
        }
    }
    let lengths: BTreeSet<usize> = heard.iter().map(|(challenge, _)| codec::encode(challenge).len()).collect();
    assert_eq!(lengths.len(), 1, "a challenge tells nothing by its length: {lengths:?}");
    // Its owner is told who knocked.
    for _ in &heard {
        let refusal = members[0].wait_for("HandshakeRefused", |event| match event {
            Event::HandshakeRefused { refusal, .. } => Some(refusal),
            Event::PeerConnected { .. } => panic!("a stranger was let in"),
            _ => None,
        });
        assert!(matches!(refusal.await, Refusal::Stranger | Refusal::OtherSecret));
    }
    // Members are let in still.
    let mut late = with_everything(over, &CLOSED).await;
    meet(&mut late, &mut members[0]).await;
}

over_tcp_and_quic!(anybody_learns_the_members_of_an_open_run);

over_tcp_and_quic!(a_stranger_learns_that_a_node_of_a_closed_run_listens_and_no_more);

/// A member dials whatever address it is told.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_dialed_by_a_member_of_a_closed_run_learns_no_more() {
    for over in [Over::Tcp, Over::Quic] {
        let mut member = with_everything(over, &CLOSED).await;
        let trap = Trap::set(config(over).listen.remove(0), RunManifest::default().run_id()).await;
        let address = Address::new(trap.address.to_string()).expect("short");
        member.order(NetworkOrder::Dial { peer: None, addresses: vec![address] });
        let learnt = trap.spring().await;
        assert!(learnt.identified.is_none() && learnt.table.is_empty() && !learnt.ponged, "{learnt:?}");
        let refused = next_event!(member, Event::HandshakeRefused { refusal, .. } => refusal);
        assert!(matches!(refused, Refusal::Garbage(_)), "it speaks no handshake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_says_nothing_is_hung_up_on() {
    for over in [Over::Tcp, Over::Quic] {
        let mut member = with_everything(over, &CLOSED).await;
        let silent = Raw::connect(member.listen_address()).await;
        timeout(DEADLINE, silent.streams.opener.closed()).await.expect("the member hangs up");
        while let Ok(event) = member.events.try_recv() {
            assert!(matches!(event, Event::AddressFound { .. }), "it is no event, but there was {event:?}");
        }
    }
}
