//! What a node that holds other fragments than before has learned.

use super::*;
use crate::fragments::Fragments;
use crate::manifest::RunManifest;
use crate::numerics::{Buffers, EncodeJob, EncodeRole, encode};
use crate::part::Fragment;

fn part(index: u16) -> Part {
    Part { vector: Vector::Model, fragment: Fragment { index, count: 2 } }
}

fn averaging() -> Averaging {
    let gossip = GossipSpec { fragments: 2, ..RunManifest::default().gossip };
    let turns = Turns::new(&Fragments::equal(1000, 2), Holding::ALL);
    Averaging::new((gossip, turns), 1000, TrainingReport::default(), None)
}

#[test]
fn who_is_far_off_in_what_it_has_given_up_is_so_no_more() {
    let mut averaging = averaging();
    let partners = (1..=8).map(|key| PeerId::from_public_key([key; 32]));
    let state = averaging.parts.entry(part(0)).or_default();
    for partner in partners {
        let seen = Seen { partner, progress: 7.0, is_rebuff: true, is_behind: false, is_excused: false };
        state.outlier.record(seen);
    }
    assert_eq!(averaging.progress_missed(|| 9), Some(7.0));
    assert!(!averaging.hold(Holding::of([1])), "nothing is new");
    assert_eq!(averaging.progress_missed(|| 9), None);
    assert!(averaging.hold(Holding::ALL));
    assert_eq!(averaging.progress_missed(|| 9), None, "it is another one that has come back");
}

#[test]
fn what_has_come_is_not_let_in_at_any_distance() {
    let mut averaging = averaging();
    averaging.training.travel = 1e6;
    averaging.hold(Holding::of([0]));
    averaging.parts.entry(part(0)).or_default().clip.begin_anew(2.0);
    averaging.parts.entry(part(0)).or_default().travel_before = 1e6;
    averaging.hold(Holding::ALL);
    let usual = (averaging.gossip.clip_factor * 2.0) as f32;
    assert_eq!((averaging.reach(part(0)), averaging.reach(part(1))), (usual, usual));
    assert_eq!(averaging.width(part(1)), CodeWidth::Sixteen);
}

#[test]
fn links_of_what_is_given_up_end() {
    let mut averaging = averaging();
    let job = EncodeJob { role: EncodeRole::Link { reference: None, received: None }, nonce: 1, width: CodeWidth::One };
    let encoded = encode(&Snapshot::from(vec![1.0; 3]), &job, &Buffers::new()).expect("its own reference");
    let reference = encoded.reference.expect("an exchange on a link has one");
    let partner = PeerId::from_public_key([1; 32]);
    averaging.links.keep((partner, Holding::ALL), part(0), reference, (true, true));
    averaging.hold(Holding::of([1]));
    assert_eq!((averaging.links.count(), averaging.links.reference(partner, part(0))), (0, None));
}
