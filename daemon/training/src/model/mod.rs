//! The models that a swarm can train.

pub mod initial;
pub mod transformer;

pub use transformer::{Transformer, parameter_count};

use murmur_protocol::ModelLayout;
use murmur_protocol::manifest::{ModelKind, ModelSpec};

/// Which tensors a model of this kind and size has, and where they lie in its flat vector.
pub fn layout(spec: &ModelSpec) -> ModelLayout {
    match spec.kind {
        ModelKind::Transformer => transformer::transformer_layout(spec),
        ModelKind::Mlp | ModelKind::Cnn => todo!(),
    }
}
