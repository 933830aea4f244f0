//! What is made of a connection's end where somebody has asked to part, and of one that outlasts a cut.

use super::*;

#[test]
fn who_is_asked_to_part_hangs_up_unless_something_is_under_way() {
    for is_busy in [false, true] {
        let mut setting = Setting::connected_to(2);
        setting.effects();
        setting.membership.on_prune(second(50), peer(1), &[descriptor(9, 1)], is_busy, &mut setting.out).expect("sane");
        assert_eq!(disconnected(&setting.effects()).contains(&peer(1)), !is_busy);
        assert!(setting.knows(9), "it has whom to turn to");
    }
}

#[test]
fn who_wanted_to_part_is_dialed_soon_only_by_those_who_would_have_too_few() {
    for (connected, is_dialed) in [(CONNECTIONS_SURPLUS as u16, false), (2, true)] {
        let mut setting = Setting::connected_to(connected);
        setting.membership.on_prune(second(50), peer(1), &[], false, &mut setting.out).expect("sane");
        setting.disconnect(51, 1);
        setting.effects();
        let at_once = setting.pass(60, |_| false);
        assert!(!dialed(&at_once).contains(&peer(1)), "not at once");
        let soon = setting.pass(90, |_| false);
        assert_eq!(dialed(&soon).contains(&peer(1)), is_dialed, "of {connected}");
        assert!(is_dialed || setting.knows(1), "it is alive");
    }
}

/// It was dialed again after a second, by its bootstrap address, and nobody was told why.
#[test]
fn who_is_turned_away_says_so_and_dials_others_before_it_comes_again() {
    let bootstrap = vec![Bootstrap { peer: None, address: address(1) }];
    let mut setting = Setting::new(Config { bootstrap, ..Config::founder(&RunManifest::default()) });
    setting.pass(0, |_| false);
    setting.connect(1, 1);
    setting.effects();
    let told = [descriptor(1, 0), descriptor(9, 1)];
    setting.membership.on_prune(second(1), peer(1), &told, false, &mut setting.out).expect("sane");
    let said = setting.effects();
    let turned_away = Notice::TurnedAway { peer: peer(1), others: 1 };
    assert!(said.iter().any(|effect| matches!(effect, Effect::Notice(notice) if *notice == turned_away)), "{said:?}");
    setting.disconnect(1, 1);
    let at_once = setting.pass(11, |_| false);
    assert!(dialed(&at_once).contains(&peer(9)), "whom it has named");
    let is_of_it = |effect: &Effect| match effect {
        Effect::Network(NetworkOrder::Dial { addresses, .. }) => addresses.contains(&address(1)),
        _ => false,
    };
    assert!(!at_once.iter().any(is_of_it), "{at_once:?}");
    assert!(setting.pass(31, |_| false).iter().any(is_of_it), "there may be a place by now");
}

#[test]
fn who_had_a_place_for_a_while_was_not_turned_away() {
    let mut setting = Setting::connected_to(2);
    let later = Time::ZERO + CONNECTION_COUNTS_AFTER;
    setting.membership.on_prune(later, peer(1), &[], false, &mut setting.out).expect("sane");
    let said = setting.effects();
    assert!(!said.iter().any(|effect| matches!(effect, Effect::Notice(Notice::TurnedAway { .. }))), "{said:?}");
}

/// Both are busy with each other: who asked keeps the connection, and says nothing of it. One that broke much later passed for
/// one that was closed on purpose: the lost member was not sought for minutes, and had not been away when it came back.
#[test]
fn a_connection_that_both_keep_is_missed_when_it_breaks() {
    let away = Duration::from_secs(100);
    for (is_busy, ends_at, is_missed) in
        [(false, 51, false), (true, 52, false), (true, 50 + PARTING_MAX.as_secs() + 1, true)]
    {
        let mut setting = Setting::connected_to(2);
        setting.membership.on_prune(second(50), peer(1), &[], is_busy, &mut setting.out).expect("sane");
        setting.disconnect(ends_at, 1);
        setting.connect(ends_at + away.as_secs(), 1);
        let was_away = setting.membership.take_return(peer(1), away);
        assert_eq!(was_away.is_some(), is_missed, "busy: {is_busy}, ends at {ends_at}");
    }
}

#[test]
fn who_asked_to_part_and_was_then_busy_misses_it_as_well() {
    let mut setting = Setting::founder();
    for number in 1..=12 {
        setting.connect(u64::from(number), number);
    }
    let is_busy = |one: PeerId| one == peer(1);
    setting.membership.rotate(second(20), |_| false, &mut setting.out);
    setting.membership.end_partings(second(20) + PRUNE_GRACE, is_busy, &mut setting.out);
    assert!(setting.membership.is_connected(peer(1)), "the oldest, which was to go");
    let (ends_at, away) = (100, Duration::from_secs(100));
    setting.disconnect(ends_at, 1);
    setting.connect(ends_at + away.as_secs(), 1);
    assert_eq!(setting.membership.take_return(peer(1), away), Some(away));
}

/// Its process was killed before it had hung up, and its next life came by another connection beside the one that was dead: it
/// counted as gone for as long as there was a connection.
#[test]
fn a_leaver_that_is_still_heard_of_long_after_is_back() {
    let mut setting = Setting::connected_to(2);
    setting.membership.on_leave(second(50), peer(1));
    assert!(!setting.membership.on_heard(second(55), peer(1)), "a word of before, held back");
    assert_eq!(setting.membership.partners(second(55)), [peer(2)]);
    assert!(setting.membership.on_heard(second(50) + LEAVE_OVER_AFTER, peer(1)));
    assert_eq!(setting.membership.partners(second(80)), [peer(1), peer(2)]);
    assert!(!setting.membership.on_heard(second(81), peer(1)), "it is back once");
}

/// Connections outlast a cut of some twenty seconds: then nobody was told that the others had been away.
#[test]
fn who_left_a_question_unanswered_and_was_not_heard_since_has_been_away() {
    let long = Duration::from_secs(10);
    for (heard_at, is_away) in [(None, true), (Some(55), false)] {
        let mut setting = Setting::connected_to(2);
        setting.membership.on_silence(second(50), peer(1), &mut setting.out);
        if let Some(heard_at) = heard_at {
            setting.membership.on_heard(second(heard_at), peer(1));
        }
        setting.membership.on_answer(second(70), peer(1));
        let away = setting.membership.take_return(peer(1), long);
        assert_eq!(away, is_away.then(|| Duration::from_secs(20)), "heard at {heard_at:?}");
        assert_eq!(setting.membership.take_return(peer(1), long), None, "once");
    }
}
