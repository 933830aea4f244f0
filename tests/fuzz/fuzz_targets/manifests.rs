#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| murmur_tests::fuzz::read("manifests", bytes));
