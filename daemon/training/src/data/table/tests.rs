//! Small tables, read, told of and trained on.

mod columns;
mod weighing;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, MlpModel, TableTask};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::{NewRows, TableStatistics};
use crate::data::{Batch, Corpus, DataPlace, RowTargets};
use crate::privacy::{Budget, PrivateSteps, SecretKey};
use crate::{Device, Engine};

fn manifest() -> RunManifest {
    let model = MlpModel { hidden: vec![16], ..MlpModel::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    manifest.data.source = DataSource::Table;
    manifest.data.validation_fraction = 0.25;
    manifest.table.target = "ill".to_owned();
    manifest
}

fn place(files: &[PathBuf]) -> DataPlace {
    DataPlace::of_files(files)
}

fn found(manifest: &RunManifest, files: &[PathBuf]) -> Result<RunManifest, String> {
    place(files).complete(manifest.clone()).map_err(|error| {
        assert!(!error.to_string().contains('\n') && !error.remedy().is_empty());
        error.to_string()
    })
}

fn open(manifest: &RunManifest, files: &[PathBuf]) -> Result<Corpus, String> {
    Corpus::open(manifest, &place(files)).map_err(|error| {
        assert!(!error.to_string().contains('\n') && !error.remedy().is_empty());
        error.to_string()
    })
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    }
}

const PATIENTS: &str = "\
id,age,sex,weight,ill
1,30,f,60,no
2,50,m,,yes
3,40,f,80.5,no
4, 60 ,NA,70,yes
";

/// All inputs and targets of a run's rows, in order.
fn all_rows(manifest: &RunManifest, files: &[PathBuf]) -> (Vec<f32>, RowTargets) {
    let rows = NewRows::open(manifest, files).expect("rows");
    (rows.batch.inputs, rows.batch.targets)
}

#[test]
fn a_founder_finds_out_which_columns_are_which_and_rows_become_inputs() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.ignore = vec!["id".to_owned()];
    manifest.table.balance_classes = true;
    let file = folder.write("patients.csv", PATIENTS);
    let founded = found(&manifest, std::slice::from_ref(&file)).expect("a run");
    assert_eq!(founded.validate(), Ok(()));
    assert_eq!(RunManifest::from_text(&founded.canonical_text()), Ok(founded.clone()));
    let table = &founded.table;
    assert_eq!(
        (table.numbers.as_slice(), table.indicators.as_slice()),
        (&["age".into(), "weight".into()][..], &["weight".into()][..])
    );
    assert_eq!(table.categories, [["sex", "f", "m"].map(str::to_owned).to_vec()]);
    assert_eq!((table.means[0], table.deviations[0]), (45.0, 11.1803));
    assert_eq!((founded.model.inputs(), founded.model.classes()), (6, 2));
    assert_eq!(
        (founded.data.class_names.as_slice(), table.class_weights.as_slice()),
        (&["no".into(), "yes".into()][..], &[1.0, 1.0][..])
    );
    let (inputs, targets) = all_rows(&founded, &[file]);
    // age, weight, no weight, f, m, no sex
    let age = |years: f32| (years - 45.0) / 11.1803;
    assert!((inputs[0] - age(30.0)).abs() < 1e-6);
    assert_eq!(inputs[2..6], [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(inputs[7..12], [0.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(inputs[20..24], [0.0, 0.0, 0.0, 1.0]);
    assert!((inputs[18] - age(60.0)).abs() < 1e-6);
    assert_eq!(targets, RowTargets::Classes { labels: vec![0, 1, 0, 1], weights: vec![1.0; 4] });
    // The row numbers that pandas writes are no column.
    let numbered: String =
        PATIENTS.lines().enumerate().map(|(row, line)| format!("{},{line}\n", ["", "0"][row.min(1)])).collect();
    let numbered = folder.write("pandas.csv", &numbered);
    assert_eq!(found(&manifest, &[numbered]).map(|run| run.run_id()), Ok(founded.run_id()));
    // A run that has been founded stays as it is.
    assert_eq!(found(&founded, &[]), Ok(founded));
}

/// id, sex and weight, of which some are null.
fn write_parquet(path: &Path) {
    let schema = "message schema { required int64 id; required double age; optional binary sex (UTF8); \
                  optional double weight; required binary ill (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).expect("a writer");
    let texts = |texts: &[&str]| texts.iter().map(|text| ByteArray::from(*text)).collect::<Vec<_>>();
    for half in 0..2 {
        let mut group = writer.next_row_group().expect("a group");
        let mut column = group.next_column().expect("written").expect("a column");
        column.typed::<Int64Type>().write_batch(&[2 * half + 1, 2 * half + 2], None, None).expect("written");
        column.close().expect("closed");
        let mut column = group.next_column().expect("written").expect("a column");
        let ages = if half == 0 { [30.0, 50.0] } else { [40.0, 60.0] };
        column.typed::<DoubleType>().write_batch(&ages, None, None).expect("written");
        column.close().expect("closed");
        let mut column = group.next_column().expect("written").expect("a column");
        let (sexes, levels) = if half == 0 { (texts(&["f", "m"]), [1, 1]) } else { (texts(&["f"]), [1, 0]) };
        column.typed::<ByteArrayType>().write_batch(&sexes, Some(&levels), None).expect("written");
        column.close().expect("closed");
        let mut column = group.next_column().expect("written").expect("a column");
        let (weights, levels) = if half == 0 { (vec![60.0], [1, 0]) } else { (vec![80.5, 70.0], [1, 1]) };
        column.typed::<DoubleType>().write_batch(&weights, Some(&levels), None).expect("written");
        column.close().expect("closed");
        let mut column = group.next_column().expect("written").expect("a column");
        column.typed::<ByteArrayType>().write_batch(&texts(&["no", "yes"]), None, None).expect("written");
        column.close().expect("closed");
        group.close().expect("closed");
    }
    writer.close().expect("closed");
}

#[test]
fn all_formats_hold_the_same_table() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.ignore = vec!["id".to_owned()];
    let csv = folder.write("patients.csv", PATIENTS);
    let founded = found(&manifest, std::slice::from_ref(&csv)).expect("a run");
    let expected = all_rows(&founded, &[csv]);
    let european = format!("\u{feff}{}", PATIENTS.replace(',', ";").replace("NA", "\"?\""));
    let json = "{\"ill\": \"no\", \"age\": 30, \"sex\": \"f\", \"weight\": 60, \"more\": 1}\n\n\
                {\"ill\": \"yes\", \"age\": 50, \"sex\": \"m\", \"weight\": null}\n\
                {\"ill\": \"no\", \"age\": 40.0, \"sex\": \"f\", \"weight\": \"80.5\"}\n\
                {\"ill\": \"yes\", \"age\": 60, \"weight\": 70}\n";
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(PATIENTS.as_bytes()).expect("compressed");
    let compressed = folder.0.path().join("patients.csv.gz");
    std::fs::write(&compressed, encoder.finish().expect("compressed")).expect("written");
    let parquet = folder.0.path().join("patients.parquet");
    write_parquet(&parquet);
    let files = [folder.write("e.csv", &european), folder.write("p.jsonl", json), compressed, parquet];
    for file in files {
        assert_eq!(all_rows(&founded, std::slice::from_ref(&file)), expected, "{}", file.display());
        // In each row its own kind of number, and the same run all the same.
        if !file.ends_with("p.jsonl") {
            assert_eq!(found(&manifest, std::slice::from_ref(&file)).map(|run| run.run_id()), Ok(founded.run_id()));
        }
    }
}

#[test]
fn what_is_wrong_is_one_line_with_file_row_and_column() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.ignore = vec!["id".to_owned()];
    let good = folder.write("good.csv", PATIENTS);
    let founded = found(&manifest, std::slice::from_ref(&good)).expect("a run");
    let wrong = |content: &str| {
        let file = folder.write("bad.csv", content);
        open(&founded, std::slice::from_ref(&file)).err().expect("refused")
    };
    let told = |from: &str, to: &str| wrong(&PATIENTS.replace(from, to));
    assert!(
        told(",80.5,", ",heavy,").ends_with("bad.csv: row 3 (line 4), column \"weight\": \"heavy\" is not a number")
    );
    assert!(told(",80.5,", ",inf,").ends_with("row 3 (line 4), column \"weight\": the number is not finite"));
    let nothing = told(",80.5,", ",-3.4028234663852886e38,");
    assert!(
        nothing.contains("row 3 (line 4), column \"weight\": -3.4028234663852886e38 is over a million"),
        "{nothing}"
    );
    let unknown = told("2,50,m", "2,50,male");
    assert!(
        unknown.ends_with("row 2 (line 3), column \"sex\": \"male\" is none of the run's categories: \"f\", \"m\"")
    );
    let unknown = told("60,no", "60,perhaps");
    assert!(
        unknown.ends_with("row 1 (line 2), column \"ill\": \"perhaps\" is none of the run's classes: \"no\", \"yes\"")
    );
    assert!(told("60,no", "60,").ends_with("row 1 (line 2), column \"ill\": the target is missing"));
    assert!(told("60,no", "60").ends_with("row 1 (line 2): it has 4 values, and the header 5 columns"));
    // Lines that end with two characters are counted as people count them.
    let two = |from: &str, to: &str| wrong(&PATIENTS.replace(from, to).replace('\n', "\r\n"));
    assert!(two(",80.5,", ",heavy,").ends_with("row 3 (line 4), column \"weight\": \"heavy\" is not a number"));
    assert!(two("60,no", "60").ends_with("row 1 (line 2): it has 4 values, and the header 5 columns"));
    let columns = "\"id\", \"age\", \"gender\", \"weight\", \"ill\"";
    assert!(told("sex", "gender").ends_with(&format!("bad.csv has no column \"sex\"; its columns: {columns}")));
    assert!(told("id,age", "age,age").ends_with("bad.csv has two columns \"age\""));
    assert!(
        wrong("{\"age\": 1, \"ill\": \"no\", \"weight\": 3}\n[]").ends_with("row 2 (line 2): it is no JSON object")
    );
    assert!(wrong("PAR1 and nothing else").contains("bad.csv cannot be read as a table"));
    assert!(wrong("id,age,sex,weight,ill\n1,30,f,60,no\n").ends_with("none of 1 rows is left for its validation part"));
    assert!(open(&manifest, &[good]).err().expect("not founded").contains("a founder fills that in"));
    let refused = |content: &str| found(&manifest, &[folder.write("bad.csv", content)]).expect_err("refused");
    // A word among numbers is a mistake; many words are no categories.
    let typo = refused(&PATIENTS.replace("3,40", "3,4o"));
    assert!(typo.ends_with("row 3 (line 4), column \"age\": \"4o\" is not a number"), "{typo}");
    let names: String = (0..70).map(|row| format!("{row},30,name{row},60,no\n")).collect();
    let many = refused(&format!("{PATIENTS}{names}"));
    assert!(many.ends_with("column \"sex\" has more than 64 different values"), "{many}");
    assert!(refused("id,ill\n1,no\n2,yes\n").contains("no column is left to predict \"ill\" from"));
    assert!(refused("age,ill\n1,no\n2,no\n").contains("is to be predicted, but has 1 different values"));
    let free = refused(&PATIENTS.replace(",m,", &format!(",{},", "word ".repeat(40))));
    assert!(free.starts_with("this table does not fit into a run file: table.categories"), "{free}");
    let mut regression = manifest.clone();
    regression.table.task = TableTask::Regression;
    let text = found(&regression, &[folder.write("bad.csv", PATIENTS)]).expect_err("refused");
    assert!(text.ends_with("row 1 (line 2), column \"ill\": \"no\" is not a number"), "{text}");
    let numbers = PATIENTS.replace(",no", ",1.5").replace(",yes", ",2.5");
    let founded = found(&regression, &[folder.write("good.csv", &numbers)]).expect("a run");
    let file = folder.write("bad.csv", &numbers.replacen(",1.5", ",1e30", 1));
    let text = open(&founded, &[file]).err().expect("refused");
    assert!(text.contains("row 1 (line 2), column \"ill\": 1e30 is over a million"), "{text}");
}

#[test]
fn statistics_of_parts_are_those_of_the_whole() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.balance_classes = true;
    let row = |number: u32| {
        let class = if number.is_multiple_of(3) { "yes" } else { "no" };
        let word = if number < 40 { "a" } else { "b" };
        let blood = if number == 60 { String::new() } else { format!("{}", 1.7e9 + f64::from(number * number % 17)) };
        format!("{number},{blood},{word},{class}\n")
    };
    let table = |rows: std::ops::Range<u32>| format!("age,blood,ward,ill\n{}", rows.map(row).collect::<String>());
    let whole = folder.write("whole.csv", &table(0..100));
    let first = folder.write("first.csv", &table(0..30));
    let others: Vec<PathBuf> = [30..50, 50..100]
        .into_iter()
        .enumerate()
        .map(|(number, rows)| {
            let file = folder.write("part.csv", &table(rows));
            let statistics = TableStatistics::gather(&manifest, &[file]).expect("statistics");
            folder.write(&format!("{number}.json"), &statistics.to_text())
        })
        .collect();
    let expected = found(&manifest, &[whole]).expect("a run");
    let place = DataPlace { statistics: others.clone(), ..place(std::slice::from_ref(&first)) };
    let together = place.complete(manifest.clone()).expect("a run");
    assert_eq!(together, expected);
    assert_eq!(
        (together.table.indicators.as_slice(), together.table.class_weights.as_slice()),
        (&["blood".into()][..], &[0.757576, 1.47059][..])
    );
    assert_ne!(found(&manifest, std::slice::from_ref(&first)).expect("a run").run_id(), expected.run_id());
    // A file holds as much of 20 rows as of 50: sums, and no row.
    let lines = |file: &PathBuf| std::fs::read_to_string(file).expect("there").lines().count();
    let classes_and_words = [(20, lines(&others[0])), (50, lines(&others[1]))];
    assert!(classes_and_words[0].1.abs_diff(classes_and_words[1].1) <= 1, "{classes_and_words:?}");
    let other = folder.write("other.csv", &table(0..30).replace("ward", "unit"));
    let refused = |files: &[PathBuf], statistics: &[PathBuf]| {
        let place = DataPlace { statistics: statistics.to_vec(), ..super::tests::place(files) };
        place.complete(manifest.clone()).expect_err("refused").to_string()
    };
    assert!(refused(&[other], &others).contains("has no statistics of column \"ward\""));
    let words = folder.write("words.csv", &table(0..30).replace(",1700", ",x1700"));
    assert!(
        refused(&[words], &others).contains("column \"blood\" holds numbers in one table and other values in another")
    );
    let broken = folder.write("broken.json", "{}");
    assert!(refused(std::slice::from_ref(&first), &[broken]).contains("broken.json holds no statistics of a table"));
    let private = DataPlace { private: true, ..place };
    assert!(private.complete(manifest).expect_err("no noise").to_string().contains("statistics with noise"));
}

#[test]
fn statistics_with_noise_are_near_where_rows_are_many_and_need_what_the_data_must_not_tell() {
    let folder = Folder::new();
    let mut manifest = manifest();
    let rows: String =
        (0..4000).map(|row| format!("{},{}\n", row % 80, if row % 4 == 0 { "yes" } else { "no" })).collect();
    let file = folder.write("patients.csv", &format!("age,ill\n{rows}"));
    let budget = Budget { epsilon: 1.0, delta: 1e-5 };
    let gather = |manifest: &RunManifest, key: u8| {
        let files = std::slice::from_ref(&file);
        TableStatistics::gather_privately(manifest, files, budget, &SecretKey::new([key; 32]))
            .map_err(|error| error.to_string())
    };
    assert!(gather(&manifest, 1).expect_err("open columns").contains("no column is left"));
    manifest.table.numbers = vec!["age".to_owned()];
    assert!(gather(&manifest, 1).expect_err("no range").contains("column \"age\" with noise need its range"));
    manifest.table.ranges = vec![("age".to_owned(), 0.0, 120.0)];
    assert!(gather(&manifest, 1).expect_err("no classes").contains("which values column \"ill\" has"));
    manifest.data.class_names = vec!["no".to_owned(), "yes".to_owned()];
    let (statistics, deviation) = gather(&manifest, 1).expect("statistics");
    // One row has a norm of 2; sigma is 3.73 for this budget by the accountant.
    assert!((6.0..9.0).contains(&deviation), "{deviation}");
    assert_eq!(statistics.rows, 4000);
    assert_ne!(statistics.to_text(), gather(&manifest, 2).expect("statistics").0.to_text());
    let told = folder.write("told.json", &statistics.to_text());
    let place = DataPlace { statistics: vec![told], private: true, ..place(&[]) };
    let founded = place.complete(manifest.clone()).expect("a run");
    let (mean, spread) = (founded.table.means[0], founded.table.deviations[0]);
    assert!((mean - 39.5).abs() < 2.0 && (spread - 23.1).abs() < 2.0, "{mean} {spread}");
    assert_eq!(founded.table.indicators, [] as [String; 0]);
    // One row more or less moves a sum by at most the bound that the noise is made for.
    let exact = TableStatistics::gather(&manifest, std::slice::from_ref(&file)).expect("statistics");
    assert_ne!(exact.to_text(), statistics.to_text());
}

/// `murmur statistics`, `start` and `predict` alike.
#[test]
fn a_table_of_no_row_is_refused_wherever_it_is_read() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.data.class_names = vec!["no".to_owned(), "yes".to_owned()];
    let table = folder.write("some.csv", "age,ill\n1,no\n2,yes\n3,no\n4,yes\n");
    let head = [folder.write("head.csv", "age,ill\n")];
    let refused = "head.csv holds no row";
    let told = TableStatistics::gather(&manifest, &head).expect_err("no row").to_string();
    assert!(told.ends_with(refused), "{told}");
    let of_some = TableStatistics::gather(&manifest, std::slice::from_ref(&table)).expect("rows").to_text();
    let of_none = folder.write("zero.json", &of_some.replace("\"rows\": 4", "\"rows\": 0"));
    let place = DataPlace { statistics: vec![of_none], ..place(std::slice::from_ref(&table)) };
    let told = place.complete(manifest.clone()).expect_err("statistics of no row").to_string();
    assert!(told.ends_with("zero.json holds no row"), "{told}");
    let founded = found(&manifest, &[table]).expect("a run");
    let told = NewRows::open(&founded, &head).err().expect("nothing to predict").to_string();
    assert!(told.ends_with(refused), "{told}");
    manifest.table.numbers = vec!["age".to_owned()];
    manifest.table.ranges = vec![("age".to_owned(), 0.0, 120.0)];
    let budget = Budget { epsilon: 1.0, delta: 1e-5 };
    let noised = TableStatistics::gather_privately(&manifest, &head, budget, &SecretKey::new([1; 32]));
    assert!(noised.expect_err("no row").to_string().ends_with(refused));
}

#[test]
fn statistics_of_a_run_file_with_another_order_stay_with_their_columns() {
    let folder = Folder::new();
    let mut manifest = manifest();
    let row =
        |row: u32| format!("{},{},{}\n", row % 80, 1000 + row % 40, if row.is_multiple_of(4) { "yes" } else { "no" });
    let rows: String = (0..4000).map(row).collect();
    let file = folder.write("patients.csv", &format!("age,weight,ill\n{rows}"));
    manifest.table.numbers = vec!["age".to_owned(), "weight".to_owned()];
    manifest.table.ranges = vec![("age".to_owned(), 0.0, 120.0), ("weight".to_owned(), 0.0, 2000.0)];
    manifest.data.class_names = vec!["no".to_owned(), "yes".to_owned()];
    let mut members = manifest.clone();
    members.table.numbers.reverse();
    let (budget, key) = (Budget { epsilon: 10.0, delta: 1e-5 }, SecretKey::new([1; 32]));
    let gathered = TableStatistics::gather_privately(&members, &[file], budget, &key);
    let told = folder.write("told.json", &gathered.expect("statistics").0.to_text());
    let place = DataPlace { statistics: vec![told], private: true, ..place(&[]) };
    let founded = place.complete(manifest.clone()).expect("a run").table;
    assert_eq!(founded.numbers, manifest.table.numbers);
    let near = [(founded.means[0], 39.5), (founded.means[1], 1019.5), (founded.deviations[0], 23.1)];
    assert!(near.iter().all(|(found, expected)| (found - expected).abs() < 5.0), "{near:?}");
    manifest.table.numbers.push("height".to_owned());
    let error = place.complete(manifest).expect_err("nobody has told of it").to_string();
    assert!(error.contains("has no statistics of column \"height\""), "{error}");
}

/// `risk` grows from the middle of both numbers, and `ill` follows from it: its border is no line.
fn write_borders(folder: &Folder, name: &str, rows: std::ops::Range<u32>) -> PathBuf {
    let row = |number: u32| {
        let (age, weight) = (f64::from(number * 37 % 101) / 100.0, f64::from(number * 53 % 103) / 102.0);
        let risk = (age - 0.5).powi(2) + (weight - 0.5).powi(2);
        let ill = if risk < 0.12 { "yes" } else { "no" };
        format!("{},{},{},{ill}\n", 20.0 + 60.0 * age, 50.0 + 50.0 * weight, 1000.0 * risk)
    };
    folder.write(name, &format!("age,weight,risk,ill\n{}", rows.map(row).collect::<String>()))
}

#[test]
fn a_table_is_learned_and_scored_and_a_number_is_as_well() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.optimizer.batch_sequences = 32;
    manifest.table.ignore = vec!["risk".to_owned()];
    manifest.optimizer.learning_rate = 0.02;
    manifest.schedule.warmup_steps = 5;
    let file = write_borders(&folder, "train.csv", 0..600);
    let new = write_borders(&folder, "new.csv", 2000..2300);
    let train = |manifest: &RunManifest| {
        let founded = found(manifest, std::slice::from_ref(&file)).expect("a run");
        let corpus = open(&founded, std::slice::from_ref(&file)).expect("rows");
        let mut engine = Engine::new(&founded, corpus, [1; 32], Device::Cpu).expect("an engine");
        for step in 0..600 {
            engine.step(f64::from(step)).expect("a step");
        }
        let rows = NewRows::open(&founded, std::slice::from_ref(&new)).expect("rows");
        let parameters = engine.parameters().expect("parameters");
        let outputs = crate::model::scores::predict(&founded.model, &parameters, &rows.batch).expect("outputs");
        let scores = crate::Scores::of(&founded, &outputs, &rows.batch.targets).expect("rows");
        (engine.scores().expect("scores").expect("rows"), scores)
    };
    let (held_out, scores) = train(&manifest);
    // Two in three are "no".
    assert_eq!(held_out.rows, 64);
    assert!(scores.accuracy > Some(0.93) && scores.roc_auc > Some(0.97), "{scores}");
    assert!(held_out.accuracy > Some(0.9) && scores.rmse.is_none(), "{held_out}");
    // The deviation of the risk is 93.
    (manifest.table.target, manifest.table.task) = ("risk".to_owned(), TableTask::Regression);
    manifest.table.ignore = vec!["ill".to_owned()];
    let (_, scores) = train(&manifest);
    assert!(scores.accuracy.is_none() && scores.rmse < Some(25.0) && scores.r_squared > Some(0.93), "{scores}");
}

#[test]
fn rows_are_records_of_private_steps() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.ignore = vec!["risk".to_owned()];
    let file = write_borders(&folder, "train.csv", 0..80);
    let founded = found(&manifest, std::slice::from_ref(&file)).expect("a run");
    let corpus = open(&founded, &[file]).expect("rows");
    let records = corpus.training_rows().expect("a table") as u64;
    let mut engine = Engine::new(&founded, corpus, [1; 32], Device::Cpu).expect("an engine");
    let steps = PrivateSteps { clip: 1.0, noise: 1.0 };
    let mechanism = engine.train_privately(steps, SecretKey::new([1; 32])).expect("private");
    assert_eq!((mechanism.records, mechanism.batch), (records, 8));
    engine.permit(1);
    assert_eq!(engine.step(0.0).expect("a step").tokens, 8);
}

#[test]
fn class_weights_come_with_the_rows_and_unknown_categories_of_new_rows_are_counted() {
    let folder = Folder::new();
    let mut manifest = manifest();
    manifest.table.balance_classes = true;
    manifest.optimizer.batch_sequences = 8;
    let rows: String = (0..40).map(|row| format!("{row},a,{}\n", if row % 4 == 0 { "yes" } else { "no" })).collect();
    let file = folder.write("table.csv", &format!("age,ward,ill\n{rows}"));
    let founded = found(&manifest, std::slice::from_ref(&file)).expect("a run");
    assert_eq!(founded.table.class_weights, [0.666667, 2.0]);
    let corpus = open(&founded, &[file]).expect("rows");
    for batch in corpus.validation_batches(&founded) {
        let Batch::Rows(rows) = batch else { panic!("rows of a table") };
        let RowTargets::Classes { labels, weights } = rows.targets else { panic!("classes") };
        assert!(labels.iter().zip(&weights).all(|(label, weight)| *weight == [0.666667, 2.0][*label as usize]));
    }
    let new = folder.write("new.csv", "age,ward\n1,a\n2,b\n3,c\n,\n");
    let rows = NewRows::open(&founded, &[new]).expect("rows");
    assert_eq!(rows.has_target, [false; 4]);
    let (count, first) = rows.unknown.expect("two of them");
    assert!(count == 2 && first.ends_with("new.csv: row 2 (line 3)"), "{first}");
}
