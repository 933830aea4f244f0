//! What a node takes for a control message about members: with ten connections and a full view.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use murmur_protocol::message::{Accept, Descriptor, KnownPeer, Standing};
use murmur_protocol::*;

const CONNECTIONS: usize = 10;

/// Members that the others tell of, many more than a view holds.
const MEMBERS: usize = 300;

fn peer(number: usize) -> PeerId {
    PeerId::from_public_key(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn address(number: usize) -> Address {
    Address::new(format!("/ip4/10.0.0.1/udp/{number}/quic-v1")).expect("short")
}

/// Nine members in turn.
fn sample(turn: usize) -> Vec<Descriptor> {
    let number = |index: usize| CONNECTIONS + (9 * turn + index) % (MEMBERS - CONNECTIONS);
    let known = |number| KnownPeer { peer: peer(number), addresses: vec![address(number)] };
    (0..9)
        .map(|index| Descriptor {
            known: known(number(index)),
            age_seconds: (turn % 50) as u32,
            profile: Profile::default(),
        })
        .collect()
}

fn tell(node: &mut Node, now: Time, event: Event) {
    node.handle(now, event);
    while node.poll_effect().is_some() {}
}

fn node() -> Node {
    let layout = Arc::new(ModelLayout::new([("model".to_owned(), vec![8])]));
    let mut node = Node::new(Config::founder(&RunManifest::default()), peer(usize::MAX), layout, 1, Time::ZERO);
    while node.poll_effect().is_some() {}
    tell(&mut node, Time::ZERO, Event::AddressFound { address: address(0) });
    for number in 0..CONNECTIONS {
        let addresses = vec![address(number)];
        tell(&mut node, Time::ZERO, Event::PeerConnected { peer: peer(number), addresses });
    }
    for turn in 0..100 {
        let message = Message::Shuffle { peers: sample(turn), wants_reply: false };
        tell(&mut node, Time::ZERO, Event::MessageReceived { peer: peer(turn % CONNECTIONS), message });
    }
    node
}

fn membership(criterion: &mut Criterion) {
    let samples: Vec<Vec<Descriptor>> = (0..1000).map(sample).collect();
    let mut group = criterion.benchmark_group("control");
    let mut turn = 0;
    let mut next = move || {
        turn += 1;
        turn
    };
    let mut settled = node();
    group.bench_function("shuffle of nine", |bencher| {
        bencher.iter(|| {
            let turn = next();
            let message = Message::Shuffle { peers: samples[turn % samples.len()].clone(), wants_reply: false };
            tell(&mut settled, Time::ZERO, Event::MessageReceived { peer: peer(turn % CONNECTIONS), message });
        });
    });
    group.bench_function("copying the nine and naming the peer, part of all these", |bencher| {
        bencher.iter(|| {
            let turn = next();
            (samples[turn % samples.len()].clone(), peer(turn % CONNECTIONS))
        });
    });
    let mut settled = node();
    let mut now = Time::ZERO;
    group.bench_function("shuffle of nine with a reply, and a word of all peers", |bencher| {
        bencher.iter(|| {
            let turn = next();
            now = now + Duration::from_millis(150);
            let message = Message::Shuffle { peers: samples[turn % samples.len()].clone(), wants_reply: true };
            tell(&mut settled, now, Event::MessageReceived { peer: peer(turn % CONNECTIONS), message });
            // Nobody is to be suspected of silence.
            let message = Message::Shuffle { peers: Vec::new(), wants_reply: false };
            tell(&mut settled, now, Event::MessageReceived { peer: peer((turn + 5) % CONNECTIONS), message });
        });
    });
    let mut settled = node();
    let standing = Standing { weight: 1.0, clip: 1.0, gamma: 0.5, progress: 0.0 };
    group.bench_function("late answer", |bencher| {
        bencher.iter(|| {
            let message = Message::Accept(Accept { exchange: 77, starter_share: 0.5, reference: 0, standing });
            tell(&mut settled, Time::ZERO, Event::MessageReceived { peer: peer(next() % CONNECTIONS), message });
        });
    });
    group.finish();
}

criterion_group!(benches, membership);
criterion_main!(benches);
