//! How well a model predicts a table, in the figures that people expect: accuracy and the area under the ROC curve, or the
//! root mean squared error and R².

use candle_core::{Result, bail};
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::ModelSpec;
use serde::{Deserialize, Serialize};

use super::{Mlp, parameter_count};
use crate::data::{Batch, RowBatch, RowTargets};

/// The figures of some rows; those of the other task are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Rows they are of.
    pub rows: usize,
    /// Share of rows whose class is the likeliest, 0 to 1.
    pub accuracy: Option<f64>,
    /// Area under the ROC curve, 0 to 1, 0.5 by chance: how often a row of a class looks more like it than one of another. With
    /// more than two classes the mean over the classes, each against all others. None where only one class is there.
    pub roc_auc: Option<f64>,
    /// Root of the mean squared error, in the target's own unit.
    pub rmse: Option<f64>,
    /// Share of the target's variance that is predicted, at most 1; 0 is as good as the mean.
    pub r_squared: Option<f64>,
}

/// What the MLP of `spec` gives for rows `[rows, outputs]`, on the CPU: logits of the classes, or a standardised number.
///
/// # Errors
/// When the rows have another width, or the parameters another number.
pub fn predict(spec: &ModelSpec, parameters: &[f32], rows: &RowBatch) -> Result<Vec<f32>> {
    if parameters.len() != parameter_count(spec) {
        bail!("{} parameters for a model of {}", parameters.len(), parameter_count(spec));
    }
    if rows.inputs.is_empty() {
        return Ok(Vec::new());
    }
    let ModelSpec::Mlp(spec) = spec else { bail!("only an mlp reads rows of a table") };
    Mlp::new(spec).outputs(parameters, rows)
}

/// Probabilities of the classes of rows, from their logits `[rows, classes]`, in the same shape.
pub fn probabilities(logits: &[f32], classes: usize) -> Vec<f64> {
    let softmax = |row: &[f32]| -> Vec<f64> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|logit| f64::from(logit - largest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    };
    logits.chunks_exact(classes).flat_map(softmax).collect()
}

/// How well a run's model predicts batches of rows, taken together; none where there are none.
///
/// # Errors
/// As [`predict`].
pub fn of_batches(
    manifest: &RunManifest,
    parameters: &[f32],
    batches: impl Iterator<Item = Batch>,
) -> Result<Option<Scores>> {
    let (mut outputs, mut labels, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for batch in batches {
        let Batch::Rows(rows) = batch else { bail!("scores are of rows of a table") };
        outputs.extend(predict(&manifest.model, parameters, &rows)?);
        match rows.targets {
            RowTargets::Classes { labels: more, .. } => labels.extend(more),
            RowTargets::Numbers(more) => numbers.extend(more),
        }
    }
    let targets = match labels.is_empty() {
        true => RowTargets::Numbers(numbers),
        false => RowTargets::Classes { weights: vec![1.0; labels.len()], labels },
    };
    Ok(Scores::of(manifest, &outputs, &targets))
}

impl Scores {
    /// Of what a run's model gave for rows whose targets are known. None where there are no rows.
    pub fn of(manifest: &RunManifest, outputs: &[f32], targets: &RowTargets) -> Option<Scores> {
        if outputs.is_empty() {
            return None;
        }
        Some(match targets {
            RowTargets::Classes { labels, .. } => of_classes(outputs, labels),
            RowTargets::Numbers(numbers) => of_numbers(outputs, numbers, manifest.table.target_deviation),
        })
    }
}

/// The likeliest class of each row.
pub fn likeliest(logits: &[f32], classes: usize) -> Vec<usize> {
    let first = |row: &[f32]| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter().position(|logit| *logit == largest).unwrap_or(0)
    };
    logits.chunks_exact(classes).map(first).collect()
}

fn of_classes(logits: &[f32], labels: &[u32]) -> Scores {
    let (rows, classes) = (labels.len(), logits.len() / labels.len());
    let found = likeliest(logits, classes);
    let right = found.iter().zip(labels).filter(|(found, label)| **found == **label as usize);
    let accuracy = Some(right.count() as f64 / rows as f64);
    let probabilities = probabilities(logits, classes);
    let area = |class: usize| {
        let of_class = probabilities.iter().skip(class).step_by(classes).copied();
        area_under_curve(&of_class.zip(labels.iter().map(|label| *label as usize == class)).collect::<Vec<_>>())
    };
    // Of two classes, one curve is the other's mirror image.
    let areas: Vec<f64> =
        if classes == 2 { area(1).into_iter().collect() } else { (0..classes).filter_map(area).collect() };
    let roc_auc = (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64);
    Scores { rows, accuracy, roc_auc, ..Scores::default() }
}

/// By ranks (Mann and Whitney 1947); equal scores share the mean of their ranks. None unless there are rows of both kinds.
fn area_under_curve(scores: &[(f64, bool)]) -> Option<f64> {
    let mut scores = scores.to_vec();
    scores.sort_by(|left, right| left.0.total_cmp(&right.0));
    let (mut ranks, mut begin) = (0.0, 0);
    while begin < scores.len() {
        let equal = scores[begin..].iter().take_while(|(score, _)| *score == scores[begin].0).count();
        let rank = begin as f64 + (equal as f64 + 1.0) / 2.0;
        ranks += rank * scores[begin..begin + equal].iter().filter(|(_, is_positive)| *is_positive).count() as f64;
        begin += equal.max(1);
    }
    let positives = scores.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
    let negatives = scores.len() as f64 - positives;
    (positives * negatives > 0.0).then(|| (ranks - positives * (positives + 1.0) / 2.0) / (positives * negatives))
}

fn of_numbers(outputs: &[f32], numbers: &[f32], deviation: f64) -> Scores {
    let rows = numbers.len();
    let square = |value: f64| value * value;
    let errors = outputs.iter().zip(numbers).map(|(output, number)| square(f64::from(output - number)));
    let error = errors.sum::<f64>() / rows as f64;
    let mean = numbers.iter().map(|number| f64::from(*number)).sum::<f64>() / rows as f64;
    let variance = numbers.iter().map(|number| square(f64::from(*number) - mean)).sum::<f64>() / rows as f64;
    let r_squared = (variance > 0.0).then(|| 1.0 - error / variance);
    Scores { rows, rmse: Some(error.sqrt() * deviation), r_squared, ..Scores::default() }
}

impl std::fmt::Display for Scores {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = [
            self.accuracy.map(|share| format!("accuracy {:.2} %", 100.0 * share)),
            self.roc_auc.map(|area| format!("ROC AUC {area:.4}")),
            self.rmse.map(|error| format!("RMSE {error:.4}")),
            self.r_squared.map(|share| format!("R² {share:.4}")),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        formatter.write_str(&figures.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of scikit-learn's `roc_auc_score` for the same scores, and of pairs counted by hand.
    #[test]
    fn the_area_under_the_curve_counts_pairs_in_order() {
        let area = |scores: &[f64], positives: &[bool]| {
            area_under_curve(&scores.iter().copied().zip(positives.iter().copied()).collect::<Vec<_>>())
        };
        let positives = [false, false, true, true];
        assert_eq!(area(&[0.1, 0.4, 0.35, 0.8], &positives), Some(0.75));
        assert_eq!(area(&[0.9, 0.8, 0.2, 0.1], &positives), Some(0.0));
        assert_eq!(area(&[0.5; 4], &positives), Some(0.5));
        assert_eq!(area(&[0.1, 0.5, 0.5, 0.8], &positives), Some(0.875));
        assert_eq!(area(&[0.1, 0.4], &[true, true]), None);
    }

    #[test]
    fn scores_are_those_of_the_rows() {
        let manifest = RunManifest::default();
        let labels = RowTargets::Classes { labels: vec![0, 1, 2, 1], weights: vec![1.0; 4] };
        let logits = [2.0, 1.0, 0.0, 0.0, 3.0, 1.0, 0.5, 0.0, 0.4, 0.0, 0.1, 0.2];
        let scores = Scores::of(&manifest, &logits, &labels).expect("rows");
        // Right: the first two. Class 0: 3 of 3 pairs; class 1: 4 of 4; class 2: 2 of 3.
        assert_eq!((scores.rows, scores.accuracy), (4, Some(0.5)));
        assert!((scores.roc_auc.expect("all classes") - (1.0 + 1.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12, "{scores}");
        let mut manifest = RunManifest::default();
        manifest.table.target_deviation = 10.0;
        let numbers = RowTargets::Numbers(vec![-1.0, 0.0, 1.0, 2.0]);
        let scores = Scores::of(&manifest, &[-1.0, 0.0, 1.0, 0.0], &numbers).expect("rows");
        // Errors of 2 deviations in one of four rows; the variance is 1.25.
        assert_eq!((scores.rmse, scores.r_squared), (Some(10.0), Some(1.0 - 1.0 / 1.25)));
        assert_eq!(scores.to_string(), "RMSE 10.0000 · R² 0.2000");
    }
}
