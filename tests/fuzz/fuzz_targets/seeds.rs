//! Writes sound inputs of all targets into `corpus`, for the fuzzer to begin with: `cargo run --bin seeds` in `tests/fuzz`.

fn main() {
    murmur_tests::fuzz::write_seeds(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")));
}
