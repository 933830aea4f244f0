//! Random schedules of the state machine, bad ones included, as a property: whatever a world does to a few nodes, the
//! laws of an exchange hold, and nobody panics.
//!
//! The same worlds are lived through by the fuzzer in `tests/fuzz`; here a bounded number of them, and its corpus.

pub(crate) mod tape;
mod world;

use murmur_protocol::{Message, codec, replay};
use proptest::prelude::*;

use self::tape::Tape;
use self::world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_laws_hold_on_every_schedule(tape in proptest::collection::vec(any::<u8>(), 0..1500)) {
        World::live(&mut Tape::new(&tape));
    }

    #[test]
    fn what_decodes_encodes_to_the_same_message(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = codec::decode::<Message>(&bytes) {
            let again = codec::decode::<Message>(&codec::encode(&message));
            // As text, since a message may hold NaN, which equals nothing.
            prop_assert_eq!(format!("{:?}", again.expect("our own encoding")), format!("{message:?}"));
        }
    }
}

/// A recording of a node, whatever its world did to it, is replayed to the last decision.
#[test]
fn what_is_recorded_is_decided_again() {
    let mut random = 1_u64;
    let mut byte = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    };
    let (mut landed, mut events, mut effects) = (0, 0, 0);
    for _ in 0..40 {
        let bytes: Vec<u8> = (0..1500).map(|_| byte()).collect();
        let (corrections, recordings) = World::live_recorded(&mut Tape::new(&bytes));
        landed += corrections;
        for recording in recordings {
            let checked = replay::check(&recording, "0").expect("whole");
            assert_eq!(checked.difference, None);
            events += checked.events;
            effects += checked.effects;
        }
    }
    assert!(
        landed > 20 && events > 5_000 && effects > 5_000,
        "{landed} corrections, {events} events, {effects} effects"
    );
}

/// Schedules that once broke something, or reach far: the fuzzer's corpus.
#[test]
fn the_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fuzz/corpus/schedules");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is part of the repository").collect();
    let mut landed = 0;
    for file in files {
        let path = file.expect("a readable folder").path();
        landed += World::live(&mut Tape::new(&std::fs::read(&path).expect("a readable file")));
    }
    assert!(landed >= 40, "only {landed} corrections: these schedules reach nowhere");
}
