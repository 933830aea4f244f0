//! How a state is cut into chunks: the same at donor and joiner.

use std::ops::Range;

use crate::message::Chunks;

/// Chunks of equal length, but for the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunking {
    /// Of the state; at least 1.
    values: usize,
    /// Of a chunk; at least 1.
    chunk: usize,
}

impl Chunking {
    /// `values`: of the state. `chunk`: of a chunk.
    pub(crate) fn new(values: usize, chunk: usize) -> Chunking {
        Chunking { values: values.max(1), chunk: chunk.max(1) }
    }

    /// Chunks of the state.
    pub(crate) fn count(self) -> u32 {
        u32::try_from(self.values.div_ceil(self.chunk)).unwrap_or(u32::MAX)
    }

    /// Whether the state has these chunks.
    pub(crate) fn holds(self, chunks: Chunks) -> bool {
        chunks.count > 0 && chunks.first.checked_add(chunks.count).is_some_and(|end| end <= self.count())
    }

    /// Where in the state the values of these chunks lie; empty behind the last.
    pub(crate) fn span(self, chunks: Range<u32>) -> Range<usize> {
        let start_of = |chunk: u32| self.chunk.saturating_mul(chunk as usize).min(self.values);
        start_of(chunks.start)..start_of(chunks.end)
    }

    /// So many values, in chunks.
    pub(crate) fn length(self, values: usize) -> f64 {
        values as f64 / self.chunk as f64
    }

    /// How many chunks from `first` on have so many values together; `None` where no number of them has.
    pub(crate) fn count_of(self, first: u32, values: usize) -> Option<u32> {
        let count = u32::try_from(values.div_ceil(self.chunk)).ok()?;
        let chunks = Chunks { first, count };
        (self.holds(chunks) && self.span(first..first + count).len() == values).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_state() {
        for (values, chunk, count) in [(1, 5, 1), (5, 5, 1), (6, 5, 2), (11, 5, 3)] {
            let chunking = Chunking::new(values, chunk);
            assert_eq!(chunking.count(), count);
            let places: Vec<usize> = (0..count).flat_map(|chunk| chunking.span(chunk..chunk + 1)).collect();
            assert_eq!(places, (0..values).collect::<Vec<_>>());
            assert_eq!(chunking.span(0..count), 0..values);
            assert!(chunking.span(count..count + 1).is_empty());
            assert_eq!(chunking.count_of(0, values), Some(count));
            assert!(chunking.count_of(0, values + 1).is_none() && chunking.count_of(count, 1).is_none());
            assert!(chunking.holds(Chunks { first: 0, count }));
            assert!(!chunking.holds(Chunks { first: 1, count }) && !chunking.holds(Chunks { first: 0, count: 0 }));
            assert!(!chunking.holds(Chunks { first: u32::MAX, count: 2 }));
        }
    }
}
