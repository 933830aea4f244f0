//! Lines that are slow, and pairs of members that no direct line joins.

use super::*;

/// The others wait for as long as a copy takes on a slow line, and the one that comes is not sent it again and again.
#[test]
fn one_whose_replica_takes_long_is_waited_for_once() {
    let mut world = World::empty(Topology::Ring, 12, Sabotage::None);
    // The copy may take 11 s longer than a copy of a small model.
    world.parameters = 250_000;
    world.add(Start::WithModel);
    world.add(Start::FromPeer);
    world.run(Duration::from_secs(4));
    world.replica_delay = 40_000;
    world.add(Start::FromPeer);
    world.run(Duration::from_secs(44));
    let all: Vec<_> = (0..3).map(|node| world.status(node)).collect();
    assert_eq!(world.broken, [] as [String; 0]);
    assert!(all.iter().all(|status| status.members == 3), "{all:?}");
    assert_eq!((all[0].dropped, all[2].copied), (0, 1), "{all:?}");
    assert!(all[2].finished > 5, "{all:?}");
}
