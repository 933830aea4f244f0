//! Random schedules of the state machine, bad ones included, as a property: whatever a world does to a few nodes, the
//! laws of an exchange hold, and nobody panics.
//!
//! The same worlds are lived through by the fuzzer in `protocol/fuzz`; here a bounded number of them, and its corpus.

mod tape;
mod world;

use murmur_protocol::{Message, codec};
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

/// Schedules that once broke something, or reach far: the fuzzer's corpus.
#[test]
fn the_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/schedules");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is part of the repository").collect();
    let mut landed = 0;
    for file in files {
        let path = file.expect("a readable folder").path();
        landed += World::live(&mut Tape::new(&std::fs::read(&path).expect("a readable file")));
    }
    assert!(landed >= 40, "only {landed} corrections: these schedules reach nowhere");
}
