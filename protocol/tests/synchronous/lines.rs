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

/// Only those that all reach each other directly form a group: one that some of them reach is not taken in, however often it asks.
#[test]
fn one_whom_not_all_reach_does_not_stop_the_others() {
    for topology in TOPOLOGIES {
        let mut world = World::empty(topology, 13, Sabotage::None);
        world.apart = vec![(1, 2)];
        (0..3).for_each(|node| world.add(if node == 0 { Start::WithModel } else { Start::FromPeer }));
        world.run(Duration::from_secs(4));
        let before = world.status(0);
        world.run(Duration::from_secs(60));
        let after = world.status(0);
        assert_eq!(world.broken, [] as [String; 0], "{topology}");
        assert!(after.members == 2 && after.finished > before.finished + 200, "{topology}: {before:?}, {after:?}");
        assert_eq!(after.dropped, before.dropped, "{topology}");
    }
}

/// One that reaches some of a group first is taken in once it reaches all, when it says so the next time.
#[test]
fn one_that_reaches_the_group_bit_by_bit_is_taken_in_within_seconds() {
    let mut world = World::empty(Topology::Ring, 14, Sabotage::None);
    world.add(Start::WithModel);
    world.add(Start::FromPeer);
    world.run(Duration::from_secs(4));
    world.apart = vec![(1, 2)];
    world.add(Start::FromPeer);
    world.run(Duration::from_secs(1));
    assert_eq!(world.status(0).members, 2);
    world.apart.clear();
    for (node, peer) in [(1, id(2)), (2, id(1))] {
        world.later(node, 5, Happening::Told(Event::PathChanged { peer, is_direct: true }));
    }
    world.run(Duration::from_secs(4));
    assert_eq!((world.status(0).members, world.broken), (3, vec![]));
}
