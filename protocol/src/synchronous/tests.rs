//! What a member's part keeps for others, and what it drops.

use super::*;
use crate::collective::Stalled;
use crate::effect::{Effect, TrainerOrder};
use crate::event::TrainingReport;
use crate::manifest::{RunManifest, Topology};

fn peer(key: u8) -> PeerId {
    PeerId::from_public_key([key; 32])
}

fn takes_a_copy(out: &mut Outbox) -> bool {
    let effects: Vec<Effect> = std::iter::from_fn(|| out.pop()).collect();
    effects.iter().any(|effect| matches!(effect, Effect::Trainer(TrainerOrder::TakeSnapshot { .. })))
}

/// The worker has its sum still when another member asks for the replica, and then the owner wants the network left alone.
#[test]
fn one_that_has_ended_keeps_what_it_is_to_give_while_it_rests_and_drops_it_with_the_member() {
    let mut manifest = RunManifest::default();
    (manifest.synchronous.topology, manifest.synchronous.slice_bits) = (Topology::Ring, 8);
    let (now, mut out) = (Time::ZERO, Outbox::default());
    let mut member = Synchronous::new(&Config::founder(&manifest), peer(1), 4, now).expect("it is synchronous");
    member.on_deadline(now, &mut out);
    let contributed = Reply::Contributed(Snapshot::from(vec![1.0; 4]), 7, TrainingReport::default());
    member.on_reply(now, Purpose::Contribution(1), contributed, &mut out);
    assert!(member.is_reducing);
    member.end(now, &mut out);
    member.on_reachable(now, [peer(2)], &mut out);
    let (epoch, reaches) = (Epoch { number: 0, leader: peer(2) }, [peer(1), peer(2)].into_iter().collect());
    let said = Stalled { epoch, members: Members::default(), version: None, digest: 0, reaches };
    member.on_word(now, peer(2), Word::Stalled(said), &mut out).expect("a sound word");
    member.begin_rest();
    assert!(!takes_a_copy(&mut out), "the sum comes first");
    let accumulator = Accumulator { sum: vec![1.0; 4].into(), residual: vec![0.0; 4].into() };
    let reduced = Reply::Reduced(Ok(Reduced { accumulator, written: None }));
    member.on_reply(now, Purpose::Reduction, reduced, &mut out);
    assert!(takes_a_copy(&mut out));
    assert!(member.is_needed(now));
    member.on_lost(now, peer(2), &mut out);
    assert!(!member.is_needed(now));
}

/// A founder whose trainer does not give what it is asked for.
fn without_a_contribution() -> (Synchronous, Outbox) {
    let mut manifest = RunManifest::default();
    manifest.synchronous.topology = Topology::Ring;
    let config = Config { first_number: 1000, ..Config::founder(&manifest) };
    let mut member = Synchronous::new(&config, peer(1), 4, Time::ZERO).expect("it is synchronous");
    let mut out = Outbox::default();
    member.on_deadline(Time::ZERO, &mut out);
    (member, out)
}

impl Synchronous {
    /// Another member's slices for its schedule of this number have come.
    fn receive_slices(&mut self, number: u64, line: u32, out: &mut Outbox) {
        let name = SliceName { epoch: Epoch { number, leader: peer(2) }, operation: 0, line, digest: 0 };
        let (header, payload) = (TransferHeader::Slices(name), Payload::from(vec![0; 4]));
        self.on_transfer(Time::ZERO, peer(2), (&header, payload), out).expect("slices may be so long");
    }
}

/// The others try again and again meanwhile: what was kept of that left no room for what is needed.
#[test]
fn slices_of_schedules_that_the_others_have_given_up_are_not_kept() {
    let (mut member, mut out) = without_a_contribution();
    (0..2 * KEPT_MAX as u32).for_each(|line| member.receive_slices(1 + u64::from(line % 8), line, &mut out));
    assert!(member.kept.len() <= 1, "{} are kept", member.kept.len());
    let next = member.epoch_number() + 1;
    (0..3).for_each(|line| member.receive_slices(next, line, &mut out));
    assert_eq!(member.kept.len(), 3, "those of what they try now are");
}

/// A rest may last for hours, and slices are as large as the model.
#[test]
fn one_that_rests_keeps_no_slices() {
    let (mut member, mut out) = without_a_contribution();
    let next = member.epoch_number() + 1;
    member.receive_slices(next, 0, &mut out);
    assert_eq!(member.kept.len(), 1);
    member.begin_rest();
    member.receive_slices(next, 1, &mut out);
    assert!(member.kept.is_empty());
}
