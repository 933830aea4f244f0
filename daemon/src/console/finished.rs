//! What `murmur start` says of a run that was over before it began: how well the model does, and what can be done with it.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_training::{Engine, Scores, TrainingError};
use serde::Serialize;
use serde_json::json;

use super::{Console, Given, figures, next_commands, note, print_line, quoted};

/// A run that is over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FinishedRun {
    /// Own steps.
    pub steps: u64,
    /// Swarm progress, in steps.
    pub progress: f64,
    /// On the held-out slice, in nats per prediction; none where its data is not here.
    pub validation_loss: Option<f64>,
    /// How well it predicts held-out rows; none where it reads no table.
    pub scores: Option<Scores>,
    /// What the model predicts: a "byte", a "token", an "image" or a "row".
    pub prediction: &'static str,
    /// Whether only this node's own part of it is: the steps that it was to take.
    pub is_own: bool,
}

impl FinishedRun {
    /// Evaluates the model of a run that is over.
    ///
    /// # Errors
    /// When the device fails.
    pub fn look(engine: &mut Engine, manifest: &RunManifest, progress: f64) -> Result<FinishedRun, TrainingError> {
        let validation_loss = if engine.has_data() { Some(engine.validation_loss()?) } else { None };
        let (scores, prediction) = (engine.scores()?, manifest.prediction());
        Ok(FinishedRun { steps: engine.steps(), progress, validation_loss, scores, prediction, is_own: false })
    }
}

impl Console {
    /// Says that a run is over, and what comes next.
    pub(crate) fn show_finished(self, run: &FinishedRun, manifest: &RunManifest, directory: &Path, given: &Given<'_>) {
        if self == Console::Json {
            print_line(&json!({ "complete": run }).to_string());
            return;
        }
        let FinishedRun { steps, progress, validation_loss, scores, prediction, is_own } = run;
        let what = if *is_own { "this node has taken the steps that it was to take" } else { "this run is finished" };
        note(&format!("complete    {what}: {} steps", figures::steps(*steps, *progress)));
        if let Some(loss) = validation_loss {
            let scores = scores.map_or(String::new(), |scores| {
                format!(" · {scores} of {}", figures::counted(scores.rows as u64, "held-out row"))
            });
            note(&format!("score       validation loss {loss:.4} nats/{prediction}{scores}"));
        }
        note("what can be done now:");
        let commands = next_commands(directory, manifest, given);
        // Without `--steps` it goes on.
        for command in commands.iter().filter(|command| *is_own || !command.starts_with("murmur start")) {
            note(&format!("  {command}"));
        }
        if manifest.model.reads_text() {
            note(&format!("  murmur export {} --to FOLDER", quoted(directory)));
        }
        if !is_own {
            note("  murmur start RUN --data-dir FOLDER, which begins a run of its own in another folder");
        }
    }
}
