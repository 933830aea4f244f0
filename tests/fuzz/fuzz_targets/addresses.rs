//! See `tests/src/fuzz/addresses.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("addresses"), |bytes| fuzz::read("addresses", bytes));
