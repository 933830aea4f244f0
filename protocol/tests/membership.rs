//! Who knows whom in swarms of a hundred to ten thousand: the overlay is a random graph whoever bootstrapped whom, its
//! cost does not depend on its size, and what dies is forgotten.

mod overlay;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use self::overlay::{Overlay, second_eigenvalue, spread};
use murmur_protocol::bounds::{AGE_MAX, CONNECTIONS_SURPLUS, CONNECTIONS_WANTED, SHUFFLE_PERIOD};
use murmur_protocol::message::{Descriptor, KnownPeer};
use murmur_protocol::profile::Profile;
use murmur_protocol::{Bootstrap, Config, Effect, Event, Message, ModelLayout, NetworkOrder, Node, RunManifest, Time};

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

fn edges(overlay: &Overlay) -> Vec<Vec<usize>> {
    overlay.living().map(|index| overlay.connected(index)).collect()
}

#[test]
fn a_chain_becomes_a_random_graph() {
    let mut overlay = Overlay::of(300, 1, |index| index - 1);
    overlay.run_for(Duration::from_secs(10));
    let at_first = second_eigenvalue(&edges(&overlay));
    assert!(at_first > 0.98, "a chain that mixes from the beginning proves nothing: {at_first}");
    overlay.run_for(minutes(20));
    let later = second_eigenvalue(&edges(&overlay));
    assert!(later < 0.7, "{later}: at best 0.58 with 11 connections each");
    let (fewest, usual, most) = spread(edges(&overlay).iter().map(Vec::len).collect());
    assert!(fewest >= CONNECTIONS_WANTED - 1 && usual <= CONNECTIONS_SURPLUS + 2 && most <= 24);
}

/// Each newcomer's oldest connection is the one to the founder, so all might part from it within the same minutes.
#[test]
fn a_flash_crowd_does_not_leave_its_founder_behind() {
    for (seed, count) in [(1, 31), (2, 31), (3, 60), (4, 200)] {
        let mut overlay = Overlay::of(count, seed, |_| 0);
        overlay.run_for(Duration::from_secs(10));
        for second in (15..900).step_by(5) {
            overlay.run_for(Duration::from_secs(5));
            let degrees: Vec<usize> = edges(&overlay).iter().map(Vec::len).collect();
            let fewest = degrees.iter().min().expect("nodes");
            assert!(*fewest >= CONNECTIONS_WANTED - 2, "{count} nodes, second {second}: {degrees:?}");
        }
    }
}

/// Control bytes that a node sends in a minute, once all have settled.
fn bytes_a_minute(count: usize) -> f64 {
    let mut overlay = Overlay::of(count, 1, |_| 0);
    overlay.run_for(minutes(11));
    overlay.clear_traffic();
    overlay.run_for(minutes(10));
    assert!(overlay.traffic.iter().all(|traffic| traffic.accusations == 0));
    overlay.traffic.iter().map(|traffic| traffic.bytes as f64).sum::<f64>() / count as f64 / 10.0
}

#[test]
fn the_control_traffic_of_a_node_is_small_and_does_not_depend_on_the_size_of_the_swarm() {
    let (few, many) = (bytes_a_minute(100), bytes_a_minute(500));
    assert!((0.9..1.1).contains(&(many / few)), "{few} and {many} bytes a minute");
    assert!(many < 3000.0, "{many} bytes a minute");
}

#[test]
fn a_node_whose_only_bootstrap_died_gets_in_by_members_that_it_remembers() {
    let mut overlay = Overlay::of(40, 1, |_| 0);
    overlay.run_for(minutes(10));
    overlay.crash(0);
    // Two of those that it remembers are gone too.
    overlay.crash(7);
    overlay.crash(8);
    let late = overlay.add(Some(0), &[7, 8, 21]);
    overlay.run_for(minutes(2));
    assert!(overlay.connected(late).len() >= CONNECTIONS_WANTED - 1, "{:?}", overlay.connected(late));
}

/// A ticket names a member at several addresses, of which one may lead nowhere and be waited for: with a dial for each the
/// others were refused meanwhile.
#[test]
fn all_addresses_of_a_ticket_s_member_are_dialed_together() {
    let at = |peer, host| Bootstrap { peer, address: overlay::address(host) };
    let (here, elsewhere) = (Some(overlay::peer(1)), Some(overlay::peer(2)));
    let bootstrap = vec![at(here, 1), at(here, 2), at(elsewhere, 3), at(here, 4), at(None, 5), at(None, 6)];
    for seed in 0..20 {
        let config = Config { bootstrap: bootstrap.clone(), ..Config::founder(&RunManifest::default()) };
        let layout = Arc::new(ModelLayout::new([("w".to_owned(), vec![8])]));
        let mut node = Node::new(config, overlay::peer(0), layout, seed, Time::ZERO);
        while node.poll_effect().is_some() {}
        let first = node.next_deadline().expect("it looks for members");
        node.handle(first, Event::TimePassed);
        let mut dials = Vec::new();
        while let Some(effect) = node.poll_effect() {
            if let Effect::Network(NetworkOrder::Dial { peer, addresses }) = effect {
                dials.push((peer, addresses.into_iter().collect::<BTreeSet<_>>()));
            }
        }
        let of = |peer, hosts: &[usize]| (peer, hosts.iter().map(|host| overlay::address(*host)).collect());
        let expected = [of(here, &[1, 2, 4]), of(elsewhere, &[3]), of(None, &[5]), of(None, &[6])];
        assert!(dials.len() == 4 && expected.iter().all(|dial| dials.contains(dial)), "{dials:?}");
    }
}

#[test]
fn a_swarm_of_which_nine_tenths_die_at_once_stays_one() {
    let mut overlay = Overlay::of(300, 1, |_| 0);
    overlay.run_for(minutes(20));
    (0..300).filter(|index| index % 10 != 3).for_each(|index| overlay.crash(index));
    overlay.run_for(AGE_MAX + 2 * SHUFFLE_PERIOD);
    let mut reached = vec![3];
    let mut next = 0;
    while let Some(index) = reached.get(next).copied() {
        next += 1;
        let fresh: Vec<usize> = overlay.connected(index).into_iter().filter(|one| !reached.contains(one)).collect();
        reached.extend(fresh);
    }
    assert_eq!(reached.len(), 30, "all survivors hang together");
    for index in overlay.living() {
        assert!(overlay.known(index).iter().all(|known| known % 10 == 3), "and have forgotten the dead");
    }
}

/// Whoever tells of victims as members reaches those whom it is connected to, and with every node that passes it on, more.
#[test]
fn made_up_members_do_not_travel_through_the_swarm() {
    let mut overlay = Overlay::of(300, 1, |_| 0);
    overlay.run_for(minutes(11));
    overlay.clear_traffic();
    let made_up = |number: usize| {
        let known = KnownPeer { peer: overlay::peer(number), addresses: vec![overlay::address(number)] };
        Descriptor { known, age_seconds: 0, profile: Profile::default() }
    };
    // One member with eight connections says so again and again; nobody answers at these places.
    let hostile = overlay::peer(10_000);
    let victims = || (1000..1004).map(made_up);
    let knows = |overlay: &Overlay, index: usize| {
        overlay.status(index).known.iter().any(|known| victims().any(|victim| victim.known == *known))
    };
    let mut reached = BTreeSet::new();
    for _ in 0..120 {
        for index in 20..28 {
            overlay.tell(index, Event::PeerConnected { peer: hostile, addresses: Vec::new() });
            let message = Message::Shuffle { peers: victims().collect(), wants_reply: false };
            overlay.tell(index, Event::MessageReceived { peer: hostile, message });
        }
        overlay.run_for(Duration::from_secs(5));
        reached.extend(overlay.living().filter(|index| knows(&overlay, *index)));
    }
    assert!(reached.len() >= 8, "{} of 300 have heard of them", reached.len());
    assert!(reached.len() < 100, "{} of 300 have heard of them", reached.len());
}
