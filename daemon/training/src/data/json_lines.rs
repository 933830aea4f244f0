//! JSON Lines: one object a line, with the text in one of its fields.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde_json::Value;

use super::CorpusError;
use super::files::map_file;

/// The longest line, in bytes: one text. A guess; a file without line ends would otherwise be read as a whole.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Hands the texts of a file (gzip-compressed where it begins like that) to `take`, in order; empty lines are skipped.
///
/// # Errors
/// When the file cannot be read, or a line is no object with text in `field`.
pub(super) fn each_text(
    path: &Path,
    field: &str,
    take: &mut dyn FnMut(String) -> Result<(), CorpusError>,
) -> Result<(), CorpusError> {
    let content = map_file(path)?;
    if content.starts_with(&[0x1f, 0x8b]) {
        read_lines(BufReader::new(MultiGzDecoder::new(&content[..])), path, field, take)
    } else {
        read_lines(&content[..], path, field, take)
    }
}

fn read_lines(
    mut reader: impl BufRead,
    path: &Path,
    field: &str,
    take: &mut dyn FnMut(String) -> Result<(), CorpusError>,
) -> Result<(), CorpusError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let length = read.map_err(|source| CorpusError::Unreadable(path.to_owned(), source))?;
        if length == 0 {
            break;
        }
        // A byte order mark is no part of the first object.
        let object = if number == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line) } else { &line[..] };
        if !object.trim_ascii().is_empty() {
            take(text_of(object, path, number, field)?)?;
        }
    }
    Ok(())
}

fn text_of(line: &[u8], path: &Path, number: usize, field: &str) -> Result<String, CorpusError> {
    let not_json = |reason: String| CorpusError::NotJson { path: path.to_owned(), line: number, reason };
    let no_field = |found| CorpusError::NoField { path: path.to_owned(), line: number, field: field.to_owned(), found };
    let value: Value = serde_json::from_slice(line.trim_ascii_end()).map_err(|error| not_json(reason(&error)))?;
    let Value::Object(mut object) = value else { return Err(not_json(format!("it is {}", kind(&value)))) };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(no_field(format!("{} there", kind(&other)))),
        None if object.is_empty() => Err(no_field("no fields".to_owned())),
        None => Err(no_field(object.keys().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", "))),
    }
}

/// The parser takes each line for a text of its own and calls it line 1: only the column is of use.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (what, _) = text.split_once(" at line ").unwrap_or((&text, ""));
    format!("{what} at column {}", error.column())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn texts(content: &[u8], field: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("texts.jsonl");
        std::fs::write(&path, content).expect("written");
        let mut texts = Vec::new();
        let result = each_text(&path, field, &mut |text| {
            texts.push(text);
            Ok(())
        });
        result.map(|()| texts).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_are_read_in_order_plain_or_compressed() {
        let content = "{\"text\": \"one\"}\n\n{\"id\": 2, \"text\": \"zwölf \\n\"}".as_bytes();
        let expected = Ok(vec!["one".to_owned(), "zwölf \n".to_owned()]);
        assert_eq!(texts(content, "text"), expected);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).expect("compressed");
        assert_eq!(texts(&encoder.finish().expect("compressed"), "text"), expected);
    }

    #[test]
    fn errors_name_file_line_and_what_is_there() {
        let error = |content: &str| texts(content.as_bytes(), "text").expect_err("wrong");
        assert!(
            error("{\"text\": \"a\"}\n{\"text\":")
                .contains("texts.jsonl:2: not a JSON object: EOF while parsing a value at column 8")
        );
        assert!(error("\n[1]").contains("texts.jsonl:2: not a JSON object: it is a list"));
        let missing = error("{\"body\": \"a\", \"id\": 1}");
        assert!(missing.contains(":1: no text in the field \"text\"; the line has \"body\", \"id\""), "{missing}");
        assert!(error("{\"text\": 5}").ends_with("the line has a number there"));
        assert!(error("{}").ends_with("the line has no fields"));
        let not_utf8 = texts(b"{\"text\": \"\xff\"}", "text").expect_err("wrong");
        assert!(not_utf8.contains(":1: not a JSON object"), "{not_utf8}");
    }

    #[test]
    fn examples_of_several_parts_are_refused_with_the_way_to_make_texts_of_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("texts.jsonl");
        let remedy = |content: &str, field: &str| {
            std::fs::write(&path, content).expect("written");
            each_text(&path, field, &mut |_| Ok(())).expect_err("no text").remedy()
        };
        for (content, field) in [
            ("{\"messages\": []}", "text"),
            ("{\"messages\": []}", "messages"),
            ("{\"conversations\": []}", "text"),
            ("{\"prompt\": \"a\", \"completion\": \"b\"}", "text"),
            ("{\"instruction\": \"a\", \"output\": \"b\"}", "text"),
        ] {
            let remedy = remedy(content, field);
            assert!(remedy.contains("apply_chat_template") && remedy.contains("prompts too"), "{content}: {remedy}");
        }
        assert!(remedy("{\"title\": \"a\"}", "text").contains("data.field"));
    }
}
