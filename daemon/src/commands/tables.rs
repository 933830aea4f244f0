//! `murmur predict` and `murmur statistics`: what is made of tables without training.

use std::io::Write;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_training::data::RowTargets;
use murmur_training::model::scores::{likeliest, predict as outputs_of, probabilities};
use murmur_training::privacy::{Budget, SecretKey};
use murmur_training::{NewRows, Scores, TableStatistics};
use serde_json::json;

use super::checkpoints::find;
use super::chosen::checkpoint_path;
use crate::cli::{PredictOptions, StatisticsOptions};
use crate::console::figures::{count, counted};
use crate::console::output::StandardOutput;
use crate::console::{Console, note, print_line};
use crate::failure::{ExitCode, Failure};
use crate::remote;
use crate::settings::load_run_manifest;
use crate::setup::base_model;
use crate::setup::corpus::{corpus_failure, warn_of_left_out};

/// Sums of fewer rows are warned of. A guess.
const ROWS_FEW: u64 = 20;

/// What a model says of rows.
struct Predictions {
    /// Of each row: a class's name, or a number in the target's unit.
    texts: Vec<String>,
    /// `[rows, classes]`; none of numbers.
    probabilities: Option<Vec<f64>>,
    /// Of the rows that have a target.
    scores: Option<Scores>,
}

pub(super) fn predict(options: &mut PredictOptions) -> anyhow::Result<()> {
    remote::bring_paths(&mut options.data, None, None)?;
    let checkpoint = find(&checkpoint_path(options.checkpoint.as_deref())?)?;
    let manifest = &checkpoint.manifest;
    if manifest.data.source != DataSource::Table {
        let message =
            format!("the run {:?} predicts {}s, and no column of a table", manifest.run.name, manifest.prediction());
        let failure = Failure::new(ExitCode::Settings, message);
        let hint = match manifest.model.reads_text() {
            true => "`murmur sample` and `murmur eval` are for models of text",
            false => "`murmur eval` is for models of images",
        };
        return Err(failure.hint(hint).into());
    }
    warn_of_left_out(manifest, &options.data);
    let rows = NewRows::open(manifest, &options.data).map_err(|error| corpus_failure(&error))?;
    let parameters = base_model::whole_model(&checkpoint, None)?;
    let outputs = outputs_of(&manifest.model, &parameters, &rows.batch)?;
    let predictions = Predictions::of(manifest, &rows, &outputs);
    note(&format!("{} · own step {}", manifest.run.name, count(checkpoint.state.counters.steps)));
    if let Some((count, first)) = &rows.unknown {
        let (rows, have) = (counted(*count as u64, "row"), if *count == 1 { "has" } else { "have" });
        note(&format!("warning: {rows} {have} a category that the run does not know; the first is {first}"));
    }
    if options.format == Console::Json {
        let classes = manifest.data.class_names.len().max(1);
        let probabilities = predictions.probabilities.as_ref().map(|all| all.chunks(classes).collect::<Vec<_>>());
        let result = json!({
            "steps": checkpoint.state.counters.steps,
            "classes": manifest.data.class_names,
            "predictions": predictions.texts,
            "probabilities": probabilities,
            "scores": predictions.scores,
        });
        print_line(&result.to_string());
        return Ok(());
    }
    StandardOutput.write_all(&predictions.as_csv(&manifest.data.class_names)?)?;
    if let Some(scores) = predictions.scores {
        note(&format!("scores      {scores} of {}", counted(scores.rows as u64, "row")));
    }
    Ok(())
}

impl Predictions {
    fn of(manifest: &RunManifest, rows: &NewRows, outputs: &[f32]) -> Predictions {
        let (table, classes) = (&manifest.table, manifest.model.classes() as usize);
        let scores = scores(manifest, rows, outputs);
        if classes > 1 {
            let class =
                |class: usize| manifest.data.class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
            let texts = likeliest(outputs, classes).into_iter().map(class).collect();
            return Predictions { texts, probabilities: Some(probabilities(outputs, classes)), scores };
        }
        Predictions {
            texts: outputs.iter().map(|output| number(*output, table.target_mean, table.target_deviation)).collect(),
            probabilities: None,
            scores,
        }
    }

    fn as_csv(&self, classes: &[String]) -> anyhow::Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let named = classes.iter().map(|class| format!("probability of {class}"));
        let head = std::iter::once("prediction".to_owned()).chain(named.filter(|_| self.probabilities.is_some()));
        writer.write_record(head)?;
        for (row, text) in self.texts.iter().enumerate() {
            let of_row =
                self.probabilities.as_ref().map_or(&[][..], |all| &all[row * classes.len()..][..classes.len()]);
            let shares = of_row.iter().map(|share| format!("{share:.6}"));
            writer.write_record(std::iter::once(text.clone()).chain(shares))?;
        }
        Ok(writer.into_inner()?)
    }
}

/// A standardised output as a value of the target: to a millionth of its deviation, about what an `f32` tells.
fn number(output: f32, mean: f64, deviation: f64) -> String {
    let digits = (6.0 - deviation.log10().floor()).clamp(0.0, 300.0) as usize;
    let text = format!("{:.digits$}", mean + f64::from(output) * deviation);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Of the rows that have a target.
fn scores(manifest: &RunManifest, rows: &NewRows, outputs: &[f32]) -> Option<Scores> {
    let width = manifest.model.classes() as usize;
    let known = |row: &usize| rows.has_target[*row];
    let numbers: Vec<usize> = (0..rows.has_target.len()).filter(known).collect();
    let outputs: Vec<f32> = numbers.iter().flat_map(|row| &outputs[row * width..][..width]).copied().collect();
    let targets = match &rows.batch.targets {
        RowTargets::Classes { labels, .. } => RowTargets::Classes {
            labels: numbers.iter().map(|row| labels[*row]).collect(),
            weights: vec![1.0; numbers.len()],
        },
        RowTargets::Numbers(values) => RowTargets::Numbers(numbers.iter().map(|row| values[*row]).collect()),
    };
    Scores::of(manifest, &outputs, &targets)
}

pub(super) fn statistics(options: &mut StatisticsOptions) -> anyhow::Result<()> {
    remote::bring_paths(&mut options.data, None, None)?;
    let manifest = load_run_manifest(&options.run)?;
    if manifest.data.source != DataSource::Table {
        let message = format!("{} reads no table", options.run.display());
        let failure = Failure::new(ExitCode::Settings, message);
        return Err(failure.hint("statistics are for runs whose data.source is \"table\"").into());
    }
    warn_of_left_out(&manifest, &options.data);
    let statistics = if options.epsilon > 0.0 {
        let budget = Budget { epsilon: options.epsilon, delta: options.delta };
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| {
            Failure::new(ExitCode::Failure, format!("the system gives no randomness for private statistics: {error}"))
        })?;
        let key = SecretKey::new(key);
        let (statistics, deviation) = TableStatistics::gather_privately(&manifest, &options.data, budget, &key)
            .map_err(|error| corpus_failure(&error))?;
        note(&format!(
            "privacy     epsilon {} at delta {:e} of each row, to be added to that of training; counts are off by about \
             {deviation:.0} of {}",
            budget.epsilon, budget.delta, statistics.rows
        ));
        statistics
    } else {
        TableStatistics::gather(&manifest, &options.data).map_err(|error| corpus_failure(&error))?
    };
    if statistics.rows < ROWS_FEW {
        note(&format!(
            "warning: these are statistics of {}: so few nearly tell the rows themselves",
            counted(statistics.rows, "row")
        ));
    }
    StandardOutput.write_all(statistics.to_text().as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Remote places are brought: one that is not encrypted is refused as such, and is no file that is missing.
    #[test]
    fn tables_may_lie_at_remote_places() {
        let refused = |arguments: &[&str]| {
            let place = ["--data", "http://127.0.0.1:9/rows.csv"];
            match Cli::parse_from([&["murmur"], arguments, &place].concat()).command {
                Command::Predict(mut options) => predict(&mut options),
                Command::Statistics(mut options) => statistics(&mut options),
                _ => Ok(()),
            }
            .expect_err("not encrypted")
            .to_string()
        };
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/runs/table.toml");
        for arguments in [&["predict"][..], &["statistics", run]] {
            let said = refused(arguments);
            assert!(
                said.contains("http://127.0.0.1:9/rows.csv is no remote place: http:// is not encrypted"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_predicted_number_has_the_digits_that_tell_it_apart() {
        assert_eq!(number(0.5, 1.7e9, 60.0), "1700000030");
        assert_eq!(number(0.1234567, 1.7e9, 60.0), "1700000007.4074");
        assert_eq!(number(-1.0, 0.0, 1e-9), "-0.000000001");
        assert_eq!(number(1.0, 3e12, 2e12), "5000000000000");
        // What is printed is the output again, to a millionth.
        for (mean, deviation) in [(0.0, 1.0), (1e9, 3.0), (-5.0, 4e-7), (7e8, 2e15)] {
            for output in [-2.7182817_f32, 0.3333333, 1e-3] {
                let printed: f64 = number(output, mean, deviation).parse().expect("a number");
                assert!(((printed - mean) / deviation - f64::from(output)).abs() < 1e-6, "{printed}");
            }
        }
    }
}
