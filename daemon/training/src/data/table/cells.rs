//! Rows of tables in files, whatever their format: what stands in some columns, cell by cell.

use std::borrow::Cow;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;

use super::error::{Place, TableError};
use super::{comma_separated, json_objects, parquet_columns};
use crate::data::CorpusError;
use crate::data::files::map_file;

/// What a cell of text holds where it holds nothing.
const MISSING: [&str; 8] = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"];

/// What stands in a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    Missing,
    Number(f64),
    /// Kept apart from other numbers: as a name it has all its digits.
    Integer(i128),
    /// Without spaces around it, and never one of the words for nothing.
    Text(&'a str),
}

impl<'a> Cell<'a> {
    pub(super) fn of_text(text: &'a str) -> Cell<'a> {
        let text = text.trim();
        if MISSING.contains(&text) { Cell::Missing } else { Cell::Text(text) }
    }

    pub(super) fn of_number(number: f64) -> Cell<'a> {
        if number.is_nan() { Cell::Missing } else { Cell::Number(number) }
    }

    /// As a number: the text itself where it is none.
    pub(super) fn number(&self) -> Result<Option<f64>, String> {
        match self {
            Cell::Missing => Ok(None),
            Cell::Number(number) => Ok(Some(*number)),
            Cell::Integer(number) => Ok(Some(*number as f64)),
            Cell::Text(text) => match text.parse::<f64>() {
                Ok(number) => Ok((!number.is_nan()).then_some(number)),
                Err(_) => Err((*text).to_owned()),
            },
        }
    }

    /// As a category: numbers as they are written shortest.
    pub(super) fn category(&self) -> Option<String> {
        match self {
            Cell::Missing => None,
            Cell::Number(number) => Some(number.to_string()),
            Cell::Integer(number) => Some(number.to_string()),
            Cell::Text(text) => Some((*text).to_owned()),
        }
    }
}

/// Which of a run's names a category or class is: the one that is written alike, else one that means the same.
pub(super) fn place_among(names: &[String], found: &str) -> Option<usize> {
    let meant = || {
        let found = meaning(found);
        names.iter().position(|name| meaning(name) == found)
    };
    names.iter().position(|name| name == found).or_else(meant)
}

/// The same text for the same value, whatever wrote it: pandas writes a truth as `True` and a number of a column with gaps as `1.0`,
/// where other formats have `true` and `1`. A name such as `007` is no number.
fn meaning(text: &str) -> Cow<'_, str> {
    /// Beyond it not every integer is an `f64`, and two numbers might become one.
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    if let Some(truth) = ["true", "false"].into_iter().find(|truth| text.eq_ignore_ascii_case(truth)) {
        return truth.into();
    }
    match text.parse::<f64>() {
        // No "-0".
        Ok(number) if text.contains(['.', 'e', 'E']) && number.abs() < EXACT_MAX => (number + 0.0).to_string().into(),
        _ => text.into(),
    }
}

/// Takes a row: where it stands, and its cells in the order of the columns that were asked for.
pub(super) type TakeRow<'a> = &'a mut dyn FnMut(Place, &[Cell<'_>]) -> Result<(), TableError>;

/// The formats of tables.
enum Format {
    CommaSeparated,
    JsonLines,
    Parquet,
}

/// The names of a file's columns: of CSV and Parquet in order, of JSON Lines sorted.
///
/// # Errors
/// When it cannot be read.
pub(super) fn columns_of(path: &Path) -> Result<Vec<String>, CorpusError> {
    let (format, content) = open(path)?;
    let columns = match format {
        Format::CommaSeparated => comma_separated::columns(path, text(&content)),
        Format::JsonLines => json_objects::columns(path, text(&content)),
        Format::Parquet => parquet_columns::columns(path, content),
    };
    Ok(columns?)
}

/// Hands each row of a file to `take`, in order, with the cells of these columns.
///
/// # Errors
/// When the file cannot be read, lacks a column or has it twice; and what `take` says.
pub(super) fn each_row(path: &Path, columns: &[String], take: TakeRow<'_>) -> Result<(), CorpusError> {
    let (format, content) = open(path)?;
    match format {
        Format::CommaSeparated => comma_separated::each_row(path, text(&content), columns, take),
        Format::JsonLines => json_objects::each_row(path, text(&content), columns, take),
        Format::Parquet => parquet_columns::each_row(path, content, columns, take),
    }?;
    Ok(())
}

fn open(path: &Path) -> Result<(Format, Bytes), CorpusError> {
    let content = map_file(path)?;
    if content.starts_with(b"PAR1") {
        return Ok((Format::Parquet, content));
    }
    let unreadable = |source| CorpusError::Unreadable(path.to_owned(), source);
    let mut reader = text(&content);
    let head = reader.fill_buf().map_err(unreadable)?;
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head).trim_ascii_start();
    let format = if head.starts_with(b"{") { Format::JsonLines } else { Format::CommaSeparated };
    drop(reader);
    Ok((format, content))
}

/// At the beginning of text files of some programs; no part of the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The text of a file, decompressed where it is gzip.
fn text(content: &[u8]) -> Box<dyn BufRead + '_> {
    if content.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::new(MultiGzDecoder::new(content)))
    } else {
        Box::new(content)
    }
}

/// Where some columns stand among those of a file.
pub(super) fn places(path: &Path, columns: &[String], all: &[String]) -> Result<Vec<usize>, TableError> {
    let place = |column: &String| {
        let (path, column) = (path.to_owned(), column.clone());
        let mut found = all.iter().enumerate().filter(|(_, name)| **name == column);
        match (found.next(), found.next()) {
            (Some((place, _)), None) => Ok(place),
            (Some(_), Some(_)) => Err(TableError::TwoColumns(path, column)),
            (None, _) => Err(TableError::NoColumn { path, column, columns: quoted(all) }),
        }
    };
    columns.iter().map(place).collect()
}

/// Names for people, the first of them where there are many.
pub(super) fn quoted(names: &[String]) -> String {
    const NAMED_MAX: usize = 12;
    let shown: Vec<String> = names.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        _ if names.is_empty() => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_as_it_is_written_first_and_then_by_what_it_means() {
        let names = ["1.0", "1", "0.0", "True", "007", "2.50", "9007199254740993"].map(str::to_owned);
        let place = |found| place_among(&names, found);
        assert_eq!([place("1.0"), place("1"), place("1e0")], [Some(0), Some(1), Some(0)]);
        assert_eq!([place("0"), place("-0.0"), place("true"), place("TRUE")], [Some(2), Some(2), Some(3), Some(3)]);
        assert_eq!([place("2.5"), place("25e-1"), place("007")], [Some(5), Some(5), Some(4)]);
        let others = ["7", "7.0", "false", "truth", "inf", "9007199254740992.0", "9007199254740993.0"];
        assert!(others.into_iter().all(|other| place(other).is_none()));
    }
}
