//! The `murmur` command.
fn main() {}
