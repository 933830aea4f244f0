//! See `tests/src/fuzz/settings.rs`.

#![no_main]

use murmur_tests::fuzz;

libfuzzer_sys::fuzz_target!(init: fuzz::write_seeds("settings"), |bytes| fuzz::read("settings", bytes));
