//! Parquet: some columns side by side, a thousand rows at a time with Parquet's own column readers, without Arrow.

use std::path::Path;

use bytes::Bytes;
use parquet::basic::{ConvertedType, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::cells::{Cell, TakeRow, places};
use super::error::{Place, TableError};

/// Rows that are read at once.
const ROWS: usize = 1024;

/// A value of a column.
enum Value {
    Missing,
    Number(f64),
    Text(String),
}

pub(super) fn columns(path: &Path, content: Bytes) -> Result<Vec<String>, TableError> {
    let reader = SerializedFileReader::new(content).map_err(|error| damaged(path, &error))?;
    let schema = reader.metadata().file_metadata().schema_descr();
    Ok((0..schema.num_columns()).map(|column| schema.column(column).path().string()).collect())
}

pub(super) fn each_row(path: &Path, content: Bytes, columns: &[String], take: TakeRow<'_>) -> Result<(), TableError> {
    let places = places(path, columns, &self::columns(path, content.clone())?)?;
    let damaged = |error: ParquetError| damaged(path, &error);
    let reader = SerializedFileReader::new(content).map_err(damaged)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let units = places.iter().map(|place| unit(path, &schema.column(*place))).collect::<Result<Vec<f64>, _>>()?;
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(damaged)?;
        let readers = places.iter().map(|place| group.get_column_reader(*place).map_err(damaged));
        let mut readers = readers.collect::<Result<Vec<_>, _>>()?;
        let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        while left > 0 {
            let rows = left.min(ROWS);
            let values = readers.iter_mut().zip(&places).zip(&units);
            let read = values.map(|((reader, place), unit)| {
                let levels = schema.column(*place).max_def_level();
                let values = values_of(reader, rows, levels, *unit).map_err(damaged)?;
                let whole = values.len() == rows;
                whole
                    .then_some(values)
                    .ok_or_else(|| damaged(ParquetError::General("a column is too short".to_owned())))
            });
            let read = read.collect::<Result<Vec<_>, _>>()?;
            for number in 0..rows {
                row += 1;
                let cells: Vec<Cell<'_>> = read
                    .iter()
                    .map(|column| match &column[number] {
                        Value::Missing => Cell::Missing,
                        Value::Number(number) => Cell::of_number(*number),
                        Value::Text(text) => Cell::of_text(text),
                    })
                    .collect();
                take(Place::new(path, row, None), &cells)?;
            }
            left -= rows;
        }
    }
    Ok(())
}

/// What a number of the column is multiplied by: decimals are stored as integers.
fn unit(path: &Path, column: &parquet::schema::types::ColumnDescriptor) -> Result<f64, TableError> {
    let refused = |what: &str| TableError::NotATable {
        path: path.to_owned(),
        reason: format!("column {:?} holds {what}", column.path().string()),
    };
    match column.physical_type() {
        _ if column.max_rep_level() > 0 => Err(refused("lists")),
        PhysicalType::INT96 | PhysicalType::FIXED_LEN_BYTE_ARRAY => Err(refused("neither numbers nor texts")),
        PhysicalType::INT32 | PhysicalType::INT64 if column.converted_type() == ConvertedType::DECIMAL => {
            Ok(10_f64.powi(-column.type_scale()))
        }
        _ => Ok(1.0),
    }
}

/// So many values of a column, or fewer at its end.
fn values_of(reader: &mut ColumnReader, rows: usize, levels: i16, unit: f64) -> Result<Vec<Value>, ParquetError> {
    let number = |value: f64| Value::Number(value * unit);
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            records(reader, rows, levels, |truth| Ok(Value::Text(truth.to_string())))
        }
        ColumnReader::Int32ColumnReader(reader) => records(reader, rows, levels, |value| Ok(number(f64::from(value)))),
        ColumnReader::Int64ColumnReader(reader) => records(reader, rows, levels, |value| Ok(number(value as f64))),
        ColumnReader::FloatColumnReader(reader) => records(reader, rows, levels, |value| Ok(number(f64::from(value)))),
        ColumnReader::DoubleColumnReader(reader) => records(reader, rows, levels, |value| Ok(number(value))),
        ColumnReader::ByteArrayColumnReader(reader) => records(reader, rows, levels, |bytes: ByteArray| {
            let text = String::from_utf8(bytes.data().to_vec());
            text.map(Value::Text).map_err(|error| ParquetError::General(error.to_string()))
        }),
        _ => Err(ParquetError::NYI("a column of this type".to_owned())),
    }
}

fn records<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    levels_max: i16,
    convert: impl Fn(T::T) -> Result<Value, ParquetError>,
) -> Result<Vec<Value>, ParquetError> {
    let (mut levels, mut values, mut read) = (Vec::new(), Vec::new(), 0);
    while read < rows {
        let (records, ..) = reader.read_records(rows - read, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        read += records;
    }
    if levels_max == 0 {
        return values.into_iter().map(convert).collect();
    }
    let mut values = values.into_iter();
    let value = |level: &i16| match (*level == levels_max).then(|| values.next()).flatten() {
        Some(value) => convert(value),
        None => Ok(Value::Missing),
    };
    levels.iter().map(value).collect()
}

fn damaged(path: &Path, error: &ParquetError) -> TableError {
    TableError::NotATable { path: path.to_owned(), reason: error.to_string() }
}
