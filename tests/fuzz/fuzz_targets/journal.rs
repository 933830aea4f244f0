//! See `tests/src/fuzz/journal.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("journal"), |bytes| fuzz::read("journal", bytes));
