//! Peers that the driver has looked up: hints about where to dial, and no members.

use super::*;

#[test]
fn found_peers_are_dialed_and_forgotten_where_nobody_answers() {
    let mut setting = Setting::founder();
    setting.membership.on_found(second(0), &[found(1)]);
    let effects = setting.pass(600, |_| false);
    assert!(dialed(&effects).contains(&peer(1)));
    assert!(dialed(&effects).len() <= 20, "waits between dials double");
    setting.connect(600, 9);
    setting.pass(1000, |_| false);
    assert!(!setting.knows(1), "nobody was ever there");
    assert_eq!(dialed(&setting.pass(5000, |_| false)), [], "nor is it kept for later");
}

#[test]
fn a_flood_of_found_peers_displaces_no_members() {
    let mut setting = Setting::connected_to(1);
    let members: Vec<Descriptor> = (100..116).map(|number| descriptor(number, 10)).collect();
    setting.hear(0, 1, &members).expect("sane");
    for round in 0..100 {
        let flood: Vec<KnownPeer> = (0..16).map(|index| found(1000 + round * 16 + index)).collect();
        setting.membership.on_found(second(1), &flood);
    }
    assert!((100..116).all(|number| setting.knows(number)));
    let flooded = setting.membership.view.iter().filter(|(known, _)| *known >= peer(1000)).count();
    assert_eq!(flooded, TOLD_BY_ONE_MAX);
}

#[test]
fn malformed_hints_are_passed_over() {
    let mut setting = Setting::founder();
    let none = KnownPeer { peer: peer(1), addresses: Vec::new() };
    let many = KnownPeer { peer: peer(2), addresses: vec![address(2); ADDRESSES_TOLD_MAX + 1] };
    let own = KnownPeer { peer: peer(0), addresses: vec![address(5)] };
    setting.membership.on_found(second(0), &[none, many, own]);
    assert_eq!(setting.membership.view.iter().count(), 0);
}

/// Neighbours of another run were shown as members, for as long as this one had enough connections and did not dial them.
#[test]
fn who_is_only_found_counts_as_no_member_until_one_has_told_of_it() {
    let mut setting = Setting::connected_to(1);
    setting.membership.on_found(second(0), &[found(2)]);
    let counts = |setting: &Setting| {
        let (membership, now) = (&setting.membership, second(1));
        [
            membership.members(now).len(),
            membership.member_count(now),
            membership.known().len(),
            membership.known_count(),
        ]
    };
    assert_eq!((counts(&setting), setting.knows(2)), ([1; 4], true));
    setting.hear(1, 1, &[descriptor(2, 10)]).expect("sane");
    assert_eq!(counts(&setting), [2; 4]);
}

#[test]
fn a_found_address_helps_a_member_that_is_not_where_it_was() {
    let mut setting = Setting::connected_to(1);
    setting.hear(0, 1, &[descriptor(2, 10)]).expect("sane");
    let moved = KnownPeer { peer: peer(2), addresses: vec![address(77)] };
    setting.membership.on_found(second(0), std::slice::from_ref(&moved));
    let addresses = |setting: &Setting| {
        setting.membership.known().iter().find(|known| known.peer == peer(2)).expect("known").addresses.clone()
    };
    assert_eq!(addresses(&setting), [address(2)], "hearsay does not displace what works");
    setting.pass(2, |_| false);
    setting.membership.on_found(second(3), &[moved]);
    assert_eq!(addresses(&setting), [address(77), address(2)]);
}
