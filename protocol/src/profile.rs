//! What a member says of itself to whoever reads about it: a name and its speed, on which no decision rests, and which
//! fragments of the model it holds, which others ask it for alone.
//!
//! All travel in shuffles, passed on by others, so that they are hearsay of strangers: bounded, screened, and shown
//! beside the peer's id and never instead of it.

use std::fmt;
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::fragments::Holding;
use crate::text::is_unprintable;

/// The longest name of a node, in bytes of UTF-8: about what fits beside an id in a table.
pub const NAME_BYTES_MAX: usize = 32;

/// The largest speed believed, in tokens a second: a thousand times what the fastest machine of today does.
const TOKENS_PER_SECOND_MAX: f32 = 1e12;

/// What its owner calls a node: 1 to [`NAME_BYTES_MAX`] bytes that can all be seen. Anybody may take any name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Name(Arc<str>);

impl Name {
    /// Wraps a name without the spaces around it; `None` where nothing is left, it is too long, or some of it could not
    /// be seen.
    pub fn new(text: &str) -> Option<Name> {
        let name = Name(text.trim().into());
        name.is_well_formed().then_some(name)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name keeps to the rules: to be asked of every name that came over the wire.
    pub fn is_well_formed(&self) -> bool {
        let is_of_length = !self.0.is_empty() && self.0.len() <= NAME_BYTES_MAX;
        is_of_length && self.0.trim() == &*self.0 && !self.0.chars().any(is_unprintable)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a member says of itself.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct Profile {
    /// What its owner calls it.
    pub name: Option<Name>,
    /// Tokens a second that it trains on; 0 where it does not train, or has not yet.
    pub tokens_per_second: f32,
    /// Which fragments of the model it holds.
    pub holding: Holding,
}

impl Profile {
    /// Takes a speed that may come from anywhere: what is passed on must never look like this node's own offence.
    pub(crate) fn set_speed(&mut self, tokens_per_second: f32) {
        let is_number = !tokens_per_second.is_nan();
        self.tokens_per_second = if is_number { tokens_per_second.clamp(0.0, TOKENS_PER_SECOND_MAX) } else { 0.0 };
    }

    /// Whether name and speed keep to the rules: to be asked of every profile that came over the wire.
    pub fn is_well_formed(&self) -> bool {
        // Not true of what is not a number.
        let is_speed = (0.0..=TOKENS_PER_SECOND_MAX).contains(&self.tokens_per_second);
        is_speed && self.name.as_ref().is_none_or(Name::is_well_formed)
    }
}

/// What is known of a member, connected or not.
#[derive(Clone, PartialEq, Debug)]
pub struct MemberView {
    /// As it said itself where it is connected, else as others passed it on.
    pub profile: Profile,
    /// How long ago anybody heard from it directly, in seconds.
    pub age_seconds: u32,
    /// Whether it is connected to this node.
    pub is_connected: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_can_be_seen() {
        assert_eq!(Name::new("  Büro 2 ").as_ref().map(Name::as_str), Some("Büro 2"));
        assert!(Name::new(&"ü".repeat(NAME_BYTES_MAX / 2)).is_some());
        for bad in ["", "  ", "a\u{1b}[2J", "a\u{7}", "a\nb", "a\u{9b}31m", "a\u{7f}", "evil\u{202e}txt", "a\u{200b}b"]
        {
            assert_eq!(Name::new(bad), None, "{bad:?}");
        }
        assert_eq!(Name::new(&"x".repeat(NAME_BYTES_MAX + 1)), None);
    }

    #[test]
    fn a_speed_is_a_number_that_can_be() {
        for bad in [f32::NAN, f32::INFINITY, -1.0, 1e13] {
            let profile = Profile { tokens_per_second: bad, ..Profile::default() };
            assert!(!profile.is_well_formed(), "{bad}");
        }
        let profile = Profile { name: Name::new("a"), tokens_per_second: 2e6, ..Profile::default() };
        assert!(profile.is_well_formed());
        for declared in [f32::NAN, f32::INFINITY, f32::MAX, -1.0, 7.0] {
            let mut profile = Profile::default();
            profile.set_speed(declared);
            assert!(profile.is_well_formed(), "{declared} became {}", profile.tokens_per_second);
        }
    }
}
