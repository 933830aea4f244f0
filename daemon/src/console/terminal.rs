//! The one place through which text reaches a terminal: whatever a terminal would obey is escaped, wherever it is from.
//!
//! Peers choose names, addresses and the keys of their manifests, and a model writes any bytes: none of that may move
//! the cursor, set a title or write a line that looks like murmur's own.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use murmur_protocol::text::{escaped, is_unprintable};
use unicode_width::UnicodeWidthStr;

/// What stands for a character of murmur's own where there is ASCII alone, as wide as that; `None` for all others.
pub(crate) fn in_ascii(character: char) -> Option<char> {
    Some(match character {
        '·' | '–' | '─' | '−' => '-',
        '…' => '.',
        '“' | '”' => '"',
        '↑' => '^',
        '↓' => 'v',
        '█' | '▇' | '▆' => '#',
        '▅' | '▄' | '▃' => '=',
        '▂' | '▁' => '_',
        '√' => 'r',
        '×' => 'x',
        '²' => '2',
        'ε' => 'e',
        'δ' => 'd',
        'γ' => 'g',
        _ => return None,
    })
}

/// Whether the reader has asked for ASCII: by a locale that is not of UTF-8, or, without any, by a terminal that knows nothing.
pub(crate) fn wants_ascii() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
        let is_dumb = || std::env::var("TERM").is_ok_and(|term| term == "dumb") && io::stderr().is_terminal();
        locale.map_or_else(is_dumb, |locale| !is_of_utf8(&locale))
    })
}

fn is_of_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Text for people as its reader can show it. Letters of names and paths stay what they are, since people copy them.
pub(super) fn readable(text: Cow<'_, str>) -> Cow<'_, str> {
    if wants_ascii() { with_ascii(text) } else { text }
}

/// The same in ASCII, but for letters of names and paths.
pub(crate) fn with_ascii(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.is_ascii() {
        return text;
    }
    text.chars().map(|character| in_ascii(character).unwrap_or(character)).collect::<String>().into()
}

/// From one tab stop of a terminal to the next.
const TAB_COLUMNS: usize = 8;

/// Text for people, which may have several lines.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

/// One line of a logger, whose own colours stay (`ESC [ … m`): values in it are anybody's, line ends as well.
pub(crate) fn shown_log(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.split('\u{1b}');
    let mut shown = escaped(parts.next().unwrap_or_default(), |_| false).into_owned();
    for part in parts {
        let is_of_colour = |byte: u8| byte.is_ascii_digit() || byte == b';';
        let codes = part.strip_prefix('[').map(|rest| rest.bytes().take_while(|byte| is_of_colour(*byte)).count());
        let colour = codes.map(|codes| codes + 1).filter(|end| part[*end..].starts_with('m'));
        let (kept, rest) = part.split_at(colour.map_or(0, |end| end + 1));
        shown.push_str(if kept.is_empty() { r"\u{1b}" } else { "\u{1b}" });
        shown.push_str(kept);
        shown.push_str(&escaped(rest, |_| false));
    }
    shown
}

/// One line of JSON: the same text for a reader of JSON, and nothing that a terminal obeys.
pub(crate) fn shown_json(line: &str) -> Cow<'_, str> {
    if !line.contains(is_unprintable) {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        if is_unprintable(character) {
            let units = character.encode_utf16(&mut [0; 2]).to_vec();
            shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Bytes that a model writes: as they are into a pipe or a file, as text that does nothing on a terminal. Parts of a
/// character wait for the rest.
pub(crate) struct ModelText<Output: Write> {
    output: Output,
    is_terminal: bool,
    /// The beginning of a character; at most three bytes.
    waiting: Vec<u8>,
    /// Where lines are broken between words.
    folding: Option<Folding>,
}

impl<Output: Write> ModelText<Output> {
    pub(crate) fn new(output: Output, is_terminal: bool) -> ModelText<Output> {
        ModelText { output, is_terminal, waiting: Vec::new(), folding: None }
    }

    /// Where it goes to a terminal of so many columns, its lines are broken between words; a word is written once it is whole.
    pub(crate) fn folded(self, columns: usize) -> ModelText<Output> {
        let folding = self.is_terminal.then(|| Folding { columns, column: 0, word: String::new() });
        ModelText { folding, ..self }
    }

    /// Writes what can be written, at once.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            self.output.write_all(bytes)?;
            return self.output.flush();
        }
        self.waiting.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.waiting);
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.put(&shown(chunk.valid()))?;
            if chunks.peek().is_none() && is_beginning(chunk.invalid()) {
                self.waiting = chunk.invalid().to_vec();
            } else {
                self.write_invalid(chunk.invalid())?;
            }
        }
        self.output.flush()
    }

    /// Nothing more will come.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.write_invalid(&waiting)?;
        if let Some(folding) = &mut self.folding {
            self.output.write_all(folding.end_word().as_bytes())?;
        }
        self.output.write_all(b"\n")?;
        self.output.flush()
    }

    fn write_invalid(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.iter().try_for_each(|byte| self.put(&format!("\\x{byte:02x}")))
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        match &mut self.folding {
            None => self.output.write_all(text.as_bytes()),
            Some(folding) => self.output.write_all(folding.fold(text).as_bytes()),
        }
    }
}

/// Breaks lines between words.
struct Folding {
    /// Of the terminal.
    columns: usize,
    /// How many of them the line has taken.
    column: usize,
    /// A word that may go on.
    word: String,
}

impl Folding {
    fn fold(&mut self, text: &str) -> String {
        let mut folded = String::new();
        for character in text.chars() {
            if !matches!(character, '\n' | '\t' | ' ') {
                self.word.push(character);
                // A word that no line has room for is broken.
                if self.word.width() >= self.columns {
                    folded.push_str(&self.end_word());
                }
                continue;
            }
            folded.push_str(&self.end_word());
            match character {
                '\n' => self.column = 0,
                // At the end of a line it would begin the next one.
                _ if self.column >= self.columns => continue,
                '\t' => self.column = self.column / TAB_COLUMNS * TAB_COLUMNS + TAB_COLUMNS,
                _ => self.column += 1,
            }
            folded.push(character);
        }
        folded
    }

    /// The word, behind the end of the line where that has no room for it.
    fn end_word(&mut self) -> String {
        let width = self.word.width();
        let begins_line = self.column > 0 && self.column + width > self.columns;
        self.column = width + if begins_line { 0 } else { self.column };
        let before = if begins_line { "\n" } else { "" };
        format!("{before}{}", std::mem::take(&mut self.word))
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &[&[u8]], is_terminal: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut text = ModelText::new(&mut bytes, is_terminal);
        parts.iter().for_each(|part| text.write(part).expect("memory"));
        text.finish().expect("memory");
        bytes
    }

    #[test]
    fn of_a_logged_line_nothing_but_its_colours_is_obeyed() {
        let coloured = "\u{1b}[2m2026\u{1b}[0m \u{1b}[38;5;1m WARN\u{1b}[0m é";
        assert_eq!(shown_log(coloured.as_bytes()), coloured);
        let hostile = "address=/dns4/x\nerror: run …\u{202e}\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[\u{1b}";
        let shown = shown_log(hostile.as_bytes());
        assert!(!shown.contains(is_unprintable), "{shown:?}");
        assert!(shown.starts_with(r"address=/dns4/x\u{a}error: run …\u{202e}\u{1b}]0;title"), "{shown}");
    }

    #[test]
    fn a_model_cannot_command_a_terminal() {
        let hostile: &[u8] = b"Once\x1b]0;owned\x07 upon\xc2\x9b2J\x7f a\xff\xfe\n\ttime\r";
        let shown = String::from_utf8(written(&[hostile], true)).expect("text");
        assert_eq!(shown, "Once\\u{1b}]0;owned\\u{7} upon\\u{9b}2J\\u{7f} a\\xff\\xfe\n\ttime\\u{d}\n");
        let byte_by_byte: Vec<&[u8]> = hostile.chunks(1).collect();
        assert_eq!(written(&byte_by_byte, true), shown.as_bytes(), "however it comes");
        assert_eq!(written(&[hostile], false), [hostile, b"\n"].concat(), "into a pipe as it is");
    }

    #[test]
    fn characters_that_come_in_parts_are_whole() {
        let text = "Büro 雀 🐦";
        let parts: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(written(&parts, true), format!("{text}\n").as_bytes());
        assert_eq!(written(&[b"a\xf0\x9f"], true), b"a\\xf0\\x9f\n", "a part that nothing follows");
    }

    #[test]
    fn on_a_terminal_lines_are_broken_between_words() {
        let folded = |parts: &[&str], is_terminal: bool| {
            let mut bytes = Vec::new();
            let mut text = ModelText::new(&mut bytes, is_terminal).folded(10);
            parts.iter().for_each(|part| text.write(part.as_bytes()).expect("memory"));
            text.finish().expect("memory");
            String::from_utf8(bytes).expect("text")
        };
        let story = ["Once upo", "n a time, there was", " a bird.\n\n  And"];
        assert_eq!(folded(&story, true), "Once upon \na time, \nthere was \na bird.\n\n  And\n");
        assert_eq!(folded(&story, false), story.concat() + "\n", "into a pipe as it is");
        assert_eq!(folded(&["abcdefghijklm no"], true), "abcdefghij\nklm no\n", "no line has room for it");
        assert_eq!(folded(&["0123456 89 b"], true), "0123456 89\nb\n", "no space beyond the edge");
    }

    #[test]
    fn where_there_is_ascii_alone_bars_and_signs_are_as_wide_and_names_stay() {
        let line = "[###····] 40 % · Büro ↑ 3.1 MB × 2 ▁▄█ –";
        let shown = with_ascii(line.into());
        assert_eq!(shown, "[###----] 40 % - Büro ^ 3.1 MB x 2 _=# -");
        assert_eq!(shown.width(), line.width());
        for (locale, expected) in [("C.UTF-8", true), ("de_DE.utf8", true), ("C", false), ("de_DE.ISO-8859-1", false)] {
            assert_eq!(is_of_utf8(locale), expected, "{locale}");
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let line = serde_json::json!({ "name": "a\u{9b}2J\u{1b}\u{7f}\u{202e}\u{e0041}ü" }).to_string();
        let shown = shown_json(&line);
        assert!(!shown.contains(is_unprintable), "{shown}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&shown), read(&line));
    }
}
