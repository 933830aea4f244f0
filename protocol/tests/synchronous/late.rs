//! Trainers that have nothing to contribute for long, although their node answers.

use super::*;

/// It said where it stood, and so each operation was begun anew with it, with a longer deadline each time.
#[test]
fn one_whose_trainer_has_nothing_to_contribute_is_left_out_until_it_has() {
    for topology in TOPOLOGIES {
        for silent in [0, 2] {
            let mut world = World::new(topology, 3, 21, Sabotage::None);
            world.run(Duration::from_secs(6));
            let (what, other) = (format!("{topology} without {silent}"), 1);
            let before = world.status(other);
            world.members[silent].slowness = None;
            world.run(4 * before.deadline + Duration::from_secs(3));
            let after = world.status(other);
            assert!(after.members == 2 && after.finished > before.finished + 10, "{what}: {before:?}, {after:?}");
            world.run(Duration::from_secs(60));
            for peer in (0..3).filter(|peer| *peer != silent) {
                world.later(peer, 0, Happening::Told(Event::PeerDisconnected { peer: id(silent) }));
                world.later(silent, 0, Happening::Told(Event::PeerDisconnected { peer: id(peer) }));
                world.connect(silent, peer);
                world.run(Duration::from_secs(30));
            }
            assert_eq!(world.status(other).dropped, after.dropped, "{what}: it holds nobody up any more");
            world.add(Start::FromPeer);
            world.run(Duration::from_secs(60));
            let later = world.status(other);
            assert!(later.members == 3 && later.finished > after.finished + 400, "{what}: {after:?}, {later:?}");
            assert!(later.dropped <= after.dropped + 1, "{what}: nor where somebody comes: {after:?}, {later:?}");
            world.members[silent].slowness = Some(0);
            let (request, order) =
                (world.members[silent].kept.take().expect("it was asked"), world.members[silent].orders);
            world.later(silent, 0, Happening::Contributed(request, order));
            world.run(Duration::from_secs(2));
            world.expect_one_group(&what);
        }
    }
}

/// Each time that it has come back it is waited for longer.
#[test]
fn one_that_is_slow_alone_is_waited_for_in_the_end() {
    let mut world = World::new(Topology::Ring, 3, 22, Sabotage::None);
    world.run(Duration::from_secs(6));
    world.members[2].slowness = Some(100_000);
    let before = world.status(2).finished;
    world.run(Duration::from_secs(1200));
    assert_eq!(world.broken, [] as [String; 0]);
    let after = world.status(2).finished;
    assert!(after > before + 3, "{before}, then {after}: {:?}", world.status(0));
}
