//! Groups of collectives on a small virtual network: sums are exact, states with one name are one, a death costs a
//! deadline. Each law has a sabotage that breaks it.

mod ending;
mod late;
mod world;

use std::time::Duration;

use super::*;
use crate::Time;
use crate::random::{RngExt, stream};
use world::{Happening, Place, Sabotage, World, id};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn every_shape_and_number_of_members_sums_exactly_and_ends() {
    for shape in Shape::ALL {
        for members in (1..=MEMBERS_MAX).filter(|members| *members <= 9 || members % 11 == 0 || *members == 64) {
            let mut world = World::new(shape, members, members as u64, Sabotage::None);
            world.begin_looking();
            world.run(seconds(6));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?} of {members}");
            assert!((0..members).all(|place| world.finished(place) >= 1), "{shape:?} of {members}");
        }
    }
}

#[test]
fn a_member_that_dies_costs_a_deadline_and_the_others_go_on() {
    for shape in Shape::ALL {
        for victim in [0, 3, 6] {
            let mut world = World::new(shape, 7, 40 + victim as u64, Sabotage::None);
            world.begin_looking();
            world.run(seconds(5));
            world.owners[victim].is_dead = true;
            let before = world.finished((victim + 1) % 7);
            world.run(seconds(30));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?} without {victim}");
            for place in (0..7).filter(|place| *place != victim) {
                assert!(world.finished(place) > before + 20, "{shape:?} without {victim}: {}", world.finished(place));
                let collective = &world.owners[place].collective;
                assert_eq!(collective.members().len(), 6);
                let stood_still = collective.counts(world.now).stood_still;
                assert!((Duration::from_millis(500)..seconds(6)).contains(&stood_still), "{stood_still:?}");
            }
        }
    }
}

#[test]
fn the_larger_part_goes_on_and_the_smaller_one_comes_back_with_its_state() {
    for shape in Shape::ALL {
        for seed in 0..5 {
            let mut world = World::new(shape, 7, seed, Sabotage::None);
            world.begin_looking();
            world.run(seconds(5));
            world.apart = vec![1, 4];
            world.run(seconds(20));
            let (inside, outside) = (world.finished(0), world.finished(4));
            assert!(inside > outside + 10, "{shape:?}: {inside} and {outside}");
            world.apart = Vec::new();
            world.run(seconds(60));
            assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
            let (least, most) = (0..7)
                .map(|place| world.finished(place))
                .fold((u64::MAX, 0), |(least, most), one| (least.min(one), most.max(one)));
            assert!(most - least <= 1 && least > inside + 20, "{shape:?}: {least} to {most}");
            assert!((0..7).all(|place| world.owners[place].collective.members().len() == 7), "{shape:?}");
            assert!(world.owners[4].collective.counts(world.now).copied >= 1);
        }
    }
}

/// Kills, splits and lost words at random: whatever happens, states with one name are one, and those left go on.
#[test]
fn laws_hold_under_random_faults() {
    for seed in 0..24u64 {
        let mut fate = stream(seed, "fate", &[]);
        let members = fate.random_range(3..10);
        let shape = Shape::ALL[fate.random_range(0..4)];
        let mut world = World::new(shape, members, seed, Sabotage::None);
        world.begin_looking();
        world.lost = fate.random_range(0..3) as f64 * 0.1;
        let mut at = 0;
        let deaths_max = (members - 1) / 2;
        let mut deaths = 0;
        for _ in 0..4 {
            at += fate.random_range(1000..8000);
            world.run(Duration::from_millis(at));
            if fate.random::<bool>() && deaths < deaths_max {
                let victim = fate.random_range(0..members);
                deaths += usize::from(!world.owners[victim].is_dead);
                world.owners[victim].is_dead = true;
            } else {
                let apart = fate.random_range(0..members as Place);
                world.apart = (0..members as Place).filter(|place| place % 3 == apart % 3).collect();
                at += fate.random_range(1000..8000);
                world.run(Duration::from_millis(at));
                world.apart = Vec::new();
            }
        }
        world.lost = 0.0;
        world.run(Duration::from_millis(at + 120_000));
        let before: Vec<u64> = (0..members).map(|place| world.finished(place)).collect();
        world.run(Duration::from_millis(at + 150_000));
        assert_eq!(world.broken, [] as [String; 0], "seed {seed}, {shape:?} of {members}");
        for place in (0..members).filter(|place| !world.owners[*place].is_dead) {
            assert!(world.finished(place) > before[place] + 10, "seed {seed}, {shape:?} of {members}: {place} stands");
        }
    }
}

/// Members that come with and without a state, die, are cut off and meet again, and words that are lost, where every part goes on.
#[test]
fn laws_hold_under_random_faults_where_every_part_goes_on() {
    for seed in 0..60u64 {
        let mut fate = stream(seed, "fate", &[]);
        let shape = Shape::ALL[fate.random_range(0..4)];
        let mut world = World::with(shape, 0, seed, Sabotage::None, Split::EachGoesOn);
        world.add(Some(0));
        world.begin_looking();
        world.lost = fate.random_range(0..3) as f64 * 0.05;
        let mut at = 0;
        for _ in 0..12 {
            at += fate.random_range(0..4000);
            world.run(Duration::from_millis(at));
            let members = world.owners.len();
            let one = fate.random_range(0..members as Place);
            match fate.random_range(0..4) {
                0 if !world.owners[usize::from(one)].is_dead && members > 3 => {
                    world.owners[usize::from(one)].is_dead = true;
                    world.lose(one);
                }
                1 => world.split((0..members as Place).filter(|place| place % 3 == one % 3).collect()),
                2 => world.split(Vec::new()),
                _ if members < 9 => {
                    world.add(fate.random::<bool>().then(|| fate.random_range(0..100)));
                }
                _ => {}
            }
        }
        world.lost = 0.0;
        world.split(Vec::new());
        world.run(Duration::from_millis(at + 130_000));
        let alive: Vec<usize> = (0..world.owners.len()).filter(|place| !world.owners[*place].is_dead).collect();
        let before: Vec<u64> = alive.iter().map(|place| world.finished(*place)).collect();
        world.run(Duration::from_millis(at + 140_000));
        assert_eq!(world.broken, [] as [String; 0], "seed {seed}, {shape:?}");
        let has_any = alive.iter().any(|place| world.owners[*place].collective.has_state);
        for (place, before) in alive.iter().zip(before).filter(|_| has_any) {
            let collective = &world.owners[*place].collective;
            assert_eq!(collective.members().len(), alive.len(), "seed {seed}, {shape:?}: {place}");
            assert!(world.finished(*place) > before + 10, "seed {seed}, {shape:?}: {place} stands");
        }
    }
}

#[test]
fn a_member_with_other_bits_is_noticed_before_the_next_sum_and_copies_the_state_of_the_others() {
    for shape in Shape::ALL {
        let mut world = World::with(shape, 5, 7, Sabotage::FlipsABit, Split::EachGoesOn);
        world.begin_looking();
        world.run(seconds(20));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        let counts: Vec<Counts> = world.owners.iter().map(|owner| owner.collective.counts(world.now)).collect();
        assert!(counts.iter().any(|one| one.differed > 0), "{shape:?}: {counts:?}");
        assert_eq!(counts.iter().map(|one| one.copied).collect::<Vec<_>>(), [0, 0, 1, 0, 0], "{shape:?}");
        assert!((0..5).all(|place| world.finished(place) > 20), "{shape:?}");
    }
}

/// A member that comes, one that dies, and a group that is split and meets again, where every part goes on.
#[test]
fn every_part_goes_on_and_the_smaller_one_copies_when_they_meet() {
    for shape in Shape::ALL {
        let mut world = World::with(shape, 5, 11, Sabotage::None, Split::EachGoesOn);
        world.begin_looking();
        world.run(seconds(4));
        let newcomer = world.add(None);
        world.run(seconds(10));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        assert!((0..6).all(|place| world.owners[place].collective.members().len() == 6), "{shape:?}: {newcomer}");
        world.split(vec![1, 4]);
        world.run(seconds(25));
        let sizes: Vec<usize> = world.owners.iter().map(|owner| owner.collective.members().len()).collect();
        assert_eq!(sizes, [4, 2, 4, 4, 2, 4], "{shape:?}");
        let before: Vec<u64> = (0..6).map(|place| world.finished(place)).collect();
        world.run(seconds(30));
        assert!((0..6).all(|place| world.finished(place) > before[place] + 5), "{shape:?}: somebody stands");
        world.split(Vec::new());
        world.run(seconds(60));
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
        assert!((0..6).all(|place| world.owners[place].collective.members().len() == 6), "{shape:?}");
        assert!([1, 4].iter().all(|place| world.owners[*place].collective.counts(world.now).copied > 0), "{shape:?}");
        // Down to the last one: nobody needs a quorum.
        for victim in 0..5 {
            world.owners[victim].is_dead = true;
            world.lose(victim as Place);
            let before = world.finished(5);
            world.run(seconds(70 + 10 * victim as u64));
            assert!(world.finished(5) > before + 10, "{shape:?}: {} after {before}", world.finished(5));
        }
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
    }
}

/// On a line as slow as one may be, and where a quick one becomes as slow: each attempt is given more time than the one before.
#[test]
fn an_operation_ends_however_slow_the_line_is() {
    for shape in Shape::ALL {
        let rounds = u32::from(shape.schedule(3).rounds);
        for is_slow_at_once in [true, false] {
            let mut world = World::with(shape, 0, 5, Sabotage::None, Split::EachGoesOn);
            let what = format!("{shape:?}, slow at once: {is_slow_at_once}");
            world.timeouts.contribution = seconds(130);
            for _ in 0..3 {
                world.add(Some(0));
            }
            world.run(seconds(2));
            if !is_slow_at_once {
                world.run(seconds(10));
            }
            let before: Vec<u64> = (0..3).map(|place| world.finished(place)).collect();
            world.slowness = seconds(130) / rounds;
            world.run(seconds(900));
            assert_eq!(world.broken, [] as [String; 0], "{what}");
            for (place, before) in before.into_iter().enumerate() {
                let counts = world.owners[place].collective.counts(world.now);
                assert!(world.finished(place) > before + 2, "{what}: {place}: {before}, {counts:?}");
            }
        }
    }
}

/// However long the first operation may take, nobody waits for that long because others have gone on without it.
#[test]
fn members_that_come_at_once_are_one_group_soon() {
    for seed in 0..400u64 {
        let shape = Shape::ALL[seed as usize % 4];
        let mut world = World::with(shape, 0, seed, Sabotage::None, Split::EachGoesOn);
        world.timeouts.initial = seconds(60);
        let mut at = 0;
        for _ in 0..8 {
            at += world.dice.random_range(0..250);
            world.run(Duration::from_millis(at));
            let operations = world.dice.random_range(0..20);
            world.add(Some(operations));
        }
        world.run(Duration::from_millis(at + 6_000));
        let before = (0..8).map(|place| world.finished(place)).max().unwrap_or(0);
        world.run(Duration::from_millis(at + 9_000));
        assert_eq!(world.broken, [] as [String; 0], "seed {seed}");
        let sizes: Vec<usize> = world.owners.iter().map(|owner| owner.collective.members().len()).collect();
        assert_eq!(sizes, [8; 8], "seed {seed}, {shape:?}");
        let (least, most) = (0..8)
            .map(|place| world.finished(place))
            .fold((u64::MAX, 0), |(least, most), one| (least.min(one), most.max(one)));
        assert!(most - least <= 1 && least > before + 3, "seed {seed}, {shape:?}: {before}, then {least} to {most}");
    }
}

#[test]
fn a_member_that_begins_alone_goes_on_alone_and_one_without_a_state_waits() {
    let mut world = World::with(Shape::Ring, 0, 3, Sabotage::None, Split::EachGoesOn);
    world.add(Some(7));
    world.add(None);
    world.split(vec![0]);
    world.begin_looking();
    world.run(seconds(5));
    assert!(world.finished(0) > 20 && world.finished(1) == 0, "{} and {}", world.finished(0), world.finished(1));
    world.split(Vec::new());
    world.run(seconds(10));
    assert_eq!(world.finished(0).abs_diff(world.finished(1)) / 2, 0);
    assert_eq!(world.owners[1].collective.members().len(), 2);
    assert_eq!(world.broken, [] as [String; 0]);
}

/// After a power cut the one that is back first goes on by itself, with an older state than the one that comes next.
#[test]
fn one_that_went_on_alone_copies_the_state_of_one_that_comes_back_further_but_several_do_not() {
    for shape in Shape::ALL {
        let mut world = World::with(shape, 0, 5, Sabotage::None, Split::EachGoesOn);
        world.add(Some(7));
        world.begin_looking();
        world.run(seconds(5));
        assert!(world.finished(0) > 20, "{shape:?}: {}", world.finished(0));
        world.add(Some(1_000));
        world.run(seconds(10));
        world.add(Some(100_000));
        world.add(Some(10));
        world.run(seconds(20));
        let copied: Vec<u64> = world.owners.iter().map(|owner| owner.collective.counts(world.now).copied).collect();
        assert_eq!(copied, [1, 0, 1, 1], "{shape:?}");
        let operations: Vec<u64> = world.owners.iter().map(|owner| owner.collective.version().operations).collect();
        assert!(operations.iter().all(|one| (1_020..2_000).contains(one)), "{shape:?}: {operations:?}");
        assert_eq!(world.broken, [] as [String; 0], "{shape:?}");
    }
}

#[test]
fn sabotage_is_found() {
    for shape in Shape::ALL {
        for sabotage in [Sabotage::AddsTwice, Sabotage::DropsASlice] {
            let mut world = World::new(shape, 5, 3, sabotage);
            world.begin_looking();
            world.run(seconds(5));
            // In a star and at a leaf of a tree a member adds nothing: there is nothing to add twice.
            if sabotage == Sabotage::DropsASlice || !matches!(shape, Shape::Star) {
                assert!(!world.broken.is_empty(), "{shape:?}");
            }
        }
    }
    let mut world = World::new(Shape::Ring, 7, 1, Sabotage::KeepsItsOldState);
    world.begin_looking();
    world.run(seconds(5));
    world.apart = vec![1, 4];
    world.run(seconds(20));
    world.apart = Vec::new();
    world.run(seconds(60));
    assert!(world.broken.iter().any(|what| what.contains("two states")), "{:?}", world.broken);
    let mut world = World::new(Shape::Ring, 4, 1, Sabotage::NeverLooksAtTheClock);
    world.begin_looking();
    world.run(seconds(5));
    world.owners[2].is_dead = true;
    let before = world.finished(0);
    world.run(seconds(60));
    assert!(world.finished(0) <= before + 1, "without a deadline nobody goes on");
}

/// Somebody may use the numbers up. It is nobody's offence then to announce one more: nobody does.
#[test]
fn where_the_numbers_of_epochs_are_used_up_nobody_announces_one() {
    let now = Time::from_start(seconds(1));
    let are_words_sound = |one: &mut Collective| {
        let orders = std::iter::from_fn(|| one.poll_order());
        let words = orders.filter_map(|order| if let Order::Say { word, .. } = order { Some(word) } else { None });
        words.collect::<Vec<_>>().iter().all(Word::is_sound)
    };
    for split in [Split::Quorum, Split::EachGoesOn] {
        let timeouts = Timeouts { split, listening: Some(seconds(1)), ..Timeouts::default() };
        let both: Members = [0, 1].into_iter().map(id).collect();
        let mut one = Collective::new(Shape::Ring, id(0), Beginning::Together(both.clone()), timeouts);
        let (epoch, version) = (Epoch { number: EPOCH_NUMBER_MAX - 1, leader: id(1) }, one.version());
        let announced = Announced { epoch, members: both.clone(), version, current: both.clone() };
        one.word_received(now, id(1), Word::Announced(announced));
        assert_eq!(one.epoch(), epoch);
        let said = Stalled { epoch, members: both.clone(), version: Some(version), digest: 0, reaches: both };
        one.word_received(now, id(1), Word::Stalled(said));
        one.time_passed(one.next_deadline().expect("it stands still"));
        assert!(one.is_stalled() && are_words_sound(&mut one), "{split:?}: who stands still");
        let alone: Members = [id(0)].into_iter().collect();
        let mut one = Collective::new(Shape::Ring, id(0), Beginning::Together(alone.clone()), timeouts);
        one.peers_connected([id(2)]);
        let epoch = Epoch { leader: id(0), ..epoch };
        let announced = Announced { epoch, members: alone.clone(), version: one.version(), current: alone };
        one.word_received(now, id(2), Word::Announced(announced));
        let reaches = [0, 2].into_iter().map(id).collect();
        let said = Stalled { epoch, members: Members::default(), version: None, digest: 0, reaches };
        one.word_received(now, id(2), Word::Stalled(said));
        one.contributed(now, 0, 1);
        assert_eq!((one.version().operations, one.members().len()), (1, 1));
        assert!(are_words_sound(&mut one), "{split:?}: who has finished an operation");
    }
}

/// Somebody said that it had finished 2^62 operations; after one more all others committed an offence with each word.
#[test]
fn where_operations_are_used_up_nobody_begins_one() {
    let now = Time::from_start(seconds(1));
    let (both, other): (Members, Members) = ([0, 1].into_iter().map(id).collect(), [id(1)].into_iter().collect());
    let timeouts = Timeouts { split: Split::EachGoesOn, listening: Some(seconds(1)), ..Timeouts::default() };
    let mut one = Collective::new(Shape::Ring, id(0), Beginning::Together(both.clone()), timeouts);
    let epoch = Epoch { number: 1, leader: id(1) };
    let version = Version { operations: OPERATIONS_MAX - 1, epoch };
    assert!(!Word::Ended(Version { operations: OPERATIONS_MAX + 1, epoch }).is_sound());
    one.word_received(now, id(1), Word::Announced(Announced { epoch, members: both, version, current: other }));
    one.state_received(now, epoch, version);
    one.peer_lost(now, id(1));
    one.contributed(now, version.operations, 1);
    assert_eq!(one.version().operations, OPERATIONS_MAX, "it has finished the last one");
    one.contributed(now, OPERATIONS_MAX, 1);
    let epoch = one.epoch();
    for _ in 0..3 {
        one.time_passed(one.next_deadline().expect("it stands still for good"));
        assert_eq!((one.is_stalled(), one.epoch()), (true, epoch));
    }
    let orders: Vec<Order> = std::iter::from_fn(|| one.poll_order()).collect();
    assert_eq!(orders.iter().filter(|order| matches!(order, Order::Begin { .. })).count(), 1, "{orders:?}");
    assert!(!orders.iter().any(|order| matches!(order, Order::Say { word, .. } if !word.is_sound())), "{orders:?}");
}

#[test]
fn a_member_that_rests_after_its_end_still_gives_its_state_to_who_is_behind() {
    let both: Members = [0, 1].into_iter().map(id).collect();
    let mut one = Collective::new(Shape::Ring, id(0), Beginning::Together(both.clone()), Timeouts::default());
    let now = Time::from_start(seconds(1));
    one.end(now);
    let until = one.next_deadline();
    one.pause();
    one.state_lost(now);
    assert_eq!((one.is_stalled(), one.next_deadline(), one.is_needed(now)), (false, until, true));
    let said = Stalled { epoch: one.epoch(), members: Members::default(), version: None, digest: 0, reaches: both };
    one.word_received(now, id(1), Word::Stalled(said));
    let is_given = |order: Order| matches!(order, Order::GiveState { to, .. } if to == id(1));
    assert!(std::iter::from_fn(|| one.poll_order()).any(is_given));
}

/// Who begins to seek a group told its peers one after the other, each of fewer than it reaches: a leader took one of two in, the
/// other began a group by itself, and both groups were connected for ever.
#[test]
fn who_begins_to_seek_tells_each_of_all_whom_it_reaches() {
    let timeouts = Timeouts { listening: Some(seconds(1)), ..Timeouts::default() };
    let seeking = Beginning::Seeking { epoch: Epoch { number: 1, leader: id(0) }, operations: None, until: Time::ZERO };
    let mut one = Collective::new(Shape::Ring, id(0), seeking, timeouts);
    let mut told = |peers: &[u16]| {
        one.peers_connected(peers.iter().copied().map(id));
        let orders = std::iter::from_fn(|| one.poll_order());
        let reaches = |order| match order {
            Order::Say { to, word: Word::Stalled(said) } => Some((to, said.reaches.len())),
            _ => None,
        };
        orders.filter_map(reaches).collect::<Vec<_>>()
    };
    assert_eq!(told(&[1, 2]), [(id(1), 3), (id(2), 3)]);
    assert_eq!(told(&[3]), [(id(3), 4)], "the others hear of it when it says so the next time");
}

/// Its placeholder of a version counted as one that is further than the announcer's: it refused every later announcement, and all others
/// began anew for ever.
#[test]
fn a_member_without_a_state_whose_first_copy_is_broken_off_takes_the_next_announcement() {
    let now = Time::from_start(seconds(1));
    let timeouts = Timeouts { split: Split::EachGoesOn, listening: Some(seconds(1)), ..Timeouts::default() };
    let own = Epoch { number: 1_000_000, leader: id(1) };
    let seeking = Beginning::Seeking { epoch: own, operations: None, until: Time::ZERO };
    let mut one = Collective::new(Shape::Ring, id(1), seeking, timeouts);
    one.peers_connected([id(0)]);
    let both: Members = [0, 1].into_iter().map(id).collect();
    let version = Version { operations: 0, epoch: Epoch { number: 7, leader: id(0) } };
    let current: Members = [id(0)].into_iter().collect();
    let epochs = [1, 2].map(|later| Epoch { number: own.number + later, leader: id(0) });
    for epoch in epochs {
        let announced = Announced { epoch, members: both.clone(), version, current: current.clone() };
        one.word_received(now, id(0), Word::Announced(announced));
        assert_eq!((one.epoch(), one.is_stalled()), (epoch, false), "it copies the state");
        // Somebody else has come, and the announcer begins anew.
        let said = Stalled { epoch, members: both.clone(), version: Some(version), digest: 0, reaches: both.clone() };
        one.word_received(now, id(0), Word::Stalled(said));
        assert!(one.is_stalled());
    }
}

/// It takes an older state, for its group has more to lose, and slices of the operation after that one come before the state. They
/// were dropped, as of an operation that it has behind itself, and all waited for the deadline.
#[test]
fn slices_that_come_before_an_older_state_are_kept() {
    let now = Time::from_start(seconds(1));
    let timeouts = Timeouts { split: Split::EachGoesOn, listening: Some(seconds(1)), ..Timeouts::default() };
    let own = Epoch { number: 1_000_000, leader: id(1) };
    let seeking = Beginning::Seeking { epoch: own, operations: Some(17), until: Time::ZERO };
    let mut one = Collective::new(Shape::Ring, id(1), seeking, timeouts);
    one.peers_connected([id(0)]);
    let both: Members = [0, 1].into_iter().map(id).collect();
    let epoch = Epoch { number: own.number + 1, leader: id(0) };
    let version = Version { operations: 9, epoch: Epoch { number: 7, leader: id(0) } };
    let announced = Announced { epoch, members: both, version, current: [id(0)].into_iter().collect() };
    one.word_received(now, id(0), Word::Announced(announced));
    one.slice_received(now, id(0), SliceName { epoch, operation: 9, line: 0, digest: 5 });
    one.state_received(now, epoch, version);
    one.contributed(now, 9, 5);
    let orders: Vec<Order> = std::iter::from_fn(|| one.poll_order()).collect();
    assert!(orders.iter().any(|order| matches!(order, Order::Absorb { .. })), "{orders:?}");
}

/// Its word was taken for that of one outside, and after the next operation it was taken in once more, with a second copy.
#[test]
fn what_a_member_without_a_state_said_before_it_was_taken_in_takes_it_in_no_second_time() {
    let mut world = World::with(Shape::Ring, 0, 3, Sabotage::None, Split::EachGoesOn);
    world.add(Some(7));
    world.run(seconds(2));
    let alone = world.owners[0].collective.epoch();
    let newcomer = world.add(None);
    let told = Epoch { number: 1_000_000 + u64::from(newcomer), leader: id(newcomer) };
    while world.owners[0].collective.epoch() == alone {
        assert!(world.now < Time::from_start(seconds(10)));
        world.run(world.now.since_start() + Duration::from_millis(1));
    }
    let epoch = world.owners[0].collective.epoch();
    let reaches = [0, 1].into_iter().map(id).collect();
    let said = Stalled { epoch: told, members: Members::default(), version: None, digest: 0, reaches };
    world.later(1, Happening::Word { at: 0, from: newcomer, word: Word::Stalled(said) });
    world.run(seconds(15));
    let counts = world.owners[1].collective.counts(world.now);
    assert_eq!((world.owners[0].collective.epoch(), counts.copied, counts.dropped), (epoch, 1, 0));
    assert!(counts.finished > 20 && world.broken.is_empty(), "{counts:?}, {:?}", world.broken);
}
