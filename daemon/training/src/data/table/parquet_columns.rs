//! Parquet: some columns side by side, a thousand rows at a time with Parquet's own column readers, without Arrow.

use std::path::Path;

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::cells::{Cell, TakeRow, places};
use super::error::{Place, TableError};

/// Rows that are read at once.
const ROWS: usize = 1024;

/// A value of a column.
enum Value {
    Missing,
    Number(f64),
    Integer(i128),
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
    let units = places.iter().map(|place| unit(path, &schema.column(*place))).collect::<Result<Vec<Unit>, _>>()?;
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
                        Value::Integer(number) => Cell::Integer(*number),
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

/// In a second.
const NANOSECONDS: f64 = 1e9;

/// How the numbers of a column are stored: a number is what is stored, times `times`, in parts of `per`.
#[derive(Clone, Copy)]
struct Unit {
    is_unsigned: bool,
    times: f64,
    per: f64,
}

/// Decimals are stored as integers, and times and dates as whole units of many kinds, of which seconds are made: the same table
/// is to be the same inputs, whatever wrote it.
fn unit(path: &Path, column: &ColumnDescriptor) -> Result<Unit, TableError> {
    let refused = |what: &str| {
        let reason = format!("column {:?} holds {what}", column.path().string());
        Err(TableError::NotATable(path.to_owned(), reason))
    };
    let stored = Unit { is_unsigned: false, times: 1.0, per: 1.0 };
    let logical = column.logical_type_ref();
    // Files that tell one of both alone are old, or of units that the older of both has not.
    let kind = match column.converted_type() {
        ConvertedType::NONE => ConvertedType::from(logical.cloned()),
        kind => kind,
    };
    match column.physical_type() {
        _ if column.max_rep_level() > 0 => refused("lists"),
        PhysicalType::INT96 | PhysicalType::FIXED_LEN_BYTE_ARRAY => refused("neither numbers nor texts"),
        PhysicalType::BYTE_ARRAY => match kind {
            ConvertedType::DECIMAL => refused("decimals as bytes, and not as integers"),
            ConvertedType::BSON => refused("BSON"),
            _ => Ok(stored),
        },
        PhysicalType::INT32 | PhysicalType::INT64 => match (kind, logical) {
            (_, Some(LogicalType::Time(time) | LogicalType::Timestamp(time))) if time.unit == TimeUnit::NANOS => {
                Ok(Unit { per: NANOSECONDS, ..stored })
            }
            (ConvertedType::DECIMAL, _) => Ok(Unit { per: 10_f64.powi(column.type_scale()), ..stored }),
            (ConvertedType::UINT_32 | ConvertedType::UINT_64, _) => Ok(Unit { is_unsigned: true, ..stored }),
            (ConvertedType::DATE, _) => Ok(Unit { times: 86_400.0, ..stored }),
            (ConvertedType::TIME_MILLIS | ConvertedType::TIMESTAMP_MILLIS, _) => Ok(Unit { per: 1e3, ..stored }),
            (ConvertedType::TIME_MICROS | ConvertedType::TIMESTAMP_MICROS, _) => Ok(Unit { per: 1e6, ..stored }),
            _ => Ok(stored),
        },
        _ => Ok(stored),
    }
}

/// So many values of a column, or fewer at its end.
fn values_of(reader: &mut ColumnReader, rows: usize, levels: i16, unit: Unit) -> Result<Vec<Value>, ParquetError> {
    let Unit { is_unsigned, times, per } = unit;
    let number = |stored: f64| Ok(Value::Number(stored * times / per));
    let integer =
        |stored: i128| if (times, per) == (1.0, 1.0) { Ok(Value::Integer(stored)) } else { number(stored as f64) };
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            records(reader, rows, levels, |truth| Ok(Value::Text(truth.to_string())))
        }
        ColumnReader::Int32ColumnReader(reader) => records(reader, rows, levels, |value: i32| {
            integer(if is_unsigned { value.cast_unsigned().into() } else { value.into() })
        }),
        ColumnReader::Int64ColumnReader(reader) => records(reader, rows, levels, |value: i64| {
            // Nanoseconds have more digits than an `f64`: it takes the whole seconds first.
            match per {
                NANOSECONDS => {
                    let (whole, rest) = (value.div_euclid(NANOSECONDS as i64), value.rem_euclid(NANOSECONDS as i64));
                    Ok(Value::Number(whole as f64 + rest as f64 / per))
                }
                _ => integer(if is_unsigned { value.cast_unsigned().into() } else { value.into() }),
            }
        }),
        ColumnReader::FloatColumnReader(reader) => records(reader, rows, levels, |value| number(f64::from(value))),
        ColumnReader::DoubleColumnReader(reader) => records(reader, rows, levels, number),
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
    TableError::NotATable(path.to_owned(), error.to_string())
}
