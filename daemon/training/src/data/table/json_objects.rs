//! JSON Lines: an object a line, whose fields are the columns. A field that a line lacks is a missing value.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::cells::{BYTE_ORDER_MARK, Cell, TakeRow, places};
use super::error::{Place, TableError};

/// The longest line, in bytes. A guess; a file without line ends would otherwise be read as a whole.
const LINE_BYTES_MAX: u64 = 16 << 20;

pub(super) fn columns(path: &Path, content: Box<dyn BufRead + '_>) -> Result<Vec<String>, TableError> {
    let mut names = BTreeSet::new();
    each_object(path, content, &mut |_, object| {
        names.extend(object.keys().cloned());
        Ok(())
    })?;
    Ok(names.into_iter().collect())
}

pub(super) fn each_row(
    path: &Path,
    content: Box<dyn BufRead + '_>,
    columns: &[String],
    take: TakeRow<'_>,
) -> Result<(), TableError> {
    let mut names = BTreeSet::new();
    each_object(path, content, &mut |place, object| {
        for name in object.keys().filter(|name| !name.is_empty()) {
            if !names.contains(name) {
                names.insert(name.clone());
            }
        }
        let cells: Result<Vec<Cell<'_>>, TableError> = columns
            .iter()
            .map(|column| match object.get(column) {
                None | Some(Value::Null) => Ok(Cell::Missing),
                Some(Value::String(text)) => Ok(Cell::of_text(text)),
                Some(Value::Number(number)) => Ok(match number.as_i128() {
                    Some(integer) => Cell::Integer(integer),
                    None => Cell::of_number(number.as_f64().unwrap_or(f64::INFINITY)),
                }),
                Some(Value::Bool(truth)) => Ok(Cell::Text(if *truth { "true" } else { "false" })),
                Some(Value::Array(_) | Value::Object(_)) => {
                    let reason = format!("the field {column:?} is neither a number nor a text");
                    Err(TableError::BadRow(place.clone(), reason))
                }
            })
            .collect();
        take(place.clone(), &cells?)
    })?;
    let names: Vec<String> = names.into_iter().collect();
    places(path, columns, &names).map(drop)
}

/// Takes an object: where it stands, and its fields.
type TakeObject<'a> = &'a mut dyn FnMut(&Place, &Map<String, Value>) -> Result<(), TableError>;

fn each_object(path: &Path, mut content: Box<dyn BufRead + '_>, take: TakeObject<'_>) -> Result<(), TableError> {
    let (mut line, mut row) = (Vec::new(), 0);
    for number in 1.. {
        line.clear();
        let read = content.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let length = read.map_err(|error| TableError::NotATable(path.to_owned(), error.to_string()))?;
        if length == 0 {
            break;
        }
        let text = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line) } else { &line[..] };
        if text.trim_ascii().is_empty() {
            continue;
        }
        row += 1;
        let place = Place::new(path, row, Some(number));
        match serde_json::from_slice(text.trim_ascii_end()) {
            Ok(Value::Object(object)) => take(&place, &object)?,
            Ok(_) => return Err(TableError::BadRow(place, "it is no JSON object".to_owned())),
            Err(error) => {
                // The parser takes each line for a text of its own.
                let text = error.to_string();
                let what = text.split_once(" at line ").map_or(&*text, |(what, _)| what);
                let reason = format!("it is no JSON object: {what} at column {}", error.column());
                return Err(TableError::BadRow(place, reason));
            }
        }
    }
    Ok(())
}
