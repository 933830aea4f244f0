//! See `tests/src/fuzz/models.rs`.

#![no_main]

use murmur_tests::fuzz;

// The tokenizers library panics at some files, and its reader catches that: the fuzzer's own hook would end the process first.
libfuzzer_sys::fuzz_target!(
    init: {
        fuzz::write_seeds("models");
        std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    },
    |bytes| fuzz::read("models", bytes)
);
