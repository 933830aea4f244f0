//! A step that takes as long as it would on a slower machine.

use std::time::Instant;

use super::TrainerThread;

impl TrainerThread {
    /// Stays with the step that began then for as long as its pace says: to everybody else it computes.
    pub(super) fn keep_pace(&mut self, begin: Instant) {
        let Some(pace) = self.settings.pace else { return };
        let first = *self.first_step.get_or_insert(begin);
        std::thread::sleep(pace.of_step(begin - first).saturating_sub(begin.elapsed()));
    }
}
