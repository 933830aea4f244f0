//! Tables whose rows stay where they are: statistics, a swarm of two, predictions of new rows; and scikit-learn beside it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use murmur_tests::{murmur, run, succeeded, text, write_run};
use serde_json::Value;

use crate::MURMUR;
use crate::place::Place;

const RUN: &str = "\
[model]
kind = \"mlp\"
hidden = [16]
[optimizer]
learning_rate = 0.01
batch_sequences = 32
[schedule]
total_steps = 300
warmup_steps = 10
[data]
source = \"table\"
class_names = [\"no\", \"yes\"]
[table]
target = \"ill\"
ignore = [\"name\"]
[synchronous]
topology = \"ring\"
members_min = 2
";

/// Rows in which `ill` is whether a and b have one sign; each member sees one sign of a alone, so neither could know by itself.
fn write_table(folder: &Path, name: &str, sign: f64, ward: &str) -> PathBuf {
    let mut text = "name,a,b,ward,ill\n".to_owned();
    for row in 0..400_u32 {
        let a = sign * (0.1 + f64::from(row * 37 % 101) / 100.0);
        let b = f64::from(row * 53 % 103) / 51.0 - 1.0;
        let shown = if row % 20 == 7 { String::new() } else { b.to_string() };
        let ill = if (a > 0.0) == (b > 0.0) { "yes" } else { "no" };
        writeln!(text, "patient {row},{},{shown},{ward},{ill}", 100.0 + a).expect("text");
    }
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

/// Standard output of a command that succeeds.
fn printed(arguments: &[&str]) -> String {
    succeeded(&run(MURMUR, arguments))
}

#[test]
fn two_members_learn_from_rows_that_stay_with_each_and_predict_new_ones() {
    let place = Place::new(RUN);
    let north = write_table(place.path(), "north.csv", 1.0, "heart");
    let south = write_table(place.path(), "south.csv", -1.0, "surgery");
    let told = place.at("south.json");
    let statistics = printed(&["statistics", place.run_file(), "--data", text(&south)]);
    assert!(!statistics.contains("patient ") && statistics.contains("\"surgery\""), "{statistics}");
    std::fs::write(&told, statistics).expect("written");
    let start = ["start", place.run_file(), "--data", text(&north), "--statistics", text(&told)];
    let first = place.spawn("first", &start);
    let join = ["join", "--bootstrap", &first.address(), "--data", text(&south)];
    let second = place.spawn("second", &join);
    let (directory, second_directory) = (first.directory.clone(), second.directory.clone());
    // Nobody leaves before both are done: the other would wait for it (members_min).
    first.wait_for("the end of the run", |report| report.phase == "completed");
    second.wait_for("the end of the run", |report| report.phase == "completed");
    let (first, second) = (first.stop(), second.stop());
    assert!(first.status.success() && second.status.success(), "{}\n{}", first.errors, second.errors);
    let report = first.report.expect("it left in order");
    assert_eq!(report.prediction, "row");
    let scores = report.scores.expect("rows are scored");
    assert!((20..60).contains(&scores.rows) && scores.accuracy > Some(0.8) && scores.roc_auc.is_some(), "{scores}");
    // Half of each kind, and the target in one of the two files alone.
    for place in [&directory, &second_directory] {
        let new = [text(&north), text(&south)];
        let result: Value =
            serde_json::from_str(&printed(&["predict", text(place), "--format", "json", "--data", new[0], new[1]]))
                .expect("JSON");
        let accuracy = result["scores"]["accuracy"].as_f64().expect("scored");
        // A twentieth has no b: of those, half is a guess.
        assert!(accuracy > 0.9 && result["predictions"].as_array().is_some_and(|rows| rows.len() == 800), "{result}");
    }
    let unlabelled = place.at("new.csv");
    std::fs::write(&unlabelled, "a,b,ward\n100.9,0.9,heart\n100.9,-0.9,heart\n99.1,-0.9,elsewhere\n").expect("written");
    let output = run(MURMUR, &["predict", text(&directory), "--data", text(&unlabelled)]);
    let (told, lines) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[0], "prediction,probability of no,probability of yes", "{told}");
    assert!(lines[1].starts_with("yes,0.") && lines[2].starts_with("no,0.") && lines.len() == 4, "{lines:?}");
    assert!(
        told.contains("warning: 1 row has a category that the run does not know") && told.contains("row 3 (line 4)")
    );
    // A member whose table has other words is told where.
    let other = place.at("other.csv");
    std::fs::write(&other, std::fs::read_to_string(&south).expect("there").replace("surgery", "Surgery"))
        .expect("written");
    let (third, founded) = (place.at("third"), directory.join("run.toml"));
    let arguments = ["start", text(&founded), "--data", text(&other), "--data-dir", text(&third)];
    let output = run(MURMUR, &arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("other.csv: row 1 (line 2), column \"ward\": \"Surgery\" is none of the run's categories"),
        "{told}"
    );
    // Private training averages by gossip.
    let refused = |run_file: &str| {
        let private = ["start", run_file, "--data", text(&north), "--epsilon", "1", "--data-dir", text(&third)];
        String::from_utf8_lossy(&run(MURMUR, &private).stderr).into_owned()
    };
    assert!(refused(place.run_file()).contains("this run is synchronous"));
    let (by_gossip, _) = RUN.split_once("[synchronous]").expect("the last section");
    let told = refused(text(&write_run(place.path(), by_gossip)));
    assert!(told.contains("statistics with noise") && told.contains("murmur statistics RUN.toml"), "{told}");
}

/// Four members with unlike shares of the digits table, against scikit-learn's MLP on all rows and each member alone.
#[test]
fn a_swarm_with_unlike_shares_predicts_as_well_as_scikit_learn_with_all_rows() {
    let _turn = murmur_tests::turn::computes();
    let python = std::env::var("MURMUR_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !Command::new(&python).args(["-c", "import sklearn"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no scikit-learn; set MURMUR_TEST_PYTHON to one that has");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bench_tables.py");
    let mut command = murmur(&python);
    // As good as with the eight hundred that the page of benchmarks has.
    command.arg(script).args([MURMUR, "--seeds", "1", "--tables", "digits", "--steps", "250"]);
    // The script bounds what it waits for, and takes its daemons along.
    let output = command.output().expect("python is there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let row = said.lines().find(|line| line.starts_with("| digits")).expect("a row of the table");
    let cells = row.split('|').map(|cell| cell.split('±').next().unwrap_or_default().trim().parse::<f64>());
    let values: Vec<f64> = cells.flatten().collect();
    let [swarm, _, _, best_alone, _, apart] = values[..] else { panic!("six numbers in {row}") };
    assert!(apart >= -1.0 && swarm > best_alone, "{said}");
}
