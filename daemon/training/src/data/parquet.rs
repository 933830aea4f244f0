//! Parquet: one text column, read a thousand values at a time with Parquet's own column reader, without Arrow.

use std::path::Path;

use parquet::basic::Type as PhysicalType;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::CorpusError;
use super::files::map_file;

/// Values that are read at once.
const RECORDS: usize = 1024;

/// Hands the texts of a column to `take`, in order; nulls are skipped.
///
/// # Errors
/// When the file is damaged or has no such column of text.
pub(super) fn each_text(
    path: &Path,
    column: &str,
    take: &mut dyn FnMut(String) -> Result<(), CorpusError>,
) -> Result<(), CorpusError> {
    let damaged = |error: ParquetError| CorpusError::NotParquet(path.to_owned(), error.to_string());
    let reader = SerializedFileReader::new(map_file(path)?).map_err(damaged)?;
    let place = find(&reader, path, column)?;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(damaged)?;
        let ColumnReader::ByteArrayColumnReader(mut values) = group.get_column_reader(place).map_err(damaged)? else {
            unreachable!("the column was chosen for its type")
        };
        loop {
            let (mut levels, mut texts) = (Vec::new(), Vec::<ByteArray>::new());
            let (records, ..) = values.read_records(RECORDS, Some(&mut levels), None, &mut texts).map_err(damaged)?;
            if records == 0 {
                break;
            }
            for text in texts {
                let text = String::from_utf8(text.data().to_vec());
                take(text.map_err(|error| damaged(ParquetError::General(format!("column {column:?}: {error}"))))?)?;
            }
        }
    }
    Ok(())
}

/// Where the column stands among the file's columns.
fn find(reader: &impl FileReader, path: &Path, column: &str) -> Result<usize, CorpusError> {
    let schema = reader.metadata().file_metadata().schema_descr();
    let is_text = |index: &usize| {
        let column = schema.column(*index);
        column.physical_type() == PhysicalType::BYTE_ARRAY && column.max_rep_level() == 0
    };
    let texts: Vec<usize> = (0..schema.num_columns()).filter(is_text).collect();
    let name = |index: &usize| schema.column(*index).path().string();
    if let Some(place) = texts.iter().find(|index| name(index) == column) {
        return Ok(*place);
    }
    let names: Vec<String> = texts.iter().map(|index| format!("{:?}", name(index))).collect();
    let columns = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(CorpusError::NoColumn { path: path.to_owned(), column: column.to_owned(), columns })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use parquet::basic::{Compression, ZstdLevel};
    use parquet::data_type::{ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// `id` and `text` (null for every third), in two row groups.
    fn write(path: &Path, texts: &[&str], compression: Compression) {
        let schema = "message schema { required int64 id; optional binary text (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).expect("a schema"));
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let file = File::create(path).expect("a file");
        let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
        for half in texts.chunks(texts.len().div_ceil(2)) {
            let mut group = writer.next_row_group().expect("a group");
            let ids: Vec<i64> = (0..half.len() as i64).collect();
            let mut column = group.next_column().expect("written").expect("a column");
            column.typed::<Int64Type>().write_batch(&ids, None, None).expect("written");
            column.close().expect("closed");
            let levels: Vec<i16> = half.iter().map(|text| i16::from(!text.is_empty())).collect();
            let values: Vec<ByteArray> =
                half.iter().filter(|text| !text.is_empty()).map(|text| ByteArray::from(*text)).collect();
            let mut column = group.next_column().expect("written").expect("a column");
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).expect("written");
            column.close().expect("closed");
            group.close().expect("closed");
        }
        writer.close().expect("closed");
    }

    fn read(path: &Path, column: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        let result = each_text(path, column, &mut |text| {
            texts.push(text);
            Ok(())
        });
        result.map(|()| texts).map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_column_is_read_without_its_nulls_in_every_compression() {
        let folder = tempfile::tempdir().expect("a folder");
        let zstd = Compression::ZSTD(ZstdLevel::default());
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(Default::default()), zstd]
        {
            let path = folder.path().join("texts.parquet");
            write(&path, &["one", "", "drei ü", "four", "five"], compression);
            assert_eq!(read(&path, "text").expect("texts"), ["one", "drei ü", "four", "five"], "{compression:?}");
        }
    }

    #[test]
    fn a_missing_column_and_a_damaged_file_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("texts.parquet");
        write(&path, &["one", "two"], Compression::SNAPPY);
        let error = read(&path, "body").expect_err("no such column");
        assert!(error.ends_with("texts.parquet has no text column \"body\"; its text columns: \"text\""), "{error}");
        assert!(read(&path, "id").is_err(), "a column of numbers is none of text");
        let whole = std::fs::read(&path).expect("there");
        std::fs::write(&path, &whole[..whole.len() - 9]).expect("written");
        assert!(read(&path, "text").expect_err("damaged").contains("cannot be read as Parquet"));
    }
}
