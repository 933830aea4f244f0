//! See `tests/src/fuzz/handshake.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("handshake"), |bytes| fuzz::read("handshake", bytes));
