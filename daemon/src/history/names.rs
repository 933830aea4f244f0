//! What nodes are called in a report; in one that is to be shown to strangers, nothing that says whose they are.
//!
//! With `--redact` ids and names of peers become `node 1`, `node 2` and so on, addresses `address 1`, paths `path 1`: the same one
//! the same way all through the report. Texts were written for people, so what looks like one of these is taken for it, and
//! what follows a path is cut off with it as far as it may belong to it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::History;
use super::verdict::verdict;
use crate::console::{SHORT_ID_LETTERS, labelled, short};

/// The letters of base 58, in which peer ids are written.
const BASE_58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// What peers are called.
#[derive(Debug, Default)]
pub(crate) struct Names {
    is_redacted: bool,
    /// By peer id: what its owner calls it.
    owners: BTreeMap<String, Option<String>>,
    /// What was replaced, in the order in which it came: by kind and by what it was.
    replaced: RefCell<BTreeMap<(&'static str, String), usize>>,
}

impl Names {
    /// Of all that a history knows.
    pub(crate) fn new(history: &History, is_redacted: bool) -> Names {
        let mut owners: BTreeMap<String, Option<String>> = BTreeMap::new();
        for (peer, partner) in history.nodes.values().flat_map(|node| &node.partners) {
            let name = owners.entry(peer.clone()).or_default();
            *name = name.take().or_else(|| partner.name.clone());
        }
        for (id, node) in &history.nodes {
            owners.insert(id.clone(), node.run.name.clone());
        }
        let names = Names { is_redacted, owners, replaced: RefCell::default() };
        if is_redacted {
            // Those that tell come first.
            let others = names.owners.keys().filter(|id| !history.nodes.contains_key(*id));
            history.nodes.keys().chain(others).for_each(|id| drop(names.number("node", short(id))));
        }
        names
    }

    /// Whether nothing may be told of whose the nodes are.
    pub(crate) fn is_redacted(&self) -> bool {
        self.is_redacted
    }

    /// What a peer is called: the end of its id, with its name where it has one.
    pub(crate) fn label(&self, peer: &str) -> String {
        if self.is_redacted {
            return self.number("node", short(peer));
        }
        labelled(short(peer), self.owners.get(peer).and_then(Option::as_deref))
    }

    /// A text that was written for people.
    pub(crate) fn text(&self, text: &str) -> String {
        if !self.is_redacted {
            return text.to_owned();
        }
        text.split('\n').map(|line| self.line(line)).collect::<Vec<_>>().join("\n")
    }

    fn line(&self, line: &str) -> String {
        let mut text = self.without_names(line);
        for id in self.owners.keys() {
            text = text.replace(id, &self.label(id));
        }
        let mut words = Vec::new();
        let mut is_in_path = false;
        for word in text.split(' ') {
            let begin = word.find(|letter: char| !"\"'`(,;<=".contains(letter)).unwrap_or(0);
            let end = word
                .rfind(|letter: char| !"\"'`),;:.>".contains(letter))
                .map_or(word.len(), |last| last + word[last..].chars().next().map_or(0, char::len_utf8));
            let core = word.get(begin..end).unwrap_or(word);
            let ends_path = word.ends_with([':', ';', ',', ')', '"', '`', '\'']);
            if is_in_path {
                // A path may hold blanks.
                is_in_path = !ends_path;
                continue;
            }
            let Some(replacement) = self.replacement(core) else {
                words.push(word.to_owned());
                continue;
            };
            is_in_path = replacement.starts_with("path") && !ends_path;
            words.push(format!("{}{replacement}{}", &word[..begin], &word[end.max(begin)..]));
        }
        words.join(" ")
    }

    /// The verdict on a history.
    pub(crate) fn verdict(&self, history: &History) -> String {
        verdict(history, self.is_redacted)
    }

    /// A path.
    pub(crate) fn path(&self, path: &str) -> String {
        if self.is_redacted { self.number("path", path) } else { path.to_owned() }
    }

    /// Names stand in these quotes, whatever they are made of; those that are known stand alone at times.
    fn without_names(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, (name, after))) =
            rest.split_once('\u{201c}').and_then(|(before, after)| Some((before, after.rsplit_once('\u{201d}')?)))
        {
            // An id stands before the name and says who it is.
            out.push_str(before);
            out.push_str(&self.number("name", name));
            rest = after;
        }
        out.push_str(rest);
        for name in self.owners.values().flatten().filter(|name| name.chars().count() > 2) {
            out = out.replace(name.as_str(), &self.number("name", name));
        }
        out
    }

    /// What stands for a word that must not be told.
    fn replacement(&self, word: &str) -> Option<String> {
        if word.starts_with("/ip") || word.starts_with("/dns") || word.contains("://") || is_address(word) {
            return Some(self.number("address", word));
        }
        let is_path = word.starts_with(['/', '~', '\\']) || word.get(1..3) == Some(":\\") || word.starts_with("./");
        if is_path || (word.contains('/') && !is_quantity(word)) {
            return Some(self.number("path", word));
        }
        let is_id = word.chars().all(|letter| BASE_58.contains(letter))
            && word.chars().any(char::is_alphabetic)
            && (word.len() > 40
                || (word.len() == SHORT_ID_LETTERS && word.chars().skip(1).any(|letter| !letter.is_lowercase())));
        (is_id || word.starts_with("12D3Koo")).then(|| self.number("node", short(word)))
    }

    fn number(&self, kind: &'static str, what: &str) -> String {
        let mut replaced = self.replaced.borrow_mut();
        let next = replaced.keys().filter(|(other, _)| *other == kind).count() + 1;
        format!("{kind} {}", replaced.entry((kind, what.to_owned())).or_insert(next))
    }
}

/// A unit such as tokens/s, or a part of so many such as 2/4.
fn is_quantity(word: &str) -> bool {
    ["/s", "/byte", "/token", "/image"].iter().any(|unit| word.ends_with(unit))
        || word.chars().all(|letter| letter.is_ascii_digit() || letter == '/')
}

/// An IP address, or the name of a host, with or without a port.
fn is_address(word: &str) -> bool {
    let host = word.trim_matches(['[', ']']);
    if host.parse::<std::net::IpAddr>().is_ok() || word.parse::<std::net::SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = word.rsplit_once(':') else { return false };
    port.parse::<u16>().is_ok() && host.chars().any(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;

    const OWN: &str = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X";
    const OTHER: &str = "12D3KooWGjMT4tJ3kyQTjyVtkKhoEXSjC4fGGL2FZuRdqgiBHAUP";

    fn names(is_redacted: bool) -> Names {
        let mut node = NodeHistory::default();
        node.run.name = Some("Ada's attic".to_owned());
        node.partners.entry(OTHER.to_owned()).or_default().name = Some("cellar".to_owned());
        Names::new(&History { nodes: [(OWN.to_owned(), node)].into(), left_out: 0 }, is_redacted)
    }

    #[test]
    fn names_stand_beside_ids() {
        let names = names(false);
        assert_eq!(names.label(OTHER), "qgiBHAUP \u{201c}cellar\u{201d}");
        assert_eq!(names.text("as /home/ada it is"), "as /home/ada it is");
    }

    #[test]
    fn a_redacted_text_says_what_happened_and_to_nobody_whose_it_was() {
        let names = names(true);
        assert_eq!((names.label(OWN), names.label(OTHER)), ("node 1".to_owned(), "node 2".to_owned()));
        for (text, expected) in [
            ("qgiBHAUP \u{201c}cellar\u{201d} is connected", "node 2 name 1 is connected"),
            (&format!("{OTHER} and 9HyQ6XaB are gone."), "node 2 and node 3 are gone."),
            ("cannot dial /ip4/192.0.2.7/tcp/4711: refused", "cannot dial address 1: refused"),
            (
                "nobody at [2001:db8::1]:4711 or home.example:80, 10.0.0.1",
                "nobody at address 2 or address 3, address 4",
            ),
            ("again /ip4/192.0.2.7/tcp/4711", "again address 1"),
            ("cannot write /home/ada/my own files/x: No space", "cannot write path 1 No space"),
            ("cannot read \"C:\\Users\\ada\" now", "cannot read \"path 2\" now"),
            ("training took 12.5 tokens/s on Training day", "training took 12.5 tokens/s on Training day"),
            ("Ada's attic is full", "name 2 is full"),
        ] {
            assert_eq!(names.text(text), expected, "{text}");
        }
    }
}
