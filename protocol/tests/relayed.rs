//! A peer to which only a relay leads any more: nothing large gets through, so nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use murmur_protocol::*;

/// A node with one connected peer.
struct Setting {
    node: Node,
    peer: PeerId,
    now: Time,
}

impl Setting {
    fn new(start: Start) -> Setting {
        let layout = Arc::new(ModelLayout::new([("weights".to_owned(), vec![300])]));
        let config = Config { start, ..Config::founder(&RunManifest::default()) };
        let [me, peer] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        let node = Node::new(config, me, layout, 1, Time::ZERO);
        let mut setting = Setting { node, peer, now: Time::ZERO };
        setting.tell(Event::PeerConnected { peer, addresses: vec![] });
        setting
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let mut effects: Vec<Effect> = std::iter::from_fn(|| self.node.poll_effect()).collect();
        self.node.handle(self.now, event);
        effects.extend(std::iter::from_fn(|| self.node.poll_effect()));
        effects
    }

    fn becomes_relayed(&mut self) -> Vec<Effect> {
        self.tell(Event::PathChanged { peer: self.peer, is_direct: false })
    }
}

#[test]
fn an_exchange_whose_way_turns_relayed_fails_at_once() {
    let mut setting = Setting::new(Start::WithModel);
    let proposes = |effects: &[Effect]| {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Network(NetworkOrder::Send { message: Message::Propose(_), .. })))
    };
    let is_proposed = (1..50).any(|second| {
        setting.now = Time::from_start(Duration::from_secs(second));
        let steps = 100 * second;
        let report = TrainingReport { steps, progress: steps as f64, tokens_per_second: 1e3, ..Default::default() };
        proposes(&setting.tell(Event::StepsCompleted(report)))
    });
    assert!(is_proposed, "there is something to break off");
    let effects = setting.becomes_relayed();
    let lost = |effect: &Effect| {
        matches!(effect, Effect::Notice(Notice::ExchangeFailed { failure: ExchangeFailure::PartnerLost, .. }))
    };
    assert!(effects.iter().any(lost), "{effects:?}");
    let failed = setting.node.status().exchanges.failed();
    assert!(setting.becomes_relayed().is_empty() && setting.node.status().exchanges.failed() == failed, "once");
}

#[test]
fn a_joiner_whose_donor_turns_relayed_copies_from_it_no_more() {
    let mut setting = Setting::new(Start::FromPeer);
    setting.tell(Event::TimePassed);
    assert_eq!(setting.node.status().copying.map(|copying| copying.donors), Some(vec![setting.peer]));
    setting.becomes_relayed();
    assert_eq!(setting.node.status().copying.map(|copying| copying.donors), Some(vec![]));
}
