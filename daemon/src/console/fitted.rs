//! Long lines for people, cut between words where a terminal would cut within them.

use textwrap::Options;
use unicode_width::UnicodeWidthStr;

/// Where the text of lines with a label begins, such as `traffic     up to …`.
const LABEL_COLUMNS: usize = 12;

/// The text in lines of at most `columns`, what goes on set in below its beginning. Commands stay whole, for people copy
/// them; so do words that are longer.
pub(super) fn fitted(text: &str, columns: usize) -> String {
    let lines = text.split('\n').map(|line| fitted_line(line, columns));
    lines.collect::<Vec<_>>().join("\n")
}

fn fitted_line(line: &str, columns: usize) -> String {
    if line.width() <= columns || line.trim_start().starts_with("murmur ") {
        return line.to_owned();
    }
    let has_label = line.len() > LABEL_COLUMNS
        && line.is_char_boundary(LABEL_COLUMNS)
        && line[..LABEL_COLUMNS].ends_with(' ')
        && !line[..LABEL_COLUMNS].trim_end().contains(' ');
    set_in(line, if has_label { LABEL_COLUMNS } else { 2 }, columns)
}

/// A line cut between words, what goes on set in by so many columns.
pub(super) fn set_in(line: &str, indent: usize, columns: usize) -> String {
    let indent = " ".repeat(indent);
    let options = Options::new(columns).subsequent_indent(&indent).break_words(false);
    textwrap::wrap(line, options.word_splitter(textwrap::WordSplitter::NoHyphenation)).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_go_on_below_their_text_and_commands_stay_whole() {
        let traffic = "traffic     up to 26.1 GB sent a day, a quarter of the uplink";
        let expected = "traffic     up to 26.1 GB sent a\n            day, a quarter of the\n            uplink";
        assert_eq!(fitted(traffic, 34), expected);
        assert_eq!(fitted("warning: something long is wrong here", 24), "warning: something long\n  is wrong here");
        let command = "  murmur join murmur1AbCdEfGhIjKlMnOpQrStUvWxYz --data FILE";
        assert_eq!(fitted(&format!("next:\n{command}"), 20), format!("next:\n{command}"));
        assert_eq!(fitted("listening   /ip4/192.0.2.7/tcp/4711", 20), "listening\n            /ip4/192.0.2.7/tcp/4711");
        assert_eq!(fitted("short", 20), "short");
    }
}
