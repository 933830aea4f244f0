//! Whom a joiner asks after copies that others dispute, and when it believes one all the same.

use super::*;
use crate::effect::{Effect, NetworkOrder};
use crate::fragments::Fragments;

/// Whom the joiner asks now.
fn asked(joining: &mut Joining, now: Time, members: &[Witness]) -> Vec<PeerId> {
    let mut out = Outbox::default();
    joining.proceed(now, members, &Reputation::default(), &mut out);
    let to = |effect| match effect {
        Effect::Network(NetworkOrder::Send { peer, message: Message::RequestState { .. } }) => Some(peer),
        _ => None,
    };
    std::iter::from_fn(|| out.pop()).filter_map(to).collect()
}

/// By the time that the next copy is there, who gave the one before is forgotten: copies went on for ever.
#[test]
fn disputed_copies_are_counted_also_where_each_takes_longer_than_a_doubt_lasts() {
    let members =
        [1, 2, 3].map(|key| Witness { peer: PeerId::from_public_key([key; 32]), range: None, holding: Holding::ALL });
    let mut now = Time::ZERO;
    let chunking = Chunking::new(&Fragments::equal(10, 1), Holding::ALL, 10);
    let mut joining = Joining::new(PeerId::from_public_key([9; 32]), 1, chunking, 0, now);
    for copy in 1..=DONORS_MAX {
        let [donor] = asked(&mut joining, now, &members)[..] else { panic!("one donor, so that two can compare") };
        now = now + DOUBT_PERIOD + Duration::from_secs(1);
        joining.on_partner_lost(now, donor);
        joining.begin_check(members.iter().copied().filter(|member| member.peer == donor).collect(), vec![0]);
        members.iter().filter(|member| member.peer != donor).for_each(|checker| joining.object(*checker));
        let (donors, why, is_again) = joining.give_up_check(now, &members).expect("a check was under way");
        assert_eq!((donors, why, is_again), (vec![donor], Unchecked::Disputed, copy < DONORS_MAX), "copy {copy}");
    }
    joining.end_check();
    joining.begin_check(members[..1].to_vec(), vec![0]);
    members[1..].iter().for_each(|checker| joining.object(*checker));
    assert!(joining.give_up_check(now, &members).is_some_and(|(.., is_again)| is_again), "another copy, another count");
}
