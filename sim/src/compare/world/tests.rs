//! What the world lets through, seen by a machine that sends once and keeps what it gets.

use std::time::Duration;

use murmur_protocol::{PeerId, Time};

use super::*;
use crate::compare::tests::{set_steps, setting};

/// Every node sends its model to each other one at the beginning.
#[derive(Default)]
struct Once {
    /// When what came from whom to whom.
    arrived: Vec<(Time, usize, usize)>,
    /// When who heard a word from whom.
    heard: Vec<(Time, usize, usize)>,
}

const NODES: usize = 5;
const VALUES: usize = 1000;

impl Machine for Once {
    fn begin(&mut self, world: &mut World) {
        for from in 0..NODES {
            for to in (0..NODES).filter(|to| *to != from) {
                world.send(from, to, Parcel::Model { exchange: 0, is_reply: false, values: vec![0.0; VALUES] });
            }
        }
    }

    fn computed(&mut self, _: &mut World, _: usize) {}

    fn arrived(&mut self, world: &mut World, to: usize, from: usize, _: Parcel) {
        self.arrived.push((world.now(), from, to));
    }

    fn heard(&mut self, world: &mut World, to: usize, from: usize, _: Word) {
        self.heard.push((world.now(), from, to));
    }

    fn looked(&mut self, _: &mut World, _: usize) {}

    fn next_deadline(&self, _: usize) -> Option<Time> {
        None
    }

    fn progress(&self, _: usize) -> f64 {
        0.0
    }

    fn model(&self, _: usize) -> Vec<f32> {
        Vec::new()
    }

    fn counted(&self) -> Counted {
        Counted::default()
    }

    fn violations(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A transfer takes a second of an uplink; the fault comes after 1.5 s and a partition lasts for 1.125 s.
fn world(fault: Fault) -> World {
    let mut setting = setting("alone", fault);
    (setting.step_time, setting.speeds) = (Duration::from_millis(100), vec![1.0]);
    set_steps(&mut setting, 45);
    setting.links.up_bytes_per_second = (HEADER_BYTES + 4 * VALUES) as f64;
    World::new(&setting)
}

fn run_all(world: &mut World, machine: &mut Once) {
    while let Some(what) = world.queue.pop_until(Time::from_start(Duration::from_secs(60))) {
        world.happen(machine, what);
    }
}

#[test]
fn what_a_dead_node_had_not_sent_never_arrives() {
    let mut world = world(Fault::KillFirst);
    let mut machine = Once::default();
    machine.begin(&mut world);
    run_all(&mut world, &mut machine);
    let from_the_dead: Vec<usize> =
        machine.arrived.iter().filter(|(_, from, _)| *from == 0).map(|(.., to)| *to).collect();
    assert_eq!(from_the_dead, [1], "one transfer was over before the death");
    let between_the_living = machine.arrived.iter().filter(|(_, from, to)| *from != 0 && *to != 0).count();
    assert_eq!(between_the_living, 12);
    let account = &world.nodes[0].account;
    assert_eq!((account.lived, account.sending), (1.5, 1.5));
    assert!(account.spans.iter().all(|span| span.to <= 1.5), "{:?}", account.spans);
}

#[test]
fn nothing_crosses_a_cut_and_all_arrives_after_it() {
    let mut world = world(Fault::Partition);
    let cut_off = world.setting.cut_off();
    let (begins, ends) = (world.setting.fault_at(), world.setting.fault_at() + world.setting.partition_lasts());
    let mut machine = Once::default();
    machine.begin(&mut world);
    run_all(&mut world, &mut machine);
    let crosses = |from: &usize, to: &usize| cut_off.contains(from) != cut_off.contains(to);
    let crossing = machine.arrived.iter().filter(|(_, from, to)| crosses(from, to));
    let during = |at: &Time| (begins..ends).contains(&at.since_start());
    assert_eq!(crossing.clone().filter(|(at, ..)| during(at)).count(), 0);
    assert_eq!((crossing.count(), machine.arrived.len()), (8, 20), "each once");
}

#[test]
fn a_word_under_way_is_lost_with_its_sender_and_at_a_cut() {
    let cases = [
        (Fault::None, vec![(0, 4), (1, 4), (4, 1)]),
        (Fault::KillFirst, vec![(1, 4), (4, 1)]),
        (Fault::Partition, vec![]),
    ];
    for (fault, expected) in cases {
        let mut world = world(fault);
        let mut machine = Once::default();
        let epoch = Epoch { number: 0, leader: PeerId::from_public_key([0; 32]) };
        let word = Word::Ended(Version { operations: 0, epoch });
        for (from, to) in [(0, 4), (1, 4), (4, 1)] {
            world.say(from, to, word.clone());
        }
        world.fault_begins();
        run_all(&mut world, &mut machine);
        let mut heard: Vec<(usize, usize)> = machine.heard.iter().map(|(_, from, to)| (*from, *to)).collect();
        heard.sort_unstable();
        assert_eq!(heard, expected, "{}", fault.name());
    }
}
