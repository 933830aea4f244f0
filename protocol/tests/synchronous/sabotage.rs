//! Each law is broken by what it is to find, and a world with one seed is one.

use super::*;

#[test]
fn sabotage_is_found() {
    let broken = |sabotage, words: &str| {
        let mut world = World::new(Topology::Ring, 3, 3, sabotage);
        world.run(Duration::from_secs(12));
        let found = world.broken.iter().any(|what| what.contains(words));
        assert!(found, "{words}: {:?}", world.broken);
    };
    broken(Sabotage::AddsTwice, "the sum");
    broken(Sabotage::TakesUpTwice, "another replica");
    broken(Sabotage::KeepsItsReplica, "another replica");
    let mut world = World::new(Topology::Ring, 3, 3, Sabotage::NeverLooksAtTheClock);
    world.run(Duration::from_secs(8));
    world.members[2].paused_until = Time::MAX;
    let before = world.status(0).finished;
    world.run(Duration::from_secs(60));
    assert!(world.status(0).finished <= before + 1, "without a deadline nobody goes on");
}

/// The core with the same seed does the same, event for event.
#[test]
fn a_world_with_the_same_seed_ends_with_the_same_bits() {
    let end = || {
        let mut world = World::new(Topology::HalvingDoubling, 5, 8, Sabotage::None);
        world.lost = 0.1;
        world.run(Duration::from_secs(6));
        world.kill(2);
        world.run(Duration::from_secs(20));
        (world.replicas, (0..5).map(|node| world.members[node].replica.clone()).collect::<Vec<_>>())
    };
    assert_eq!(end(), end());
}
