//! Which chunks are missing: a few ranges, however many chunks there are.

use std::ops::Range;

/// Ranges of chunks in order, without gaps of nothing between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing(Vec<Range<u32>>);

impl Missing {
    /// All of these, which are in order.
    pub(super) fn all(chunks: impl IntoIterator<Item = Range<u32>>) -> Missing {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for range in chunks.into_iter().filter(|range| !range.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Missing(ranges)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// The first stretch.
    pub(super) fn first(&self) -> Option<Range<u32>> {
        self.0.first().cloned()
    }

    /// Those that lie in `range`.
    pub(super) fn within(&self, range: &Range<u32>) -> Missing {
        let cut = |part: &Range<u32>| part.start.max(range.start)..part.end.min(range.end);
        Missing(self.0.iter().map(cut).filter(|part| !part.is_empty()).collect())
    }

    /// These are missing no more.
    pub(super) fn remove(&mut self, range: &Range<u32>) {
        let around = |part: &Range<u32>| [part.start..part.end.min(range.start), part.start.max(range.end)..part.end];
        self.0 = self.0.iter().flat_map(around).filter(|part| !part.is_empty()).collect();
    }

    /// The stretches.
    pub(super) fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_is_missing_no_more() {
        let mut missing = Missing::all([0..4, 4..10]);
        missing.remove(&(3..5));
        missing.remove(&(4..6));
        assert_eq!(missing.ranges(), [0..3, 6..10]);
        assert_eq!((missing.count(), missing.first()), (7, Some(0..3)));
        assert_eq!(missing.within(&(2..7)).ranges(), [2..3, 6..7]);
        missing.remove(&(0..3));
        missing.remove(&(0..20));
        assert_eq!((missing.count(), missing.first()), (0, None));
        assert!(Missing::all(std::iter::once(4..4)).ranges().is_empty());
    }
}
