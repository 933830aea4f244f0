//! Owners who want the network left alone for a while, and those who leave.

use super::*;

#[test]
fn an_owner_who_rests_is_not_waited_for_and_one_who_leaves_costs_nothing() {
    let mut world = World::new(Topology::Ring, 3, 5, Sabotage::None);
    world.run(Duration::from_secs(5));
    world.later(1, 0, Happening::Told(Event::RestBegan));
    world.run(Duration::from_secs(8));
    assert_eq!((world.status(0).members, world.status(1).members, world.status(2).members), (2, 0, 2));
    world.later(1, 0, Happening::Told(Event::RestEnded));
    world.run(Duration::from_secs(4));
    world.expect_one_group("it is back");
    let waited = world.status(0).waited;
    world.later(2, 0, Happening::Told(Event::LeaveRequested));
    world.run(milliseconds(1500));
    world.members[2].is_dead = true;
    world.expect_one_group("one has left");
    assert!(world.status(0).waited - waited < Duration::from_secs(6));
}

/// However often others connect to it, it does not ask to be taken in.
#[test]
fn one_that_rests_is_not_taken_in_where_somebody_connects_to_it() {
    let mut world = World::new(Topology::Ring, 3, 14, Sabotage::None);
    world.run(Duration::from_secs(5));
    world.later(2, 0, Happening::Told(Event::RestBegan));
    world.run(Duration::from_secs(3));
    let before = world.status(0);
    for _ in 0..3 {
        world.later(0, 0, Happening::Told(Event::PeerDisconnected { peer: id(2) }));
        world.later(2, 0, Happening::Told(Event::PeerDisconnected { peer: id(0) }));
        world.connect(0, 2);
        world.run(Duration::from_secs(10));
    }
    let after = world.status(0);
    assert!(after.members == 2 && after.finished > before.finished + 200, "{before:?}, {after:?}");
    assert_eq!(after.dropped, before.dropped);
    world.later(2, 0, Happening::Told(Event::RestEnded));
    world.run(Duration::from_secs(3));
    world.expect_one_group("it is back");
}

/// It was to give its replica, and heard nobody.
#[test]
fn one_that_has_ended_and_rests_gives_its_replica_to_who_is_behind() {
    let mut world = World::new(Topology::Ring, 1, 15, Sabotage::None);
    world.run(Duration::from_secs(3));
    let report = world.members[0].report;
    (world.stays, world.ends_at) = (true, report.progress);
    world.later(0, 0, Happening::Told(Event::TrainingCompleted(report)));
    world.later(0, 1, Happening::Told(Event::RestBegan));
    world.run(milliseconds(10));
    world.add(Start::FromPeer);
    world.run(Duration::from_secs(5));
    assert_eq!((world.members[1].report.progress, world.status(1).copied), (report.progress, 1));
    assert_eq!(world.members[1].replica, world.members[0].replica);
}
