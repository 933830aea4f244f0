//! Sequences of events: the worlds of `protocol/tests/schedules.rs`, with the fuzzer as their fate.
//! `cargo fuzz run -s none schedules` in `tests`

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../protocol/tests/schedules/tape.rs"]
mod tape;
#[path = "../../../protocol/tests/schedules/world.rs"]
mod world;

fuzz_target!(|bytes: &[u8]| {
    // Longer tapes only take longer.
    world::World::live(&mut tape::Tape::new(&bytes[..bytes.len().min(2000)]));
});
