//! How long the state machine takes for one control event, effects drained: with eight partners connected and a full
//! view, as in a large swarm.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use murmur_protocol::message::{Descriptor, KnownPeer, Propose, Standing};
use murmur_protocol::*;

fn peer(number: u64) -> PeerId {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    PeerId::from_public_key(key)
}

fn descriptor(number: u64) -> Descriptor {
    let address = Address::new(format!("/ip4/10.0.{}.{}/tcp/4711", number / 250, number % 250)).expect("short");
    Descriptor {
        known: KnownPeer { peer: peer(number), addresses: vec![address] },
        age_seconds: 30,
        profile: Profile::default(),
    }
}

fn report(steps: u64) -> TrainingReport {
    TrainingReport { steps, progress: steps as f64, tokens_per_second: 1e4, travel: 5.0, local_progress: 0.1 }
}

struct Setting {
    node: Node,
    now: Time,
    count: u64,
}

impl Setting {
    fn new() -> Setting {
        let layout = Arc::new(ModelLayout::new([("model".to_owned(), vec![1000])]));
        let node = Node::new(Config::founder(&RunManifest::default()), peer(0), layout, 1, Time::ZERO);
        let mut setting = Setting { node, now: Time::ZERO, count: 0 };
        setting.drain();
        for number in 1..=8 {
            setting.tell(Event::PeerConnected { peer: peer(number), addresses: vec![] });
        }
        for batch in 0..30u64 {
            let peers = (0..bounds::PEERS_TOLD_MAX as u64).map(|number| descriptor(100 + 16 * batch + number));
            let message = Message::Shuffle { peers: peers.collect(), wants_reply: false };
            setting.tell(Event::MessageReceived { peer: peer(1 + batch % 8), message });
        }
        setting
    }

    fn drain(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            black_box(effect);
        }
    }

    fn tell(&mut self, event: Event) {
        self.count += 1;
        self.now = self.now + Duration::from_micros(100);
        self.node.handle(self.now, event);
        self.drain();
    }
}

fn control_events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    let mut measure = |name: &str, make: &dyn Fn(u64) -> Event| {
        let mut setting = Setting::new();
        group.bench_function(name, |bencher| {
            let mut number = 0;
            bencher.iter_batched(
                || {
                    number += 1;
                    make(number)
                },
                |event| setting.tell(event),
                BatchSize::SmallInput,
            );
        });
    };
    measure("steps completed", &|_| Event::StepsCompleted(report(1)));
    measure("time passed", &|_| Event::TimePassed);
    let standing = Standing { weight: 1e4, clip: 1.0, gamma: 0.5, progress: 1.0 };
    measure("proposal", &|number| {
        let propose = Propose {
            exchange: number,
            part: Part::MODEL,
            nonce: number,
            bits: 8,
            reference: 0,
            standing,
            deadline_ms: 20_000,
            step_left_max_ms: u32::MAX,
        };
        Event::MessageReceived { peer: peer(1 + number % 8), message: Message::Propose(propose) }
    });
    measure("shuffle", &|number| {
        let peers = (0..bounds::PEERS_TOLD_MAX as u64).map(|offset| descriptor(100 + (number + offset) % 400));
        let message = Message::Shuffle { peers: peers.collect(), wants_reply: true };
        Event::MessageReceived { peer: peer(1 + number % 8), message }
    });
    group.finish();
}

criterion_group!(benches, control_events);
criterion_main!(benches);
