//! Slices in fewer bits: members round, and have the same bits nevertheless.

use super::*;

/// In 16 and in 8 bits as well: whoever dies, comes and stands still, replicas are one, bit for bit.
#[test]
fn rounded_slices_leave_replicas_one() {
    for (topology, slice_bits) in TOPOLOGIES.into_iter().flat_map(|topology| [(topology, 16), (topology, 8)]) {
        let mut world = World::empty(topology, 9, Sabotage::None);
        (world.slice_bits, world.lost) = (slice_bits, 0.02);
        (0..4).for_each(|node| world.add(if node == 0 { Start::WithModel } else { Start::FromPeer }));
        world.run(Duration::from_secs(4));
        world.members[1].paused_until = world.now + Duration::from_secs(3);
        world.run(Duration::from_secs(3));
        world.kill(2);
        world.add(Start::FromPeer);
        world.run(Duration::from_secs(3));
        world.lost = 0.0;
        world.run(Duration::from_secs(10));
        world.expect_one_group(&format!("{topology} in {slice_bits} bits"));
    }
}
