//! The buffers of a transformer's forward and backward, made once and used again at every step.

use super::block::Frame;

/// What a block keeps for its backward.
pub(super) struct Kept {
    /// Queries, keys and values side by side, positions turned: `[rows, joint width]`.
    pub(super) joint: Vec<f32>,
    /// Queries and keys before the norm of heads, where there is one: `[rows, query width + key width]`.
    pub(super) raw: Vec<f32>,
    /// What attention gives: `[rows, query width]`.
    pub(super) attended: Vec<f32>,
    /// The stream between attention and feed-forward: `[rows, width]`.
    pub(super) middle: Vec<f32>,
    /// Gate and up side by side; in the backward their gradient: `[rows, 2 · inner]`.
    pub(super) gate_up: Vec<f32>,
}

/// What is free again after each block.
pub(super) struct Scratch {
    /// `[rows, width]`.
    pub(super) normalised: Vec<f32>,
    /// `[rows, width]`, and of what attention gives `[rows, query width]`.
    pub(super) to_normalised: Vec<f32>,
    /// `[rows, joint width]`.
    pub(super) to_joint: Vec<f32>,
    /// `[rows, inner]`.
    pub(super) hidden: Vec<f32>,
}

/// All buffers for so many rows.
pub(super) struct Workspace {
    rows: usize,
    /// The stream before each block and after the last: `[rows, width]` each.
    pub(super) streams: Vec<Vec<f32>>,
    /// For each block, or one for all where activations are computed again.
    pub(super) kept: Vec<Kept>,
    pub(super) scratch: Scratch,
    /// The gradient of the stream: `[rows, width]`.
    pub(super) to_stream: Vec<f32>,
    /// Of as many rows as are predicted at a time.
    pub(super) logits: Vec<f32>,
}

impl Workspace {
    /// For `layers` blocks, of which `kept` are kept.
    pub(super) fn new(frame: &Frame<'_>, layers: usize, kept: usize, logits: usize) -> Workspace {
        let rows = frame.rows();
        let buffer = |width: usize| vec![0.0; rows * width];
        let (queries, keys) = (frame.attention.query_width(), frame.attention.key_width());
        let kept_one = |_| Kept {
            joint: buffer(frame.attention.joint_width()),
            raw: buffer(if frame.has_head_norm { queries + keys } else { 0 }),
            attended: buffer(queries),
            middle: buffer(frame.width),
            gate_up: buffer(2 * frame.inner),
        };
        Workspace {
            rows,
            streams: (0..=layers).map(|_| buffer(frame.width)).collect(),
            kept: (0..kept).map(kept_one).collect(),
            scratch: Scratch {
                normalised: buffer(frame.width),
                to_normalised: buffer(frame.width.max(queries)),
                to_joint: buffer(frame.attention.joint_width()),
                hidden: buffer(frame.inner),
            },
            to_stream: buffer(frame.width),
            logits: vec![0.0; logits],
        }
    }

    /// Whether it is for so many rows and blocks kept.
    pub(super) fn fits(&self, rows: usize, kept: usize) -> bool {
        self.rows == rows && self.kept.len() == kept
    }
}
