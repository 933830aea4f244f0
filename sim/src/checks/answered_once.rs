//! Law: "every request is answered at most once": a second answer never says anything else than the first.
//!
//! A repeated proposal brings the same ACCEPT again, and a repeated reply the same codes; both say nothing new. Replies
//! of drivers come once for each order.

use std::collections::BTreeMap;

use murmur_protocol::PeerId;

use super::Violation;

const CHECK: &str = "answered once";

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

/// The answers of one life of a node, by request, as digests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    given: BTreeMap<(u64, Answer, PeerId), u64>,
}

impl Answers {
    /// Takes in what a node answers to exchange `number` of `peer`.
    pub(crate) fn give(&mut self, answer: Answer, peer: PeerId, number: u64, digest: u64) -> Result<(), Violation> {
        let first = *self.given.entry((number, answer, peer)).or_insert(digest);
        if self.given.len() > ANSWERS_MAX {
            // Numbers of exchanges grow, so the smallest is the oldest, or nearly.
            self.given.pop_first();
        }
        if first == digest {
            return Ok(());
        }
        Err(Violation::new(CHECK, format!("exchange {number} of {peer}: two answers that differ ({answer:?})")))
    }
}

/// Checks a driver's reply, of which `is_awaited` tells whether the order was still open.
pub(crate) fn replied_once(host: usize, is_awaited: bool, reply: &dyn std::fmt::Debug) -> Result<(), Violation> {
    if is_awaited {
        return Ok(());
    }
    Err(Violation::new(CHECK, format!("host {host} was told again: {reply:?}")))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_second_reply_to_an_order_is_refused() {
        assert_eq!(replied_once(0, true, &"Encoded"), Ok(()));
        assert!(replied_once(0, false, &"Encoded").is_err());
    }
}
