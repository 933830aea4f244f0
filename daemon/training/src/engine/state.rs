//! What an engine needs to go on later as if it had never been interrupted.

use crate::data::DataPosition;

/// Everything that resuming needs, as plain values. All vectors are flat in the order of the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineState {
    /// θ.
    pub parameters: Vec<f32>,
    /// AdamW's running mean of the gradient.
    pub first_moment: Vec<f32>,
    /// AdamW's running mean of the gradient's square.
    pub second_moment: Vec<f32>,
    /// φ, with the outer momentum on.
    pub slow_weights: Option<Vec<f32>>,
    /// u, with the outer momentum on.
    pub outer_momentum: Option<Vec<f32>>,
    /// Steps and positions.
    pub counters: Counters,
}

/// The small part of an [`EngineState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that this engine has taken in all, skipped ones not counted.
    pub steps: u64,
    /// Steps since the optimizer's moments were zero.
    pub optimizer_steps: u64,
    /// Length of the ramp after a join, in own steps; 0: none.
    pub warm_up_again_steps: u64,
    /// Steps taken on that ramp.
    pub warm_up_again_taken: u64,
    /// Where the node is in its data.
    pub position: DataPosition,
}
