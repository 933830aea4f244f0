//! Members whose copy of a replica, or whose sum, is lost: they claim no replica that they do not have, and nobody copies it.

use super::*;

/// Two members; the second one has come.
fn two(seed: u64) -> World {
    let mut world = World::new(Topology::Ring, 2, seed, Sabotage::None);
    world.run(Duration::from_secs(4));
    world.expect_one_group("before");
    world
}

impl World {
    /// One of two has copied the replica of the other one again; the other one has kept its own.
    fn expect_copied(&mut self, who: usize, before: [u64; 2], what: &str) {
        self.expect_one_group(what);
        let after = self.copies();
        assert_eq!(after[1 - who], before[1 - who], "{what}: the other one");
        let differed = [0, 1].map(|node| self.status(node).differed);
        assert_eq!(differed, [0, 0], "{what}");
    }

    fn copies(&self) -> [u64; 2] {
        [0, 1].map(|node| self.status(node).copied)
    }
}

#[test]
fn one_whose_copy_is_unfit_copies_again_and_nobody_takes_its_model_for_the_replica() {
    for seed in 0..6 {
        let mut world = World::empty(Topology::Ring, seed, Sabotage::None);
        world.add(Start::WithModel);
        world.add(Start::FromPeer);
        world.members[1].refusals = 1;
        world.run(Duration::from_secs(4));
        world.expect_copied(1, [0, 1], &format!("seed {seed}"));
        assert_eq!(world.copies(), [0, 2], "seed {seed}");
    }
}

#[test]
fn one_whose_last_reduction_fails_copies_what_it_has_not_taken_up() {
    let mut copied = 0;
    for (seed, who) in (0..6).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let mut world = two(seed);
        let before = world.copies();
        world.members[who].trouble = Some(Trouble::WorkerFails);
        world.run(Duration::from_secs(2));
        assert!(world.members[who].trouble.is_none());
        world.expect_copied(who, before, &format!("seed {seed}, member {who}"));
        // Where the other one has not taken the sum up either, both go on from where they were.
        copied += world.copies()[who] - before[who];
    }
    assert!(copied > 3, "a sum was lost that the other one had {copied} times");
}

#[test]
fn one_that_rests_before_it_has_taken_a_sum_up_copies_the_replica_of_one_that_has() {
    for (seed, who) in (0..4).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let mut world = two(seed);
        let before = world.copies();
        world.members[who].trouble = Some(Trouble::RestBegins);
        let progress = |world: &World, node: usize| world.members[node].report.progress;
        while world.members[who].trouble.is_some() || progress(&world, 1 - who) <= progress(&world, who) {
            world.run(milliseconds(1));
        }
        world.later(1 - who, 0, Happening::Told(Event::RestBegan));
        world.run(Duration::from_secs(2));
        (0..2).for_each(|node| world.later(node, 0, Happening::Told(Event::RestEnded)));
        world.run(Duration::from_secs(2));
        world.expect_copied(who, before, &format!("seed {seed}, member {who}"));
    }
}

/// The copy was of the replica before, and went to the next one that had come as that of the present one.
#[test]
fn a_copy_that_takes_long_is_sent_as_that_of_the_replica_that_it_is() {
    for seed in 0..4 {
        let mut world = two(seed);
        world.snapshot_delay = 3000;
        world.add(Start::FromPeer);
        world.run(Duration::from_secs(1));
        world.kill(2);
        world.run(Duration::from_secs(1));
        world.add(Start::FromPeer);
        world.run(Duration::from_secs(8));
        world.expect_one_group(&format!("seed {seed}"));
        let all = [0, 1, 3].map(|node| world.status(node));
        assert_eq!((all.each_ref().map(|one| one.differed), all[2].copied), ([0; 3], 1), "seed {seed}: {all:?}");
    }
}
