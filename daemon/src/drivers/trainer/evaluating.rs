//! How well the model predicts what was held out, between two steps.

use murmur_training::TrainingError;

use super::TrainerThread;

impl TrainerThread {
    pub(super) fn evaluate(&mut self) {
        if !self.engine.has_data() {
            return;
        }
        self.view.is_evaluating = true;
        self.show();
        match self.engine.evaluate() {
            Ok(evaluation) => {
                self.view.validation_loss = Some(evaluation.loss());
                let classifies = self.settings.manifest.classifies();
                self.view.accuracy = classifies.then(|| evaluation.accuracy());
                self.view.scores = self.engine.scores().unwrap_or_else(|error| {
                    tracing::error!("cannot score: {error}");
                    None
                });
            }
            Err(error @ TrainingError::TeamWaits(_)) => tracing::warn!("not evaluated: {error}"),
            Err(error) => tracing::error!("cannot evaluate: {error}"),
        }
        self.view.is_evaluating = false;
    }
}
