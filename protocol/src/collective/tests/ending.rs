//! Members that have ended, and those that are behind them.

use super::world::id;
use super::*;

fn timeouts() -> Timeouts {
    Timeouts { split: Split::EachGoesOn, listening: Some(seconds(1)), ..Timeouts::default() }
}

/// One that was alone in its group has ended after three operations; the others of `0..count` are connected.
fn ended(count: u16) -> Collective {
    let epoch = Epoch { number: 7, leader: id(0) };
    let beginning = Beginning::Seeking { epoch, operations: Some(3), until: Time::ZERO };
    let mut one = Collective::new(Shape::Ring, id(0), beginning, timeouts());
    one.peers_connected((1..count).map(id));
    one.end(Time::ZERO);
    orders(&mut one);
    one
}

fn orders(of: &mut Collective) -> Vec<Order> {
    std::iter::from_fn(|| of.poll_order()).collect()
}

/// Who is given the state, for which epoch.
fn given(orders: &[Order]) -> Vec<(PeerId, u64)> {
    let given = |order: &Order| match order {
        Order::GiveState { to, epoch, .. } => Some((*to, epoch.number)),
        _ => None,
    };
    orders.iter().filter_map(given).collect()
}

fn said(orders: &[Order]) -> Vec<(PeerId, &Word)> {
    let mut said = Vec::new();
    for order in orders {
        if let Order::Say { to, word } = order {
            said.push((*to, word));
        }
    }
    said
}

/// It took each of two into a group of its own in turn: the other one was left out, and asked again.
#[test]
fn one_that_has_ended_has_an_epoch_with_each_who_is_behind() {
    let mut one = ended(3);
    let mut ask = |from: u16, number: u64| {
        let epoch = Epoch { number, leader: id(from) };
        let reaches = (0..3).map(id).collect();
        let said = Stalled { epoch, members: Members::default(), version: None, digest: 0, reaches };
        one.word_received(Time::ZERO, id(from), Word::Stalled(said));
        orders(&mut one)
    };
    let first = ask(1, 2);
    assert_eq!(given(&first), [(id(1), 8)]);
    let second = ask(2, 3);
    assert_eq!(given(&second), [(id(2), 9)]);
    assert!(matches!(&said(&second)[..], [(to, Word::Announced(_))] if *to == id(2)), "{second:?}");
    let again = ask(1, 2);
    assert_eq!((given(&again), said(&again)), (vec![], said(&first)), "the copy is on its way");
    assert_eq!(given(&ask(1, 8)), [(id(1), 10)], "it has given that copy up");
    one.peer_lost(Time::ZERO, id(1));
    one.peers_connected([id(1)]);
    let mut ask = |number: u64| {
        let epoch = Epoch { number, leader: id(1) };
        let reaches = (0..2).map(id).collect();
        let said = Stalled { epoch, members: Members::default(), version: None, digest: 0, reaches };
        one.word_received(Time::ZERO, id(1), Word::Stalled(said));
        given(&orders(&mut one))
    };
    assert_eq!(ask(2), [(id(1), 11)], "nothing that was on its way has come");
}

/// It said that its group works: one that is further waited for that group, which was nobody.
#[test]
fn one_that_is_further_than_one_that_has_ended_goes_on_at_once() {
    for is_said_before in [false, true] {
        let epoch = Epoch { number: 5, leader: id(1) };
        let beginning = Beginning::Seeking { epoch, operations: Some(9), until: Time::ZERO + seconds(3) };
        let mut other = Collective::new(Shape::Ring, id(1), beginning, timeouts());
        other.peers_connected([id(0)]);
        let mut one = ended(1);
        if is_said_before {
            let (epoch, members, version) = (one.epoch(), [id(0)].into_iter().collect(), one.version());
            other.word_received(Time::ZERO, id(0), Word::Running { epoch, members, version });
        }
        one.peers_connected([id(1)]);
        let words = orders(&mut one);
        assert!(matches!(&said(&words)[..], [(_, Word::Ended(_))]), "{words:?}");
        for (_, word) in said(&words) {
            other.word_received(Time::ZERO, id(0), word.clone());
        }
        let until = other.next_deadline().expect("it seeks its group");
        other.time_passed(until);
        assert!(!other.is_stalled() && until <= Time::ZERO + seconds(5), "said before: {is_said_before}, {until:?}");
    }
}
