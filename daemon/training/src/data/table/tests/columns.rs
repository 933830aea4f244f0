//! What columns hold, whatever wrote them and however many rows there are.

use std::path::PathBuf;
use std::sync::Arc;

use murmur_protocol::manifest::TableTask;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::{Folder, NewRows, TableStatistics, all_rows, found, manifest, open, place};
use crate::data::DataPlace;
use crate::data::corpus::Content;

/// Neither one more row nor a file in front moves any from one side to the other.
#[test]
fn a_row_that_is_added_redraws_none_of_those_held_out() {
    let folder = Folder::new();
    let rows = |rows: usize| {
        let row = |row: usize| format!("{row},{}\n", if row.is_multiple_of(3) { "yes" } else { "no" });
        format!("age,ill\n{}", (0..rows).map(row).collect::<String>())
    };
    let first = folder.write("a.csv", &rows(400));
    let second = folder.write("b.csv", &rows(100));
    let founded = found(&manifest(), std::slice::from_ref(&first)).expect("a run");
    let held_out = |files: &[PathBuf]| {
        let corpus = open(&founded, files).expect("rows");
        let Content::Rows(rows) = corpus.content() else { panic!("a table") };
        let mut numbers = rows.held_out().to_vec();
        numbers.sort_unstable();
        numbers
    };
    let before = held_out(&[first.clone(), second.clone()]);
    assert!((75..175).contains(&before.len()), "a quarter of 500 rows: {}", before.len());
    folder.write("a.csv", &rows(401));
    let (of_first, of_second) = before.split_at(before.partition_point(|number| *number < 400));
    let after: Vec<usize> =
        held_out(&[first.clone(), second.clone()]).into_iter().filter(|number| *number != 400).collect();
    let moved: Vec<usize> = of_second.iter().map(|number| number + 1).collect();
    assert_eq!(after, [of_first, &moved].concat());
    let front = folder.write("0.csv", "age,ill\n1000,no\n1001,yes\n1002,no\n");
    let with_front = held_out(&[front, first, second]).into_iter().filter(|number| (3..403).contains(number));
    assert_eq!(with_front.map(|number| number - 3).collect::<Vec<_>>(), of_first);
}

/// Beyond 2⁵³ not every integer is a float.
#[test]
fn integers_that_name_classes_keep_all_their_digits() {
    let folder = Folder::new();
    let rows = |row: fn(u32, u64) -> String| -> String {
        (0..30).map(|number| row(number, 9_007_199_254_740_992 + u64::from(number % 3))).collect()
    };
    let csv = folder.write("t.csv", &format!("n,ill\n{}", rows(|n, class| format!("{n},{class}\n"))));
    let json = folder.write("t.jsonl", &rows(|n, class| format!("{{\"n\":{n},\"ill\":{class}}}\n")));
    let founded = found(&manifest(), &[csv]).expect("a run");
    assert_eq!(founded.data.class_names.len(), 3);
    assert_eq!(found(&manifest(), &[json]).map(|run| run.run_id()), Ok(founded.run_id()));
    let stored: Vec<i64> = [0, 1].map(|more| 9_007_199_254_740_992 + more).to_vec();
    let parquet = parquet::<Int64Type>(&folder, "int64 n (INT_64)", &stored);
    let mut manifest = manifest();
    manifest.table.target = "n".to_owned();
    let named = found(&manifest, &[parquet]).expect("a run").data.class_names;
    assert_eq!(named, stored.iter().map(i64::to_string).collect::<Vec<_>>());
}

#[test]
fn a_mean_is_as_exact_as_its_deviation_is_small() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.task = TableTask::Regression;
    let row = |row: u32| format!("{},{}\n", 1_700_001_234 + 37 * row % 1000, 5_000_017.5 + 0.25 * f64::from(row % 7));
    let file = folder.write("times.csv", &format!("time,ill\n{}", (0..700).map(row).collect::<String>()));
    let founded = found(&manifest, std::slice::from_ref(&file)).expect("a run");
    let (inputs, targets) = all_rows(&founded, &[file]);
    let crate::data::RowTargets::Numbers(targets) = targets else { panic!("numbers") };
    for values in [inputs, targets] {
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 1e-3 && (variance - 1.0).abs() < 1e-3, "{mean} {variance}");
    }
}

/// A Parquet file of two rows with one column, and the target.
fn parquet<T: DataType>(folder: &Folder, column: &str, values: &[T::T]) -> PathBuf {
    let schema = format!("message schema {{ required {column}; required binary ill (UTF8); }}");
    let schema = Arc::new(parse_message_type(&schema).expect("a schema"));
    let path = folder.0.path().join("table.parquet");
    let file = std::fs::File::create(&path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("written").expect("a column");
    column.typed::<T>().write_batch(values, None, None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("written").expect("a column");
    let targets = ["no", "yes"].map(ByteArray::from);
    column.typed::<ByteArrayType>().write_batch(&targets, None, None).expect("written");
    column.close().expect("closed");
    group.close().expect("closed");
    writer.close().expect("closed");
    path
}

#[test]
fn numbers_of_parquet_are_those_that_were_written() {
    let folder = Folder::new();
    let large = 18_000_000_000_000_000_000_u64;
    let unsigned = [3_000_000_000_u32, 7].map(u32::cast_signed);
    let files: [(&str, &dyn Fn() -> PathBuf); 8] = [
        ("3000000000,7", &|| parquet::<Int32Type>(&folder, "int32 n (UINT_32)", &unsigned)),
        ("18000000000000000000,7", &|| parquet::<Int64Type>(&folder, "int64 n (UINT_64)", &[large.cast_signed(), 7])),
        ("-3,7", &|| parquet::<Int32Type>(&folder, "int32 n (INT_32)", &[-3, 7])),
        ("-1.25,0.07", &|| parquet::<Int64Type>(&folder, "int64 n (DECIMAL (12, 2))", &[-125, 7])),
        ("1700000000.25,1700000001.5", &|| {
            let millis = [1_700_000_000_250, 1_700_000_001_500];
            parquet::<Int64Type>(&folder, "int64 n (TIMESTAMP_MILLIS)", &millis)
        }),
        ("1700000000.25,1700000001.5", &|| {
            let micros = [1_700_000_000_250_000, 1_700_000_001_500_000];
            parquet::<Int64Type>(&folder, "int64 n (TIMESTAMP (MICROS, true))", &micros)
        }),
        ("1700000000.25,1700000001.5", &|| {
            let nanos = [1_700_000_000_250_000_000, 1_700_000_001_500_000_000];
            parquet::<Int64Type>(&folder, "int64 n (TIMESTAMP (NANOS, false))", &nanos)
        }),
        ("1700006400,1700092800", &|| parquet::<Int32Type>(&folder, "int32 n (DATE)", &[19_676, 19_677])),
    ];
    for (numbers, parquet) in files {
        let (first, second) = numbers.split_once(',').expect("two");
        let csv = folder.write("table.csv", &format!("n,ill\n{first},no\n{second},yes\n"));
        let founded = found(&manifest(), std::slice::from_ref(&csv)).expect("a run");
        let parquet = parquet();
        let same = found(&manifest(), std::slice::from_ref(&parquet)).map(|run| run.run_id());
        assert_eq!(same, Ok(founded.run_id()), "{numbers}");
        assert_eq!(all_rows(&founded, &[parquet]), all_rows(&founded, &[csv]), "{numbers}");
    }
}

#[test]
fn parquet_columns_that_are_neither_numbers_nor_texts_are_refused_by_name() {
    let folder = Folder::new();
    let bytes = [ByteArray::from("01"), ByteArray::from("02")];
    let file = parquet::<ByteArrayType>(&folder, "binary price (DECIMAL (4, 2))", &bytes);
    let refused = found(&manifest(), &[file]).expect_err("refused");
    assert!(refused.contains("column \"price\" holds decimals as bytes"), "{refused}");
    let double = parquet::<DoubleType>(&folder, "double n", &[1.0, 2.0]);
    let founded = found(&manifest(), std::slice::from_ref(&double)).expect("a run");
    assert!(NewRows::open(&founded, &[double]).is_ok());
}

/// As pandas writes them to CSV and to other formats, as an input and as what is predicted.
#[test]
fn truths_and_numbers_that_name_things_are_the_same_whatever_wrote_them() {
    let folder = Folder::new();
    let (mut input, mut target) = (manifest(), manifest());
    input.table.categories = vec![vec!["n".to_owned()]];
    target.table.target = "n".to_owned();
    target.table.balance_classes = true;
    let bools = || parquet::<BoolType>(&folder, "boolean n", &[true, false]);
    let integers = || parquet::<Int64Type>(&folder, "int64 n (INT_64)", &[1, 0]);
    let kinds: [(_, _, &dyn Fn() -> PathBuf); 2] =
        [(["True", "False"], ["true", "false"], &bools), (["1.0", "0.0"], ["1", "0"], &integers)];
    for (in_csv, in_json, parquet) in kinds {
        let csv = folder.write("t.csv", &format!("n,ill\n{},no\n{},yes\n", in_csv[0], in_csv[1]));
        let [first, second] = in_json;
        let json = format!("{{\"n\":{first},\"ill\":\"no\"}}\n{{\"n\":{second},\"ill\":\"yes\"}}\n");
        let files = [csv, folder.write("t.jsonl", &json), parquet()];
        for manifest in [&input, &target] {
            for founder in &files {
                let founded = found(manifest, std::slice::from_ref(founder)).expect("a run");
                let expected = all_rows(&founded, std::slice::from_ref(founder));
                for member in &files {
                    let member = std::slice::from_ref(member);
                    assert_eq!(all_rows(&founded, member), expected, "{member:?} in a run of {}", founder.display());
                    let told = TableStatistics::gather(manifest, member).expect("statistics").to_text();
                    let statistics = vec![folder.write("told.json", &told)];
                    let files = place(std::slice::from_ref(founder));
                    let together = DataPlace { statistics, ..files }.complete(manifest.clone()).expect("a run");
                    assert_eq!(together.table.categories, founded.table.categories);
                    assert_eq!(together.data.class_names, founded.data.class_names);
                    assert_eq!(together.table.class_weights, founded.table.class_weights);
                }
            }
        }
        target.data.class_names = in_json.map(str::to_owned).to_vec();
        let row = |class: &str| format!("{class},no\n");
        let rows: String = [in_csv[0], in_csv[0], in_csv[0], in_csv[1]].into_iter().map(row).collect();
        let founded = found(&target, &[folder.write("u.csv", &format!("n,ill\n{rows}"))]).expect("a run");
        assert_eq!(founded.table.class_weights, [0.666667, 2.0], "three of the first class and one of the second");
        target.data.class_names.clear();
    }
}

#[test]
fn a_word_that_can_be_read_as_a_number_without_end_is_a_word_among_words() {
    let folder = Folder::new();
    let cars = folder.write("cars.csv", "car,ill\nInfinity,no\nLexus,yes\n");
    let founded = found(&manifest(), std::slice::from_ref(&cars)).expect("a run");
    assert_eq!(founded.table.categories, [["car", "Infinity", "Lexus"].map(str::to_owned).to_vec()]);
    assert_eq!(all_rows(&founded, &[cars]).0, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let numbers = folder.write("numbers.csv", "age,ill\n1,no\n2,yes\ninf,no\n");
    let refused = found(&manifest(), &[numbers]).expect_err("refused");
    assert!(refused.ends_with("row 3 (line 4), column \"age\": the number is not finite"), "{refused}");
    let floats = parquet::<DoubleType>(&folder, "double n", &[f64::INFINITY, 1.0]);
    let refused = found(&manifest(), &[floats]).expect_err("refused");
    assert!(refused.ends_with("row 1, column \"n\": the number is not finite"), "{refused}");
}

#[test]
fn a_column_of_another_spelling_of_no_number_has_no_values() {
    let folder = Folder::new();
    let file = folder.write("t.csv", "age,blood,ill\n1,NAN,no\n2,NAN,yes\n");
    let told = TableStatistics::gather(&manifest(), std::slice::from_ref(&file)).expect("statistics").to_text();
    let statistics = vec![folder.write("told.json", &told)];
    let founded = DataPlace { statistics, ..place(&[file]) }.complete(manifest()).expect("a run");
    assert_eq!((founded.table.numbers.as_slice(), founded.table.categories.len()), (&["age".to_owned()][..], 0));
}
