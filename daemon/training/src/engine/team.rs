//! An engine of a captain: other machines hold a part of its model.

use std::borrow::Cow;
use std::ops::Range;

use murmur_protocol::{Holding, RunManifest};

use super::cut::why_not_cut;
use super::{Engine, TrainingError, TrainingOptions, check_length};
use crate::data::Corpus;
use crate::model;
use crate::team::{TeamBase, TeamOptions, TeamReplica};

impl Engine {
    /// As [`Engine::on_base`] with a model of which other machines hold a part: this node is the captain of a team, and `device` of the
    /// options computes what it keeps. It trains with the bits of one device that holds all and computes the same microbatches.
    ///
    /// # Errors
    /// When the model cannot be cut, or its base is of another size.
    ///
    /// # Panics
    /// When the corpus was opened for another run.
    pub fn in_team(
        manifest: &RunManifest,
        base: TeamBase,
        corpus: Corpus,
        node: [u8; 32],
        team: TeamOptions,
        options: TrainingOptions,
    ) -> Result<Engine, TrainingError> {
        if let Some(reason) = why_not_cut(manifest) {
            return Err(TrainingError::NotCut(reason.to_owned()));
        }
        if let TeamBase::Held(base) = &base {
            check_length("the base", base.len(), model::parameter_count(&manifest.model))?;
        }
        let replica = TeamReplica::new(manifest, base, options, team);
        Engine::around(manifest, corpus, node, Box::new(replica), 1)
    }

    /// Which fragments of the model are exchanged from here: all, but for those that helpers of a team exchange by themselves. It changes
    /// in steps alone, and in [`Engine::end_training`].
    pub fn holding(&self) -> Holding {
        self.replica.holding()
    }

    /// Whether, since the last call, layers of a helper that exchanged them by itself have begun from an older copy, because it is gone.
    pub fn take_outdated(&mut self) -> bool {
        self.replica.take_outdated()
    }

    /// No step follows. What helpers exchanged by themselves comes back here, as far as they can be reached.
    ///
    /// # Errors
    /// When the device fails.
    pub fn end_training(&mut self) -> Result<(), TrainingError> {
        Ok(self.replica.end_training()?)
    }

    /// The parameters that are exchanged from here, in order.
    pub(super) fn held(&self) -> Vec<Range<usize>> {
        self.fragments.held(self.holding()).collect()
    }

    /// What of the whole model is exchanged from here, one stretch behind the other.
    pub(super) fn of_held<'a>(&self, values: Cow<'a, [f32]>) -> Cow<'a, [f32]> {
        if self.holding().is_all() {
            return values;
        }
        self.held().into_iter().flat_map(|range| values[range].iter().copied()).collect()
    }

    /// How far training has moved the whole model, from how far it has moved what is exchanged from here: all else stays as it was copied
    /// last.
    pub(super) fn of_all(&self, moved: f64) -> f64 {
        let held: usize = self.held().iter().map(Range::len).sum();
        moved * (self.layout().parameters() as f64 / held.max(1) as f64).sqrt()
    }
}
