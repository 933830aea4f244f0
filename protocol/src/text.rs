//! Which characters of foreign text are shown, and how the others are: what a terminal would obey is escaped.

use std::borrow::Cow;

/// Characters of a stranger's text that are shown at most; the rest is cut.
const FOREIGN_CHARACTERS_MAX: usize = 200;

/// Whether a character does something to a terminal, or to the order of what is beside it, rather than being seen:
/// control characters (C0, DEL, C1), what ends a line, and marks of direction or without width.
pub fn is_unprintable(character: char) -> bool {
    let is_invisible = matches!(character,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    character.is_control() || is_invisible
}

/// The text with every unprintable character as `\u{…}`, but for those that `keeps` lets through.
pub fn escaped(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_unprintable(character) && !keeps(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// What a stranger wrote, as part of one line: escaped, line ends as well, and cut where it is long.
pub fn foreign(text: &str) -> String {
    let mut shown: String = text.chars().take(FOREIGN_CHARACTERS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    escaped(&shown, |_| false).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_is_not() {
        assert_eq!(foreign("Büro · „2“ 雀 🐦"), "Büro · „2“ 雀 🐦");
        assert_eq!(foreign("\u{1b}]0;x\u{7}\n\t"), "\\u{1b}]0;x\\u{7}\\u{a}\\u{9}");
        assert_eq!(foreign("\u{9b}2J\u{7f}\u{202e}"), "\\u{9b}2J\\u{7f}\\u{202e}");
        assert_eq!(escaped("a\n\tb\r", |character| matches!(character, '\n' | '\t')), "a\n\tb\\u{d}");
    }

    #[test]
    fn no_unprintable_character_survives() {
        let all: String = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
        assert!(!escaped(&all, |_| false).contains(is_unprintable));
    }

    #[test]
    fn what_strangers_write_is_cut() {
        let shown = foreign(&"ü".repeat(1000));
        assert_eq!(shown.chars().count(), FOREIGN_CHARACTERS_MAX + 1);
    }
}
