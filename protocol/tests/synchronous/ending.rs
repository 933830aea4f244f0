//! Members reach the end of a run a moment apart and leave: none of them is left waiting for those that have ended.

use super::*;

/// Members that train to the same end, where all of them are needed, and leave then.
fn members_that_leave(topology: Topology, count: usize, seed: u64) -> World {
    let mut world = World::empty(topology, seed, Sabotage::None);
    (world.members_min, world.ends_at) = (count as u32, 40.0);
    (0..count).for_each(|node| world.add(if node == 0 { Start::WithModel } else { Start::FromPeer }));
    world
}

impl World {
    fn run_until_one_is_at(&mut self, progress: f64) {
        while self.members.iter().all(|member| member.report.progress < progress) {
            assert!(self.now < Time::from_start(Duration::from_secs(60)), "nobody comes to step {progress}");
            self.run(milliseconds(5));
        }
    }

    fn expect_all_have_left(&self, what: &str) {
        assert_eq!(self.broken, [] as [String; 0], "{what}");
        for (node, member) in self.members.iter().enumerate() {
            let status = member.node.status();
            assert!(member.has_left, "{what}: node {node} waits: {:?}, {:?}", status.phase, status.synchronous);
            assert_eq!(member.report.progress, self.ends_at, "{what}: node {node}");
        }
    }
}

/// What it misses of the last operation it gets as a replica, from one that stays for it.
#[test]
fn one_that_misses_the_last_sum_gets_the_replica_from_those_that_have_ended() {
    for topology in TOPOLOGIES {
        for victim in 0..4 {
            let mut world = members_that_leave(topology, 4, victim as u64);
            world.run_until_one_is_at(39.0);
            world.deaf = vec![victim];
            world.run(Duration::from_secs(5));
            world.deaf.clear();
            world.run(Duration::from_secs(40));
            let what = format!("{topology} to {victim}");
            world.expect_all_have_left(&what);
            let replicas: Vec<_> = world.members.iter().map(|member| &member.replica).collect();
            assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{what}: {replicas:?}");
        }
    }
}

/// It asked for nothing until its contribution was there, and by then the others had left: it ended with a model of its own.
#[test]
fn one_that_is_left_out_gets_the_replica_of_those_that_end_without_it() {
    for (topology, silent) in TOPOLOGIES.into_iter().flat_map(|topology| [(topology, 0), (topology, 2)]) {
        let mut world = World::empty(topology, 5, Sabotage::None);
        world.ends_at = 40.0;
        let what = format!("{topology} without {silent}");
        (0..3).for_each(|node| world.add(if node == 0 { Start::WithModel } else { Start::FromPeer }));
        world.run_until_one_is_at(10.0);
        world.members[silent].slowness = None;
        world.run_until_one_is_at(39.0);
        assert!(world.status(silent).is_left_out, "{what}: {:?}", world.status(silent));
        world.run(Duration::from_secs(60));
        world.expect_all_have_left(&what);
        let replicas: Vec<_> = world.members.iter().map(|member| &member.replica).collect();
        assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{what}: {replicas:?}");
    }
}

/// Two that copy at once are each in an epoch with the one that has ended: neither leaves the other one out.
#[test]
fn two_that_miss_the_last_sum_both_get_the_replica_once() {
    let mut found = 0;
    let pairs = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
    let all = pairs.into_iter().flat_map(|victims| (0..3).map(move |seed| (victims, seed)));
    for (topology, (victims, seed)) in
        TOPOLOGIES.into_iter().flat_map(|topology| all.clone().map(move |one| (topology, one)))
    {
        let mut world = members_that_leave(topology, 4, seed);
        world.run_until_one_is_at(39.0);
        (world.deaf, world.stays, world.replica_delay) = (victims.to_vec(), true, 2000);
        world.run(Duration::from_secs(5));
        world.deaf.clear();
        let is_at_the_end = |node: &usize| world.members[*node].report.progress == 40.0;
        let (ended, behind): (Vec<usize>, Vec<usize>) = (0..4).partition(is_at_the_end);
        if ended.is_empty() || behind.len() < 2 {
            continue;
        }
        found += 1;
        let copied: Vec<u64> = behind.iter().map(|node| world.status(*node).copied).collect();
        world.sent = Sent::default();
        world.run(Duration::from_secs(20));
        let what = format!("seed {seed}, {topology} to {behind:?}");
        assert_eq!(world.broken, [] as [String; 0], "{what}");
        for (node, copied) in behind.iter().zip(copied) {
            assert_eq!(world.members[*node].replica, world.members[ended[0]].replica, "{what}: node {node}");
            assert_eq!(world.status(*node).copied, copied + 1, "{what}: node {node}");
        }
        assert_eq!(world.sent.replicas, behind.len() as u32, "{what}");
    }
    assert!(found > 4, "two were behind {found} times");
}

#[test]
fn two_that_come_after_the_end_both_get_the_replica_once_and_hardly_a_word_is_said() {
    for topology in TOPOLOGIES {
        let mut world = members_that_leave(topology, 2, 9);
        world.stays = true;
        world.run(Duration::from_secs(30));
        assert!(world.members.iter().all(|member| member.report.progress == 40.0), "{topology}");
        (world.snapshot_delay, world.replica_delay, world.sent) = (500, 2000, Sent::default());
        world.add(Start::FromPeer);
        world.run(milliseconds(100));
        world.add(Start::FromPeer);
        world.run(Duration::from_secs(10));
        assert_eq!(world.broken, [] as [String; 0], "{topology}");
        for node in [2, 3] {
            assert_eq!(world.status(node).copied, 1, "{topology}: node {node}");
            assert_eq!(world.members[node].replica, world.members[0].replica, "{topology}: node {node}");
        }
        assert_eq!(world.sent.replicas, 2, "{topology}");
        assert!(world.sent.words < 60, "{topology}: {} words", world.sent.words);
    }
}

/// One that stands still for longer than anybody stays finds nobody, and ends by itself.
#[test]
fn whoever_stands_still_at_the_end_ends_and_those_that_have_ended_do_not_wait_for_ever() {
    for seed in 0..16 {
        let mut fate = stream(seed, "fate at the end", &[]);
        let topology = TOPOLOGIES[fate.random_range(0..4)];
        let mut world = members_that_leave(topology, fate.random_range(2..6), seed);
        world.lost = [0.0, 0.0, 0.05][fate.random_range(0..3)];
        world.run_until_one_is_at(f64::from(fate.random_range(36..41)));
        world.run(milliseconds(fate.random_range(0..120)));
        let victim = fate.random_range(0..world.members.len());
        world.members[victim].paused_until = world.now + milliseconds(fate.random_range(200..20_000));
        world.run(Duration::from_secs(10));
        world.lost = 0.0;
        world.run(Duration::from_secs(110));
        world.expect_all_have_left(&format!("seed {seed}, {topology}, {victim} stands still"));
    }
}

/// Who has left because the run is complete is not missing, although all members are needed.
#[test]
fn one_that_cannot_be_reached_ends_by_itself_once_the_others_have_left() {
    let mut found = 0;
    for (topology, seed) in TOPOLOGIES.into_iter().flat_map(|topology| (0..4).map(move |seed| (topology, seed))) {
        let mut world = members_that_leave(topology, 3, seed);
        world.run_until_one_is_at(40.0);
        let Some(victim) = (0..3).find(|node| world.members[*node].report.progress < 40.0) else { continue };
        found += 1;
        world.deaf = vec![victim];
        for (node, happening) in world.happenings.values_mut() {
            let is_transfer = matches!(happening, Happening::Told(Event::TransferReceived { .. }));
            if *node == victim && is_transfer {
                *happening = Happening::Told(Event::TimePassed);
            }
        }
        world.run(Duration::from_secs(200));
        world.expect_all_have_left(&format!("{topology}, seed {seed}, without {victim}"));
    }
    assert!(found > 4, "a member was behind {found} times");
}

/// Nobody stays for long where all have ended.
#[test]
fn those_that_end_together_leave_at_once() {
    let mut world = members_that_leave(Topology::Ring, 4, 3);
    world.run_until_one_is_at(40.0);
    world.run(milliseconds(300));
    world.expect_all_have_left("together");
}
