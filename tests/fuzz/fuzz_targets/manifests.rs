//! See `tests/src/fuzz/manifests.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("manifests"), |bytes| fuzz::read("manifests", bytes));
