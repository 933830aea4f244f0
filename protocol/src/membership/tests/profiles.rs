//! What members say of themselves: whose word counts, what is passed on, what is refused.

use super::*;
use crate::profile::Name;

fn named(number: u16, name: &str, tokens_per_second: f32) -> Descriptor {
    Descriptor {
        profile: Profile { name: Name::new(name), tokens_per_second, ..Profile::default() },
        ..descriptor(number, 0)
    }
}

#[test]
fn what_members_say_of_themselves_is_shown_and_passed_on() {
    let config = Config { name: Name::new("mine"), ..Config::founder(&RunManifest::default()) };
    let mut setting = Setting::new(config);
    setting.connect(0, 1);
    setting.connect(0, 2);
    setting.membership.on_speed(50.0);
    setting.hear(1, 1, &[named(1, "attic", 100.0), named(2, "liar's word", 1.0), named(3, "far", 7.0)]).expect("sane");
    let members = setting.membership.members(second(5));
    let of = |number: u16| members[&peer(number)].profile.clone();
    assert_eq!((of(1).name, of(1).tokens_per_second), (Name::new("attic"), 100.0));
    assert_eq!(of(2), Profile::default(), "a connected member speaks for itself");
    assert_eq!(of(3).name, Name::new("far"));
    assert!(members[&peer(1)].is_connected && !members[&peer(3)].is_connected);
    let told = setting.membership.sample(second(5), peer(2));
    assert_eq!((told[0].profile.name.clone(), told[0].profile.tokens_per_second), (Name::new("mine"), 50.0));
    let attic = told.iter().find(|told| told.known.peer == peer(1)).expect("one of two");
    assert_eq!((attic.profile.name.clone(), attic.age_seconds), (Name::new("attic"), 5));
}

#[test]
fn a_declared_weight_is_a_speed_until_its_owner_says_that_it_stopped() {
    let mut setting = Setting::connected_to(1);
    let speed = |setting: &mut Setting, weight: f32| {
        setting.membership.clamp_weights(peer(1), weight, 1.0);
        setting.membership.members(second(1))[&peer(1)].profile.tokens_per_second
    };
    setting.hear(0, 1, &[named(1, "a", 0.0)]).expect("sane");
    assert_eq!(speed(&mut setting, 30.0), 30.0);
    setting.hear(0, 1, &[named(1, "a", 0.0)]).expect("sane");
    assert_eq!(speed(&mut setting, 30.0), 0.0, "it settles, and still averages");
    setting.hear(0, 1, &[named(1, "a", 20.0)]).expect("sane");
    assert_eq!(speed(&mut setting, f32::MAX), 1e12, "nothing is passed on that others would take for our offence");
}

#[test]
fn profiles_that_break_the_rules_are_refused() {
    let mut setting = Setting::connected_to(1);
    for speed in [f32::NAN, f32::INFINITY, -1.0] {
        assert!(setting.hear(1, 1, &[named(1, "a", speed)]).is_err(), "{speed}");
    }
    let bytes = crate::codec::encode(&"\u{1b}]0;owned\u{7}".to_owned());
    let forged: Name = crate::codec::decode(&bytes).expect("a string");
    let profile = Profile { name: Some(forged), ..Profile::default() };
    assert!(setting.hear(1, 1, &[Descriptor { profile, ..descriptor(1, 0) }]).is_err(), "a name that a terminal obeys");
}
