//! What the core notices, in words, each lasting condition once and its end: for the console and for the records of a node.

use std::time::Instant;

use murmur_protocol::Notice;

use super::conditions::{Conditions, Ended};
use super::names::Names;
use super::notice::{Condition, describe};
use super::words::Words;

/// Hears notices.
pub(crate) struct Hearing {
    /// What members are called.
    pub(crate) names: Names,
    conditions: Conditions<Condition>,
    begin: Instant,
}

/// What a notice comes to.
pub(crate) struct Heard {
    /// What is over with it.
    pub(crate) ended: Vec<Words>,
    /// What it says.
    pub(crate) words: Words,
    /// Whether that lasts and was said before.
    pub(crate) is_repeated: bool,
}

impl Hearing {
    /// Nothing has been heard.
    pub(crate) fn new() -> Hearing {
        Hearing { names: Names::default(), conditions: Conditions::new(), begin: Instant::now() }
    }

    /// Hears a notice.
    pub(crate) fn hear(&mut self, notice: &Notice) -> Heard {
        let now = self.begin.elapsed();
        let mut ended = Vec::new();
        for condition in Condition::ended_by(notice) {
            if let Some(over) = self.conditions.end(now, &condition) {
                ended.extend(self.over(&condition, over));
            }
        }
        // Who has trained to the end needs nobody.
        let is_idle = self.conditions.holds(&Condition::Complete) && matches!(notice, Notice::Alone { .. });
        let mut meets = |condition| self.conditions.meet(now, condition);
        let is_repeated = is_idle || Condition::of(notice).is_some_and(|condition| !meets(condition));
        Heard { ended, words: describe(notice, &self.names), is_repeated }
    }

    /// Which conditions have not come again for long.
    pub(crate) fn quiet(&mut self) -> Vec<Words> {
        let quiet = self.conditions.take_quiet(self.begin.elapsed(), Condition::ends_by_itself);
        quiet.into_iter().filter_map(|(condition, ended)| self.over(&condition, ended)).collect()
    }

    fn over(&self, condition: &Condition, ended: Ended) -> Option<Words> {
        condition.over(ended, &self.names).map(|text| Words { text, hint: None })
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::PeerId;

    use super::*;

    #[test]
    fn the_end_of_training_is_said_once_and_nobody_is_missed_after_it() {
        let mut hearing = Hearing::new();
        let mut is_said = |notice: &Notice| !hearing.hear(notice).is_repeated;
        let alone = Notice::Alone { reason: None };
        let [completed, completed_at_rest] = [false, true].map(|is_resting| Notice::RunCompleted { is_resting });
        assert!(is_said(&completed_at_rest));
        assert!(is_said(&Notice::Settling) && is_said(&completed));
        // Another member arrives, with whom it settles again.
        assert!(is_said(&Notice::PeerJoined(PeerId::from_public_key([1; 32]))));
        assert!(!is_said(&Notice::Settling) && !is_said(&completed));
        assert!(!is_said(&alone));
        assert!(!Hearing::new().hear(&alone).is_repeated, "while it trains");
    }
}
