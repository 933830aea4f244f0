//! See `tests/src/fuzz/codec.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("codec"), |bytes| fuzz::read("codec", bytes));
