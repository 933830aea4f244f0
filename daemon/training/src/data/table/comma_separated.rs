//! CSV: a header, and values between commas, semicolons or tabs, quoted where they hold one (RFC 4180).

use std::io::{BufRead, Read};
use std::path::Path;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder, Trim};

use super::cells::{BYTE_ORDER_MARK, Cell, TakeRow, places};
use super::error::{Place, TableError};

/// What may stand between two values.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

pub(super) fn columns(path: &Path, content: Box<dyn BufRead + '_>) -> Result<Vec<String>, TableError> {
    let (mut reader, _) = reader(path, content)?;
    header(path, &mut reader)
}

pub(super) fn each_row(
    path: &Path,
    content: Box<dyn BufRead + '_>,
    columns: &[String],
    take: TakeRow<'_>,
) -> Result<(), TableError> {
    let (mut reader, lines_before) = reader(path, content)?;
    let places = places(path, columns, &header(path, &mut reader)?)?;
    let mut record = ByteRecord::new();
    for row in 1.. {
        let line = reader.position().line() as usize;
        let read = reader.read_byte_record(&mut record);
        let line = lines_before + record.position().map_or(line, |place| place.line() as usize);
        let place = Place::new(path, row, Some(line));
        if !read.map_err(|error| bad_row(path, row, lines_before, &error))? {
            break;
        }
        let cells: Result<Vec<Cell<'_>>, TableError> = places
            .iter()
            .map(|column| match std::str::from_utf8(&record[*column]) {
                Ok(text) => Ok(Cell::of_text(text)),
                Err(_) => Err(TableError::BadRow(place.clone(), "it is not UTF-8 text".to_owned())),
            })
            .collect();
        take(place.clone(), &cells?)?;
    }
    Ok(())
}

/// The separator is the one that the header has most of. Also how many lines the reader is behind at a row: it takes a line's end of
/// two characters for complete after the first.
fn reader<'a>(
    path: &Path,
    mut content: Box<dyn BufRead + 'a>,
) -> Result<(Reader<Box<dyn BufRead + 'a>>, usize), TableError> {
    let unreadable = |error: std::io::Error| TableError::NotATable(path.to_owned(), error.to_string());
    if content.fill_buf().map_err(unreadable)?.starts_with(BYTE_ORDER_MARK) {
        content.consume(BYTE_ORDER_MARK.len());
    }
    let mut first = Vec::new();
    content.by_ref().take(HEADER_BYTES_MAX).read_until(b'\n', &mut first).map_err(unreadable)?;
    let count = |separator: &u8| first.iter().filter(|byte| *byte == separator).count();
    // The first of those that are equal.
    let separator = SEPARATORS.into_iter().rev().max_by_key(count).unwrap_or(b',');
    let lines_before = usize::from(first.ends_with(b"\r\n"));
    let whole: Box<dyn BufRead + 'a> = Box::new(std::io::Cursor::new(first).chain(content));
    Ok((ReaderBuilder::new().delimiter(separator).trim(Trim::All).from_reader(whole), lines_before))
}

/// The longest header. A guess; a file without line ends would otherwise be read as a whole.
const HEADER_BYTES_MAX: u64 = 1 << 20;

fn header(path: &Path, reader: &mut Reader<Box<dyn BufRead + '_>>) -> Result<Vec<String>, TableError> {
    let not_a_table = |reason: String| TableError::NotATable(path.to_owned(), reason);
    let header = reader.headers().map_err(|error| not_a_table(format!("its header: {error}")))?;
    Ok(header.iter().map(str::to_owned).collect())
}

fn bad_row(path: &Path, row: usize, lines_before: usize, error: &csv::Error) -> TableError {
    let line = error.position().map(|place| lines_before + place.line() as usize);
    let reason = match error.kind() {
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("it has {len} values, and the header {expected_len} columns")
        }
        _ => error.to_string(),
    };
    TableError::BadRow(Place::new(path, row, line), reason)
}
