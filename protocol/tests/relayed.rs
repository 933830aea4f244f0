//! A peer to which only a relay leads any more: nothing large gets through, so nobody waits for it.

use murmur_protocol::*;

use crate::driven::{Driven, proposes};

impl Driven {
    fn becomes_relayed(&mut self) -> Vec<Effect> {
        self.tell(Event::PathChanged { peer: self.peer, is_direct: false })
    }
}

#[test]
fn an_exchange_whose_way_turns_relayed_fails_at_once() {
    let mut driven = Driven::new(Start::WithModel);
    assert!((1..50).any(|_| proposes(&driven.train())), "there is something to break off");
    let effects = driven.becomes_relayed();
    let lost = |effect: &Effect| {
        matches!(effect, Effect::Notice(Notice::ExchangeFailed { failure: ExchangeFailure::PartnerLost, .. }))
    };
    assert!(effects.iter().any(lost), "{effects:?}");
    let failed = driven.node.status().exchanges.failed();
    assert!(driven.becomes_relayed().is_empty() && driven.node.status().exchanges.failed() == failed, "once");
}

#[test]
fn a_joiner_whose_donor_turns_relayed_copies_from_it_no_more() {
    let mut driven = Driven::new(Start::FromPeer);
    driven.tell(Event::TimePassed);
    assert_eq!(driven.node.status().copying.map(|copying| copying.donors), Some(vec![driven.peer]));
    driven.becomes_relayed();
    assert_eq!(driven.node.status().copying.map(|copying| copying.donors), Some(vec![]));
}
