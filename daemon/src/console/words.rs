//! What people are told of a thing.

/// A notice, or how things stand, in words.
#[derive(Debug)]
pub struct Words {
    pub(crate) text: String,
    /// What to do; only warnings have it.
    pub(crate) hint: Option<&'static str>,
}
