//! Laws of what a node says, orders and asks for, checked while a run goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use murmur_protocol::{Effect, Event, Holding, Message, NetworkOrder, Notice, Part, PeerId, Time};

use super::Violation;
use super::violation::ensure;
use crate::record::{Accusation, Record};
use crate::scenario::HostIndex;

const ANSWERED_ONCE: &str = "answered once";

/// Answers of one node that are remembered: more than can be under way, few enough for thousands of nodes.
const ANSWERS_MAX: usize = 64;

/// What kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// To a proposal.
    Accept,
    /// To a starter's codes.
    Merged,
}

/// Law: "every request is answered at most once": a second answer never says anything else than the first.
///
/// A repeated proposal brings the same ACCEPT again, and a repeated reply the same codes; both say nothing new. Kept are
/// the answers of one life of a node, by request, as digests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    given: BTreeMap<Request, u64>,
    /// In the order of the first answers.
    order: VecDeque<Request>,
}

/// Number of the exchange, what kind of answer, and to whom.
type Request = (u64, Answer, PeerId);

impl Answers {
    /// Takes in what a node answers to exchange `number` of `peer`.
    pub(crate) fn give(&mut self, answer: Answer, peer: PeerId, number: u64, digest: u64) -> Result<(), Violation> {
        let request = (number, answer, peer);
        let order = &mut self.order;
        let first = *self.given.entry(request).or_insert_with(|| {
            order.push_back(request);
            digest
        });
        if self.order.len() > ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.given.remove(&oldest);
        }
        ensure!(first == digest, ANSWERED_ONCE, "exchange {number} of {peer}: two answers that differ ({answer:?})");
        Ok(())
    }
}

/// The same law for drivers: a reply comes once for each order, and `is_awaited` tells whether that was still open.
pub(crate) fn replied_once(host: usize, is_awaited: bool, reply: &dyn std::fmt::Debug) -> Result<(), Violation> {
    ensure!(is_awaited, ANSWERED_ONCE, "host {host} was told again: {reply:?}");
    Ok(())
}

/// Law: "the unwanted are left alone": a node neither dials nor begins an exchange with whom it has banned or who has
/// taken leave of it, and begins none at all while its owner wants the network left alone. Kept for one life of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftAlone {
    /// Until when, on the node's clock.
    banned: BTreeMap<PeerId, Time>,
    leavers: BTreeSet<PeerId>,
    is_resting: bool,
    /// Number of the last exchange that it began.
    last_begun: Option<u64>,
}

impl LeftAlone {
    /// Takes in what a node is told.
    pub(crate) fn hear(&mut self, event: &Event) {
        match event {
            Event::MessageReceived { peer, message: Message::Leave } => {
                self.leavers.insert(*peer);
            }
            Event::PeerConnected { peer, .. } => {
                self.leavers.remove(peer);
            }
            Event::RestBegan => self.is_resting = true,
            Event::RestEnded => self.is_resting = false,
            _ => {}
        }
    }

    /// Takes in what the node of `host` orders at `now`, on its clock.
    pub(crate) fn order(&mut self, host: HostIndex, now: Time, effect: &Effect) -> Result<(), Violation> {
        let violation = |what: &str, peer| {
            Violation::new("left alone", format!("at {now:?} of its clock host {host} {what} {peer}"))
        };
        let (peer, what) = match effect {
            Effect::Notice(Notice::PeerBanned { peer, duration }) => {
                self.banned.insert(*peer, now + *duration);
                return Ok(());
            }
            Effect::Network(NetworkOrder::Dial { peer: Some(peer), .. }) => (peer, "dials"),
            Effect::Network(NetworkOrder::Send { peer, message: Message::Propose(propose) })
                if self.last_begun < Some(propose.exchange) =>
            {
                self.last_begun = Some(propose.exchange);
                // The check of a copy moves nothing; it ends what was under way.
                if self.is_resting && propose.standing.gamma > 0.0 {
                    return Err(violation("begins an exchange at rest with", peer));
                }
                (peer, "proposes an exchange to")
            }
            _ => return Ok(()),
        };
        if self.banned.get(peer).is_some_and(|until| now < *until) {
            return Err(violation(&format!("{what} the banned"), peer));
        }
        if self.leavers.contains(peer) {
            return Err(violation(&format!("{what} the departed"), peer));
        }
        Ok(())
    }
}

/// Law: "only what is held": a node asks its trainer for, and orders corrections of, fragments that it holds, and no
/// others. What it holds may change: then orders that it has given before may still be carried out, and it gives no more
/// of them. `holding`: at present.
pub(crate) fn only_held(host: HostIndex, holding: Holding, part: Part) -> Result<(), Violation> {
    let (index, count) = (part.fragment.index, part.fragment.count);
    ensure!(holding.holds(index), "only held", "host {host} exchanges fragment {index} of {count}, which it lacks");
    Ok(())
}

/// Law: "an honest node is never taken for a hostile one" by an honest one, however badly the network treats its words.
pub fn nobody_accused(record: &Record) -> Result<(), Violation> {
    for Accusation { at, by, of, misbehaviour, is_among_honest } in &record.accusations {
        ensure!(
            !is_among_honest,
            "nobody accused",
            "at {at:?} host {by} said of the honest host {of:?}: {misbehaviour}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use murmur_protocol::{Fragment, Misbehaviour, Vector};

    use super::*;

    #[test]
    fn a_second_answer_that_differs_is_refused() {
        let peer = PeerId::from_public_key([1; 32]);
        let mut answers = Answers::default();
        assert_eq!(answers.give(Answer::Accept, peer, 7, 1), Ok(()));
        assert_eq!(answers.give(Answer::Accept, peer, 7, 1), Ok(()), "repeated");
        assert_eq!(answers.give(Answer::Merged, peer, 7, 2), Ok(()), "of another kind");
        assert!(answers.give(Answer::Accept, peer, 7, 3).is_err());
    }

    /// Each starter counts from when its process began: a founder's numbers stay far below those of who came later.
    #[test]
    fn a_second_answer_to_a_founder_is_refused_after_many_to_later_ones() {
        let [founder, later] = [1, 2].map(|number| PeerId::from_public_key([number; 32]));
        let mut answers = Answers::default();
        for number in 0..2 * ANSWERS_MAX as u64 {
            assert_eq!(answers.give(Answer::Accept, later, 10_000_000 + number, number), Ok(()));
        }
        assert_eq!(answers.give(Answer::Accept, founder, 7, 1), Ok(()));
        assert!(answers.give(Answer::Accept, founder, 7, 2).is_err());
        assert_eq!((answers.given.len(), answers.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
    }

    #[test]
    fn a_second_reply_to_an_order_is_refused() {
        assert_eq!(replied_once(0, true, &"Encoded"), Ok(()));
        assert!(replied_once(0, false, &"Encoded").is_err());
    }

    fn dial(peer: PeerId) -> Effect {
        Effect::Network(NetworkOrder::Dial { peer: Some(peer), addresses: Vec::new() })
    }

    #[test]
    fn a_ban_holds_until_its_end() {
        let peer = PeerId::from_public_key([1; 32]);
        let mut law = LeftAlone::default();
        let duration = Duration::from_secs(10);
        assert_eq!(law.order(0, Time::ZERO, &Effect::Notice(Notice::PeerBanned { peer, duration })), Ok(()));
        assert!(law.order(0, Time::from_start(Duration::from_secs(9)), &dial(peer)).is_err());
        assert_eq!(law.order(0, Time::from_start(duration), &dial(peer)), Ok(()));
    }

    #[test]
    fn a_leaver_is_left_alone_until_it_comes_back() {
        let peer = PeerId::from_public_key([1; 32]);
        let mut law = LeftAlone::default();
        law.hear(&Event::MessageReceived { peer, message: Message::Leave });
        assert!(law.order(0, Time::ZERO, &dial(peer)).is_err());
        law.hear(&Event::PeerConnected { peer, addresses: Vec::new() });
        assert_eq!(law.order(0, Time::ZERO, &dial(peer)), Ok(()));
    }

    #[test]
    fn a_fragment_that_is_not_held_is_refused() {
        let part = |index| Part { vector: Vector::Model, fragment: Fragment { index, count: 3 } };
        assert_eq!(only_held(0, Holding::of([1]), part(1)), Ok(()));
        assert_eq!(only_held(0, Holding::ALL, part(2)), Ok(()));
        assert!(only_held(0, Holding::of([1]), part(2)).is_err());
    }

    #[test]
    fn an_accusation_of_an_honest_host_is_found() {
        let mut accusation = Accusation {
            at: Time::ZERO,
            by: 1,
            of: Some(0),
            is_among_honest: true,
            misbehaviour: Misbehaviour::Unsolicited,
        };
        let record = |accusation| Record { accusations: vec![accusation], ..Record::default() };
        assert!(nobody_accused(&record(accusation.clone())).is_err());
        accusation.is_among_honest = false;
        assert_eq!(nobody_accused(&record(accusation)), Ok(()));
    }
}
