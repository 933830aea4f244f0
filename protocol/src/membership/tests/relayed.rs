//! Peers to which only a relay leads: they are told of others, and are no partners.

use super::*;

impl Setting {
    fn becomes(&mut self, at: u64, number: u16, is_direct: bool) {
        self.membership.on_path_changed(second(at), peer(number), is_direct);
    }
}

#[test]
fn a_relayed_peer_is_no_partner_until_the_way_is_direct() {
    let mut setting = Setting::connected_to(2);
    setting.becomes(0, 1, false);
    assert_eq!(setting.membership.partners(second(1)), [peer(2)]);
    setting.becomes(1, 1, true);
    assert_eq!(setting.membership.partners(second(1)), [peer(1), peer(2)]);
}

/// A node with nobody but relayed peers had all the connections that it wanted, and nobody to average with.
#[test]
fn who_has_only_relayed_peers_looks_for_a_few_direct_ones() {
    let wanted = CONNECTIONS_WANTED as u16;
    let mut setting = Setting::connected_to(wanted);
    let strangers: Vec<Descriptor> = (20..35).map(|number| descriptor(number, 1)).collect();
    setting.hear(0, 1, &strangers).expect("sane");
    assert_eq!(dialed(&setting.pass(1, |_| true)), [], "it has enough");
    (1..=wanted).for_each(|number| setting.becomes(1, number, false));
    setting.membership.on_deadline(second(1), |_| true, &mut setting.out);
    let room = CONNECTIONS_SURPLUS - CONNECTIONS_WANTED;
    let found = dialed(&setting.effects());
    assert_eq!(found.len(), room);
    for (index, number) in (20..35).filter(|number| found.contains(&peer(*number))).enumerate() {
        setting.connect(2, number);
        setting.becomes(2, number, index == 0);
    }
    assert_eq!(dialed(&setting.pass(3, |_| true)), [], "so many are enough, whatever leads to them");
    (1..=room as u16).for_each(|number| assert!(setting.disconnect(4, number)));
    setting.membership.on_deadline(second(4), |_| true, &mut setting.out);
    assert_eq!(dialed(&setting.effects()).len(), room, "others are tried for those whose circuit has ended");
}
