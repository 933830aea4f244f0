//! One rule of membership each, on the sub-machine alone.

use super::*;
use crate::bounds::SHUFFLE_SAMPLE_YOUNG;
use crate::config::Bootstrap;
use crate::effect::Effect;
use crate::manifest::RunManifest;
use crate::time::second;

mod aimed;
mod found;
mod parting;
mod profiles;
mod relayed;

fn peer(number: u16) -> PeerId {
    let mut key = [9; 32];
    key[..2].copy_from_slice(&number.to_be_bytes());
    PeerId::from_public_key(key)
}

fn address(number: u16) -> Address {
    Address::new(format!("sim/{number}")).expect("short")
}

fn descriptor(number: u16, age_seconds: u32) -> Descriptor {
    let known = KnownPeer { peer: peer(number), addresses: vec![address(number)] };
    Descriptor { known, age_seconds, profile: Profile::default() }
}

/// A node under test, with what it has ordered since.
struct Setting {
    membership: Membership,
    out: Outbox,
}

impl Setting {
    fn new(config: Config) -> Setting {
        let mut membership = Membership::new(&config, peer(0), 1, Time::ZERO);
        membership.on_address_found(address(0));
        Setting { membership, out: Outbox::default() }
    }

    fn founder() -> Setting {
        Setting::new(Config::founder(&RunManifest::default()))
    }

    /// With members 1 to `count` connected.
    fn connected_to(count: u16) -> Setting {
        let mut setting = Setting::founder();
        for number in 1..=count {
            setting.connect(0, number);
        }
        setting
    }

    fn connect(&mut self, at: u64, number: u16) -> bool {
        self.membership.on_connected(second(at), peer(number), vec![address(number)], &mut self.out)
    }

    fn disconnect(&mut self, at: u64, number: u16) -> bool {
        self.membership.on_disconnected(second(at), peer(number), &mut self.out)
    }

    fn hear(&mut self, at: u64, teller: u16, told: &[Descriptor]) -> Result<(), Misbehaviour> {
        self.membership.on_shuffle(second(at), peer(teller), told, false, &mut self.out)
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.out.pop()).collect()
    }

    /// Lets time pass, deadline by deadline, and every dial fail; returns the effects.
    fn pass(&mut self, until: u64, is_busy: impl Fn(PeerId) -> bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.membership.next_deadline() <= second(until) {
            let now = self.membership.next_deadline();
            self.membership.on_deadline(now, &is_busy, &mut self.out);
            assert!(self.membership.next_deadline() > now, "something due was not done");
            for effect in self.effects() {
                if let Effect::Network(NetworkOrder::Dial { peer, addresses }) = &effect {
                    self.membership.on_dial_failed(now, *peer, addresses, "nobody there".to_owned());
                }
                effects.push(effect);
            }
        }
        effects
    }

    fn knows(&self, number: u16) -> bool {
        self.membership.view.get(peer(number)).is_some() || self.membership.connections.contains(peer(number))
    }
}

fn dialed(effects: &[Effect]) -> Vec<PeerId> {
    let dials = effects.iter().filter_map(|effect| match effect {
        Effect::Network(NetworkOrder::Dial { peer, .. }) => *peer,
        _ => None,
    });
    dials.collect()
}

fn disconnected(effects: &[Effect]) -> Vec<PeerId> {
    let peers = effects.iter().filter_map(|effect| match effect {
        Effect::Network(NetworkOrder::Disconnect { peer }) => Some(*peer),
        _ => None,
    });
    peers.collect()
}

fn told(effects: &[Effect], to: u16) -> Vec<PeerId> {
    let messages = effects.iter().filter_map(|effect| match effect {
        Effect::Network(NetworkOrder::Send {
            peer: receiver,
            message: Message::Shuffle { peers, .. } | Message::Prune { peers },
        }) if *receiver == peer(to) => Some(peers),
        _ => None,
    });
    messages.flatten().map(|descriptor| descriptor.known.peer).collect()
}

#[test]
fn both_sides_of_a_connection_tell_whom_they_know() {
    let mut setting = Setting::connected_to(2);
    let effects = setting.effects();
    assert_eq!(told(&effects, 1), [peer(0)], "itself");
    assert_eq!(told(&effects, 2), [peer(0), peer(1)]);
}

#[test]
fn a_shuffle_is_answered_with_a_bounded_sample_that_begins_with_oneself() {
    let mut setting = Setting::connected_to(30);
    setting.effects();
    setting.membership.on_shuffle(second(1), peer(3), &[], true, &mut setting.out).expect("sane");
    let effects = setting.effects();
    let told = told(&effects, 3);
    assert_eq!(told.len(), 1 + SHUFFLE_SAMPLE_YOUNG);
    assert!(told[0] == peer(0) && !told.contains(&peer(3)));
    setting.membership.on_shuffle(second(1), peer(3), &[], true, &mut setting.out).expect("sane");
    assert!(setting.effects().is_empty(), "a flood of requests has no replies");
}

#[test]
fn absurd_lists_are_refused_and_forged_ones_harmless() {
    let mut setting = Setting::connected_to(1);
    let many: Vec<Descriptor> = (100..117).map(|number| descriptor(number, 0)).collect();
    assert!(setting.hear(1, 1, &many).is_err(), "too many");
    let mut addresses = descriptor(100, 0);
    addresses.known.addresses = vec![address(1); ADDRESSES_TOLD_MAX + 1];
    assert!(setting.hear(1, 1, &[addresses]).is_err(), "too many addresses");
    assert_eq!(setting.membership.known().len(), 1, "nothing of them is kept");
    let nowhere = KnownPeer { peer: peer(101), addresses: vec![] };
    let nowhere = Descriptor { known: nowhere, age_seconds: 0, profile: Profile::default() };
    let forged = [descriptor(0, 0), descriptor(102, u32::MAX), descriptor(103, 3600), nowhere, descriptor(1, 0)];
    assert_eq!(setting.hear(1, 1, &forged), Ok(()));
    assert_eq!(setting.membership.known().len(), 1, "neither itself, nor the long dead, nor who has no address");
}

#[test]
fn a_flood_of_invented_members_displaces_no_connection_and_fills_no_more_than_its_share() {
    let mut setting = Setting::connected_to(10);
    for number in 100..140 {
        setting.hear(1, 1 + number % 9, &[descriptor(number, 5)]).expect("sane");
    }
    for batch in 0..200 {
        let invented: Vec<Descriptor> = (0..16).map(|index| descriptor(1000 + 16 * batch + index, 0)).collect();
        setting.hear(2, 10, &invented).expect("sane");
    }
    let known = setting.membership.known();
    let invented = known.iter().filter(|known| known.peer >= peer(1000)).count();
    assert_eq!((setting.membership.connected().count(), invented), (10, TOLD_BY_ONE_MAX));
    assert_eq!(known.len(), 10 + 40 + invented, "what the others told is still there");
}

#[test]
fn who_does_not_answer_is_dropped_though_it_talks() {
    let mut setting = Setting::connected_to(2);
    setting.effects();
    for silence in 1..=SILENCES_MAX {
        let now = second(100 * u64::from(silence));
        setting.membership.on_heard(now, peer(1)); // the link is dead in one direction only
        setting.membership.on_silence(now, peer(1), &mut setting.out);
        assert_eq!(setting.membership.partners(now), [peer(2)]);
    }
    assert_eq!(disconnected(&setting.effects()), [peer(1)]);
    assert!(!setting.membership.is_connected(peer(1)));
    assert!(setting.disconnect(500, 1), "the node must know, to give up what was under way");
}

#[test]
fn an_answer_makes_good_for_silences() {
    let mut setting = Setting::connected_to(1);
    let now = second(100);
    (1..SILENCES_MAX).for_each(|_| setting.membership.on_silence(now, peer(1), &mut setting.out));
    assert_eq!(setting.membership.partners(now), []);
    setting.membership.on_answer(now, peer(1));
    assert_eq!(setting.membership.partners(now), [peer(1)]);
}

/// A busy machine is silent for some seconds, and may be all that is left to exchange with.
#[test]
fn who_is_silent_hears_what_this_node_holds_as_well() {
    let mut setting = Setting::connected_to(2);
    setting.membership.on_silence(second(100), peer(1), &mut setting.out);
    setting.effects();
    setting.membership.on_holding(Holding::ALL, &mut setting.out);
    let effects = setting.effects();
    assert_eq!([1, 2].map(|to| told(&effects, to).len()), [1; 2]);
}

#[test]
fn shuffles_without_a_reply_are_silences() {
    let mut setting = Setting::connected_to(1);
    setting.effects();
    let effects = setting.pass(900, |_| false);
    assert_eq!(disconnected(&effects), [peer(1)], "the only peer never answered");
}

#[test]
fn nobody_is_told_of_suspects_nor_of_those_who_cannot_be_dialed() {
    let mut setting = Setting::connected_to(3);
    setting.membership.on_silence(second(1), peer(1), &mut setting.out);
    setting.hear(1, 2, &[descriptor(7, 1), descriptor(8, 1)]).expect("sane");
    setting.membership.on_dial_failed(second(2), Some(peer(7)), &[address(7)], "nobody there".to_owned());
    let sample = setting.membership.sample(second(3), peer(3));
    let told: Vec<PeerId> = sample.iter().map(|descriptor| descriptor.known.peer).collect();
    assert!(told.contains(&peer(2)) && told.contains(&peer(8)), "{told:?}");
    assert!(!told.contains(&peer(1)) && !told.contains(&peer(7)), "{told:?}");
}

#[test]
fn a_full_node_tells_a_newcomer_of_others_before_it_hangs_up() {
    let mut setting = Setting::connected_to(CONNECTIONS_MAX as u16);
    setting.effects();
    assert!(!setting.connect(1, 500));
    let effects = setting.effects();
    assert_eq!(told(&effects, 500).len(), 1 + SHUFFLE_SAMPLE_YOUNG);
    assert_eq!(disconnected(&effects), [], "it has time to read that");
    let until = 1 + PRUNE_GRACE.as_secs();
    assert!(disconnected(&setting.pass(until, |_| true)).contains(&peer(500)));
    assert!(!setting.disconnect(until, 500), "it never was a member");
}

#[test]
fn rotation_parts_from_the_oldest_surplus_but_never_from_the_busy() {
    let mut setting = Setting::founder();
    for number in 1..=12 {
        setting.connect(u64::from(number), number);
    }
    setting.effects();
    let busy = |one: PeerId| one == peer(1);
    let effects = setting.pass(30, busy);
    assert_eq!(disconnected(&effects).first(), Some(&peer(2)), "the oldest that is free");
    assert!(!disconnected(&effects).contains(&peer(1)));
}

#[test]
fn who_was_out_of_reach_and_comes_back_is_remembered_as_such_once() {
    let mut setting = Setting::connected_to(2);
    setting.disconnect(100, 1);
    setting.connect(110, 1);
    assert_eq!(setting.membership.take_return(peer(1), AWAY_COUNTS_AFTER), None, "ten seconds are nothing");
    setting.disconnect(200, 1);
    setting.connect(3800, 1);
    assert_eq!(setting.membership.take_return(peer(1), AWAY_COUNTS_AFTER), Some(Duration::from_secs(3600)));
    assert_eq!(setting.membership.take_return(peer(1), AWAY_COUNTS_AFTER), None);
    assert_eq!(setting.membership.take_return(peer(2), AWAY_COUNTS_AFTER), None);
}

#[test]
fn the_lost_leave_the_view_for_the_reserve_and_are_dialed_now_and_then() {
    let mut setting = Setting::connected_to(12);
    setting.disconnect(10, 12);
    setting.effects();
    let answer = |setting: &mut Setting, until: u64| {
        let mut effects = Vec::new();
        for now in (0..until).step_by(20) {
            effects.extend(setting.pass(now, |_| true));
            for number in 1..12 {
                setting.membership.on_answer(second(now), peer(number));
            }
        }
        effects
    };
    answer(&mut setting, AGE_MAX.as_secs() + 100);
    assert!(!setting.knows(12) && setting.membership.connected().count() == 11);
    let later = answer(&mut setting, 4 * 3600);
    assert!(dialed(&later).iter().filter(|dialed| **dialed == peer(12)).count() > 30, "every two minutes");
    assert!(setting.connect(4 * 3600, 12));
    assert_eq!(
        setting.membership.take_return(peer(12), AWAY_COUNTS_AFTER).map(|away| away.as_secs()),
        Some(4 * 3600 - 10)
    );
}

/// Halves of a split swarm have all the connections that they want, and strangers to try for new ones.
#[test]
fn a_member_lost_lately_is_dialed_every_half_minute() {
    let mut setting = Setting::connected_to(12);
    let strangers: Vec<Descriptor> = (20..36).map(|number| descriptor(number, 1)).collect();
    setting.hear(1, 2, &strangers).expect("sane");
    setting.disconnect(10, 12);
    setting.effects();
    let mut effects = Vec::new();
    for now in (10..310).step_by(10) {
        effects.extend(setting.pass(now, |_| true));
        for number in 1..12 {
            setting.membership.on_answer(second(now), peer(number));
        }
    }
    let count = dialed(&effects).iter().filter(|dialed| **dialed == peer(12)).count();
    assert!((5..=12).contains(&count), "{count} times in five minutes");
}

#[test]
fn the_banned_are_cut_off_and_neither_dialed_nor_told_nor_let_in_until_the_end() {
    let mut setting = Setting::connected_to(3);
    setting.hear(1, 2, &[descriptor(9, 1)]).expect("sane");
    setting.effects();
    for number in [1, 9] {
        setting.membership.ban(second(2), peer(number), second(1000), &mut setting.out);
    }
    assert_eq!(disconnected(&setting.effects()), [peer(1)]);
    assert_eq!(setting.membership.partners(second(3)), [peer(2), peer(3)]);
    setting.disconnect(3, 1);
    setting.hear(4, 2, &[descriptor(9, 0), descriptor(1, 0)]).expect("sane");
    assert!(!setting.knows(1) && !setting.knows(9));
    assert!(!setting.connect(5, 1), "nor may it come by itself");
    assert_eq!(disconnected(&setting.effects()), [peer(1)]);
    assert!(dialed(&setting.pass(100, |_| true)).is_empty());
    assert!(!setting.membership.is_banned(peer(1), second(1000)));
    assert!(setting.connect(1000, 1));
}

#[test]
fn a_leaver_is_not_learned_again_from_those_who_have_not_heard() {
    let mut setting = Setting::connected_to(2);
    setting.membership.on_leave(second(1), peer(1));
    assert_eq!(setting.membership.partners(second(1)), [peer(2)]);
    setting.disconnect(2, 1);
    // The second teller's clock is slower by a twentieth: for it, the leaver was there a moment ago.
    for (now, age) in [(3, 1), (930, 880)] {
        setting.hear(now, 2, &[descriptor(1, age)]).expect("sane");
        assert!(!setting.knows(1), "at {now}");
    }
    assert!(setting.connect(940, 1), "it may change its mind");
}

#[test]
fn remembered_peers_are_dialed_where_the_bootstrap_is_dead_but_not_told() {
    let remembered = (1..=3).map(|number| descriptor(number, 0).known).collect();
    let bootstrap = vec![Bootstrap { peer: None, address: address(99) }];
    let mut setting = Setting::new(Config { remembered, bootstrap, ..Config::founder(&RunManifest::default()) });
    let effects = setting.pass(10, |_| false);
    for number in 1..=3 {
        assert!(dialed(&effects).contains(&peer(number)));
    }
    setting.connect(11, 1);
    assert_eq!(told(&setting.effects(), 1), [peer(0)], "it knows nothing of the others");
}

#[test]
fn a_quiet_node_wakes_a_few_times_a_minute() {
    let mut setting = Setting::connected_to(9);
    let mut wakes = 0;
    for now in (0..3600).step_by(10) {
        while setting.membership.next_deadline() <= second(now) {
            let deadline = setting.membership.next_deadline();
            setting.membership.on_deadline(deadline, |_| true, &mut setting.out);
            (1..=9).for_each(|number| drop(setting.hear(now, number, &[])));
            wakes += usize::from(now >= 1800);
        }
    }
    assert!((30..120).contains(&wakes), "{wakes} times in half an hour");
}

fn found(number: u16) -> KnownPeer {
    KnownPeer { peer: peer(number), addresses: vec![address(number)] }
}

#[test]
fn a_lost_address_is_told_no_more() {
    let mut setting = Setting::founder();
    setting.membership.on_address_found(address(7));
    setting.membership.on_address_lost(&address(7));
    assert_eq!(setting.membership.sample(second(0), peer(1))[0].known.addresses, [address(0)]);
}

#[test]
fn a_peer_of_another_run_is_forgotten_and_left_alone_for_long() {
    let mut setting = Setting::connected_to(1);
    setting.hear(0, 1, &[descriptor(2, 10)]).expect("sane");
    setting.membership.on_foreign(second(1), peer(2));
    let found = KnownPeer { peer: peer(2), addresses: vec![address(2)] };
    for at in [2, FOREIGN_KEPT.as_secs()] {
        setting.hear(at, 1, &[descriptor(2, 0)]).expect("sane");
        setting.membership.on_found(second(at), std::slice::from_ref(&found));
        assert!(!setting.knows(2), "at {at} s");
    }
    setting.membership.on_found(second(2 + FOREIGN_KEPT.as_secs()), std::slice::from_ref(&found));
    assert!(setting.knows(2), "it may have been started anew with this run");
}

/// Who says that it is a thousand times as fast as everybody else moves nobody a thousand times as far.
#[test]
fn speeds_count_within_a_factor_of_what_is_usual() {
    let mut setting = Setting::connected_to(5);
    for number in 1..=4 {
        setting.membership.clamp_weights(peer(number), 100.0, 100.0);
    }
    let clamped = |setting: &mut Setting, declared, own| setting.membership.clamp_weights(peer(5), declared, own);
    assert_eq!(clamped(&mut setting, 150.0, 90.0), (150.0, 90.0));
    assert_eq!(clamped(&mut setting, 1e30, 100.0), (100.0 * WEIGHT_CLAMP, 100.0));
    assert_eq!(clamped(&mut setting, 0.0, 1e30), (100.0 / WEIGHT_CLAMP, 100.0 * WEIGHT_CLAMP));
}

#[test]
fn who_was_alone_for_long_asks_the_first_it_meets_soon() {
    let mut setting = Setting::connected_to(1);
    setting.pass(4000, |_| false);
    let usual = setting.membership.shuffles.interval;
    assert!(usual > SHUFFLE_PERIOD_FIRST, "{usual:?}");
    setting.disconnect(4000, 1);
    setting.pass(4000 + 2 * AWAY_COUNTS_AFTER.as_secs(), |_| false);
    let back = 4000 + 2 * AWAY_COUNTS_AFTER.as_secs();
    setting.connect(back, 2);
    assert!(setting.membership.shuffles.next <= second(back) + SHUFFLE_PERIOD_FIRST.mul_f64(1.2));
}
