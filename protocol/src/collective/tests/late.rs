//! A member whose contribution does not come.

use super::world::id;
use super::*;

fn members(places: &[u16]) -> Members {
    places.iter().copied().map(id).collect()
}

/// The first of three, whose contribution was ordered, in the group's first epoch.
fn first_of_three() -> Collective {
    let timeouts = Timeouts { split: Split::EachGoesOn, listening: Some(seconds(1)), ..Timeouts::default() };
    let mut one = Collective::new(Shape::Ring, id(0), Beginning::Together(members(&[0, 1, 2])), timeouts);
    one.peers_connected([1, 2].map(id));
    one
}

/// The others drop an epoch with these members and agree on the next one; what the member says and does.
fn begin_anew(one: &mut Collective, with: &[u16]) -> Vec<Order> {
    let (now, epoch, version) = (Time::ZERO, one.epoch(), one.version());
    // Who is left behind has been told so.
    std::iter::from_fn(|| one.poll_order()).for_each(drop);
    let stalled =
        Stalled { epoch, members: members(with), version: Some(version), digest: 0, reaches: members(&[0, 1, 2]) };
    one.word_received(now, id(1), Word::Stalled(stalled));
    let orders: Vec<Order> = std::iter::from_fn(|| one.poll_order()).collect();
    let epoch = Epoch { number: epoch.number + 1, leader: id(1) };
    let announced = Announced { epoch, members: members(with), version, current: members(with) };
    one.word_received(now, id(1), Word::Announced(announced));
    orders
}

fn is_silent(orders: &[Order]) -> bool {
    !orders.iter().any(|order| matches!(order, Order::Say { .. }))
}

#[test]
fn for_the_second_epoch_in_a_row_it_says_nothing_until_its_contribution_is_there() {
    let mut one = first_of_three();
    assert!(!is_silent(&begin_anew(&mut one, &[0, 1, 2])), "it is the first time");
    let epoch = one.epoch();
    assert!(is_silent(&begin_anew(&mut one, &[0, 1, 2])));
    assert_eq!((one.epoch(), one.is_stalled()), (epoch, true), "nor does it follow who takes it for present");
    one.peer_lost(Time::ZERO, id(2));
    one.peers_connected([id(2)]);
    assert_eq!(one.poll_order(), None, "nor does it ask whoever comes");
    one.contributed(Time::ZERO, 0, 1);
    let asks = |order| matches!(order, Order::Say { word: Word::Stalled(said), .. } if said.members.is_empty());
    assert!(std::iter::from_fn(|| one.poll_order()).any(asks));
    assert_eq!(one.counts(Time::ZERO + seconds(3)).waited, seconds(3), "its owner has nothing to do until it is back");
}

#[test]
fn epochs_that_are_dropped_for_who_is_gone_are_not_dropped_for_it() {
    let mut one = first_of_three();
    assert!(!is_silent(&begin_anew(&mut one, &[0, 1, 2])));
    assert!(!is_silent(&begin_anew(&mut one, &[0, 1])), "the third one is gone");
    assert!(is_silent(&begin_anew(&mut one, &[0, 1])));
}
