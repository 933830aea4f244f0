//! What members are called beside their ids: names that anybody may take, so that no line shows one alone.

use std::collections::BTreeMap;

use murmur_protocol::PeerId;

use crate::observe::report::NodeReport;

/// Names kept of members that are gone; more than a node knows members, four times over.
const NAMES_MAX: usize = 512;

/// As many as [`PeerId::short`] has.
pub(crate) const SHORT_ID_LETTERS: usize = 8;

/// Names by peer id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    known: BTreeMap<String, String>,
}

impl Names {
    /// Takes in what members say.
    pub(crate) fn learn(&mut self, report: &NodeReport) {
        for member in &report.members {
            let Some(name) = &member.name else { continue };
            if self.known.get(&member.peer) != Some(name) {
                if self.known.len() >= NAMES_MAX {
                    self.known.pop_first();
                }
                self.known.insert(member.peer.clone(), name.clone());
            }
        }
    }

    /// The end of the id, with the name where there is one.
    pub(crate) fn of(&self, peer: PeerId) -> String {
        self.known.get(&peer.to_string()).map_or_else(|| peer.short(), |name| labelled(&peer.short(), Some(name)))
    }
}

/// The letters at the end of a peer id, by which people tell peers apart. Also of a text that is no peer id: strangers send some.
pub(crate) fn short(id: &str) -> &str {
    id.char_indices().rev().nth(SHORT_ID_LETTERS - 1).map_or(id, |(begin, _)| &id[begin..])
}

/// An id with a name beside it.
pub(crate) fn labelled(id: &str, name: Option<&str>) -> String {
    name.map_or_else(|| id.to_owned(), |name| format!("{id} \u{201c}{name}\u{201d}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::report::MemberReport;

    #[test]
    fn the_end_of_any_text_is_cut_between_letters() {
        let peer = PeerId::from_public_key([3; 32]);
        assert_eq!(short(&peer.to_string()), peer.short());
        assert_eq!(["", "12345678", "ünd älter ö", "€€€€€€€€€"].map(short), ["", "12345678", " älter ö", "€€€€€€€€"]);
    }

    #[test]
    fn a_name_stands_beside_the_id_and_outlasts_the_connection() {
        let peer = PeerId::from_public_key([3; 32]);
        let member = MemberReport { peer: peer.to_string(), name: Some("attic".to_owned()), ..MemberReport::default() };
        let mut names = Names::default();
        assert_eq!(names.of(peer), peer.short());
        names.learn(&NodeReport { members: vec![member], ..NodeReport::default() });
        names.learn(&NodeReport::default());
        assert_eq!(names.of(peer), format!("{} “attic”", peer.short()));
    }
}
