//! Dials that others try to aim: at one address, at many, or through this node at third parties.

use super::*;
use crate::effect::Effect;

/// What a hostile member tells: so many made-up ones, each at the address that `place` names.
fn made_up(batch: u16, place: impl Fn(u16) -> u16) -> Vec<Descriptor> {
    let told = (0..16).map(|index| 1000 + 16 * batch + index);
    told.map(|number| {
        let known = KnownPeer { peer: peer(number), addresses: vec![address(place(number))] };
        Descriptor { known, age_seconds: 0, profile: Profile::default() }
    })
    .collect()
}

/// Lets two members tell that for thirty seconds, ten times a second; every dial fails. Returns the addresses dialed.
fn aimed(setting: &mut Setting, place: impl Fn(u16) -> u16) -> Vec<Address> {
    let mut dialed = Vec::new();
    for batch in 0..300u16 {
        let now = Time::from_start(Duration::from_millis(100 * u64::from(batch)));
        let told = made_up(batch, &place);
        setting.membership.on_shuffle(now, peer(1 + batch % 2), &told, false, &mut setting.out).expect("sane");
        while setting.membership.next_deadline() <= now {
            setting.membership.on_deadline(now, |_| false, &mut setting.out);
            for effect in setting.effects() {
                if let Effect::Network(NetworkOrder::Dial { peer, addresses }) = effect {
                    setting.membership.on_dial_failed(now, peer, &addresses, "nobody there".to_owned());
                    dialed.extend(addresses);
                }
            }
        }
    }
    dialed
}

#[test]
fn made_up_members_at_one_address_cause_the_dials_of_one() {
    let dialed = aimed(&mut Setting::connected_to(2), |_| 7);
    assert!((1..=6).contains(&dialed.len()), "{} dials of one address", dialed.len());
}

#[test]
fn made_up_addresses_without_end_are_dialed_at_a_bounded_rate() {
    let dialed = aimed(&mut Setting::connected_to(2), |number| number);
    let most = ADDRESS_DIALS_MAX as usize + 30;
    assert!((most / 2..=most).contains(&dialed.len()), "{} dials", dialed.len());
}

#[test]
fn one_who_is_real_is_still_dialed_among_the_made_up() {
    let mut setting = Setting::connected_to(2);
    aimed(&mut setting, |number| number);
    setting.connect(30, 3);
    setting.hear(30, 3, &[descriptor(9, 0)]).expect("sane");
    assert!(dialed(&setting.pass(120, |_| true)).contains(&peer(9)));
}

#[test]
fn an_address_told_four_times_is_one() {
    let mut setting = Setting::connected_to(1);
    let mut told = descriptor(9, 0);
    told.known.addresses = vec![address(9); ADDRESSES_TOLD_MAX];
    setting.hear(1, 1, &[told]).expect("sane");
    let known = setting.membership.known();
    assert_eq!(known.iter().find(|known| known.peer == peer(9)).expect("known").addresses, [address(9)]);
}

#[test]
fn a_configured_address_is_dialed_as_ever() {
    let bootstrap = vec![Bootstrap { peer: None, address: address(7) }];
    let mut setting = Setting::new(Config { bootstrap, ..Config::founder(&RunManifest::default()) });
    let before = setting.pass(600, |_| false).len();
    let mut setting = Setting::new(Config {
        bootstrap: vec![Bootstrap { peer: None, address: address(7) }],
        ..Config::founder(&RunManifest::default())
    });
    setting.membership.on_found(second(0), &[KnownPeer { peer: peer(9), addresses: vec![address(7)] }]);
    let effects = setting.pass(600, |_| false);
    let to_bootstrap = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Network(NetworkOrder::Dial { peer: None, .. })))
        .count();
    assert!(to_bootstrap >= 10 && before >= 10, "{to_bootstrap} and {before} dials");
}

#[test]
fn what_others_said_of_a_member_is_gone_once_it_speaks_for_itself() {
    let mut setting = Setting::connected_to(2);
    let mut told = descriptor(9, 0);
    told.known.addresses = vec![address(9), address(77)];
    setting.hear(1, 1, &[told]).expect("sane");
    setting.connect(2, 9);
    let sample = setting.membership.sample(second(3), peer(1));
    let of_nine = sample.iter().find(|descriptor| descriptor.known.peer == peer(9)).expect("connected");
    assert_eq!(of_nine.known.addresses, [address(9)]);
}

#[test]
fn hearsay_is_hardly_passed_on_and_what_a_lookup_named_never() {
    let mut setting = Setting::connected_to(3);
    setting.membership.on_prune(second(1), peer(3), &[], false, &mut setting.out).expect("sane");
    setting.disconnect(2, 3);
    let heard: Vec<Descriptor> = (20..30).map(|number| descriptor(number, 1)).collect();
    setting.hear(2, 2, &heard).expect("sane");
    setting.membership.on_found(second(2), &[found(40)]);
    for _ in 0..20 {
        let sample = setting.membership.sample(second(3), peer(1));
        let told: Vec<PeerId> = sample.iter().map(|descriptor| descriptor.known.peer).collect();
        let count = |wanted: &dyn Fn(PeerId) -> bool| told.iter().filter(|peer| wanted(**peer)).count();
        assert_eq!(count(&|told| (20..30).any(|number| told == peer(number))), HEARSAY_TOLD_MAX);
        assert_eq!(count(&|told| [0, 2, 3].map(peer).contains(&told)), 3, "those whom it has met, one of them parted");
        assert!(!told.contains(&peer(40)));
    }
}
