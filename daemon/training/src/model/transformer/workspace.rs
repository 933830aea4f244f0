//! The buffers of a transformer's forward and backward, made once and used again at every step: one [`Pass`] for each
//! microbatch whose backward is to come, and one [`Workspace`] for all.

use super::frame::Frame;

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

impl Kept {
    fn new(frame: &Frame<'_>) -> Kept {
        let buffer = |width: usize| vec![0.0; frame.rows() * width];
        let (queries, keys) = (frame.attention.query_width(), frame.attention.key_width());
        Kept {
            joint: buffer(frame.attention.joint_width()),
            raw: buffer(if frame.has_head_norm { queries + keys } else { 0 }),
            attended: buffer(queries),
            middle: buffer(frame.width),
            gate_up: buffer(2 * frame.inner),
        }
    }
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

/// What is used by one microbatch at a time, for so many rows.
pub(super) struct Workspace {
    rows: usize,
    /// What all blocks keep by turns, where activations are computed again.
    pub(super) shared: Option<Kept>,
    pub(super) scratch: Scratch,
    /// The gradient of the last stream, of a stage that predicts: `[rows, width]`.
    pub(super) to_stream: Vec<f32>,
    /// Of as many rows as are predicted at a time, of a stage that predicts.
    pub(super) logits: Vec<f32>,
}

impl Workspace {
    /// Where blocks share what they keep, or not; with so many `logits` where losses are computed.
    pub(super) fn new(frame: &Frame<'_>, shares_kept: bool, logits: Option<usize>) -> Workspace {
        let rows = frame.rows();
        let buffer = |width: usize| vec![0.0; rows * width];
        Workspace {
            rows,
            shared: shares_kept.then(|| Kept::new(frame)),
            scratch: Scratch {
                normalised: buffer(frame.width),
                to_normalised: buffer(frame.width.max(frame.attention.query_width())),
                to_joint: buffer(frame.attention.joint_width()),
                hidden: buffer(frame.inner),
            },
            to_stream: buffer(if logits.is_some() { frame.width } else { 0 }),
            logits: vec![0.0; logits.unwrap_or_default()],
        }
    }

    /// Whether it is for so many rows, and for blocks that share what they keep.
    pub(super) fn fits(&self, rows: usize, shares_kept: bool) -> bool {
        self.rows == rows && self.shared.is_some() == shares_kept
    }
}

/// One microbatch between its forward and its backward.
pub(super) struct Pass {
    rows: usize,
    /// The stream before each block and after the last: `[rows, width]` each. One that another stage has is empty.
    pub(super) streams: Vec<Vec<f32>>,
    /// For each block; none where they share it.
    pub(super) kept: Vec<Kept>,
}

impl Pass {
    /// Through `layers` blocks, of which `kept` are kept, from a first stream of its own or one that is given.
    pub(super) fn new(frame: &Frame<'_>, layers: usize, kept: usize, owns_first: bool) -> Pass {
        let stream = |index: usize| vec![0.0; if index > 0 || owns_first { frame.rows() * frame.width } else { 0 }];
        Pass {
            rows: frame.rows(),
            streams: (0..=layers).map(stream).collect(),
            kept: (0..kept).map(|_| Kept::new(frame)).collect(),
        }
    }

    /// Whether it is for so many rows and blocks kept.
    pub(super) fn fits(&self, rows: usize, kept: usize) -> bool {
        self.rows == rows && self.kept.len() == kept
    }
}
