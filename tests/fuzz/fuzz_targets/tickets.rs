//! See `tests/src/fuzz/tickets.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("tickets"), |bytes| fuzz::read("tickets", bytes));
