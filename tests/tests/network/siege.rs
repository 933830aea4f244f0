//! A short siege: real daemons under the faults of one seed. `cargo run -p murmur-tests --example siege` takes longer ones.

use std::time::Duration;

use murmur_tests::siege::besiege;

use crate::MURMUR;

#[test]
fn a_swarm_under_siege_trains_on_and_recovers() {
    besiege(MURMUR, 4, Duration::from_secs(30), 1);
}
