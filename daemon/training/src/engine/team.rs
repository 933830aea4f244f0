//! An engine of a captain: other machines hold a part of its model.

use murmur_protocol::RunManifest;

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
}
