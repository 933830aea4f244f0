//! What the last exchanges of a model say of how near it is to others.

/// Of one exchange, or of the last ones together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastMerges {
    /// The largest distance; where it is not told, wraps hide one, and this is the least that it can be.
    pub(crate) distance: f64,
    pub(crate) is_told: bool,
    /// Whether a correction was shortened, or left blocks out that wrap.
    pub(crate) is_held_up: bool,
    /// Of the last partner.
    pub(crate) partner_progress: f64,
}

impl LastMerges {
    /// Of all these; the last partner had this progress.
    pub(super) fn together<'a>(all: impl Iterator<Item = &'a LastMerges>, partner_progress: f64) -> LastMerges {
        let none = LastMerges { distance: 0.0, is_told: true, is_held_up: false, partner_progress };
        all.fold(none, |sum, merge| LastMerges {
            distance: sum.distance.max(merge.distance),
            is_told: sum.is_told && merge.is_told,
            is_held_up: sum.is_held_up || merge.is_held_up,
            partner_progress,
        })
    }
}
