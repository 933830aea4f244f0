//! How a state is cut into chunks: the same at donor and joiner.

use std::ops::Range;
use std::sync::Arc;

use crate::fragments::{Fragments, Holding};
use crate::message::Chunks;
use crate::part::Fragment;

/// Chunks of equal length, but for the last of each fragment of the model. Their numbers are those of the whole state, of
/// which a node may hold some fragments alone.
#[derive(Clone, Debug)]
pub(crate) struct Chunking {
    /// Values of a chunk; at least 1.
    chunk: usize,
    /// What the node has.
    holding: Holding,
    /// In order; without those that are empty.
    fragments: Arc<[Place]>,
}

/// Where the chunks of a fragment are.
#[derive(Debug)]
struct Place {
    index: u16,
    chunks: Range<u32>,
    /// Where its values begin in the node's own state; `None` where it does not hold the fragment.
    start: Option<usize>,
    values: usize,
}

impl Chunking {
    /// `chunk`: values of a chunk. `holding`: which fragments this node has.
    pub(crate) fn new(fragments: &Fragments, holding: Holding, chunk: usize) -> Chunking {
        let (chunk, count) = (chunk.max(1), fragments.count());
        let (mut next, mut places) = (0, Vec::new());
        for index in 0..count {
            let values = fragments.range(Fragment { index, count }).len();
            if values > 0 {
                let chunks =
                    next..u32::try_from(values.div_ceil(chunk)).map_or(u32::MAX, |more| next.saturating_add(more));
                next = chunks.end;
                places.push(Place { index, chunks, start: None, values });
            }
        }
        let mut chunking = Chunking { chunk, holding, fragments: places.into() };
        chunking.hold(holding);
        chunking
    }

    /// These fragments are what the node has from now on.
    pub(crate) fn hold(&mut self, holding: Holding) {
        let mut start = 0;
        let place = |place: &Place| {
            let is_held = holding.holds(place.index);
            let moved = Place { start: is_held.then_some(start), chunks: place.chunks.clone(), ..*place };
            start += if is_held { place.values } else { 0 };
            moved
        };
        self.fragments = self.fragments.iter().map(place).collect();
        self.holding = holding;
    }

    /// Which fragments the node has.
    pub(crate) fn holding(&self) -> Holding {
        self.holding
    }

    /// The chunks of what this node holds.
    pub(crate) fn held(&self) -> impl Iterator<Item = Range<u32>> {
        self.fragments.iter().filter(|place| place.start.is_some()).map(|place| place.chunks.clone())
    }

    /// How many those are.
    pub(crate) fn held_count(&self) -> u32 {
        self.held().map(|chunks| chunks.end - chunks.start).sum()
    }

    /// Whether the state has these chunks.
    pub(crate) fn has(&self, chunks: Chunks) -> bool {
        let all = self.fragments.last().map_or(0, |place| place.chunks.end);
        chunks.count > 0 && chunks.first.checked_add(chunks.count).is_some_and(|end| end <= all)
    }

    /// Whether this node has them.
    pub(crate) fn holds(&self, chunks: Chunks) -> bool {
        self.has(chunks) && self.places(&(chunks.first..chunks.first + chunks.count)).all(|place| place.start.is_some())
    }

    /// The fragments to which these chunks belong, each with where its chunks end.
    pub(crate) fn fragments(&self, chunks: Range<u32>) -> impl Iterator<Item = (u16, u32)> {
        self.places(&chunks).map(|place| (place.index, place.chunks.end))
    }

    fn places(&self, chunks: &Range<u32>) -> impl Iterator<Item = &Place> + use<'_> {
        let Range { start, end } = *chunks;
        let first = self.fragments.partition_point(|place| place.chunks.end <= start);
        self.fragments[first..].iter().take_while(move |place| place.chunks.start < end)
    }

    /// Where in the node's own state the values of these chunks lie; empty where it does not hold them.
    pub(crate) fn span(&self, chunks: Range<u32>) -> Range<usize> {
        let mut span = 0..0;
        for place in self.places(&chunks) {
            let Some(start) = place.start else { return 0..0 };
            let after = |chunk: u32| (self.chunk * (chunk - place.chunks.start) as usize).min(place.values);
            if span.is_empty() {
                span.start = start + after(chunks.start.max(place.chunks.start));
            }
            span.end = start + after(chunks.end.min(place.chunks.end));
        }
        span
    }

    /// Values of all that the node holds.
    pub(crate) fn values(&self) -> usize {
        self.fragments.iter().filter(|place| place.start.is_some()).map(|place| place.values).sum()
    }

    /// So many values, in chunks.
    pub(crate) fn length(&self, values: usize) -> f64 {
        values as f64 / self.chunk as f64
    }

    /// How many chunks from `first` on have so many values together; `None` where no number of them has.
    pub(crate) fn count_of(&self, first: u32, values: usize) -> Option<u32> {
        let (mut end, mut left) = (first, values);
        for place in self.places(&(first..u32::MAX)) {
            place.start?;
            let rest = place.values - (self.chunk * (end - place.chunks.start) as usize).min(place.values);
            if left < rest {
                end += u32::try_from(left / self.chunk).ok()?;
                left %= self.chunk;
                break;
            }
            (end, left) = (place.chunks.end, left - rest);
            if left == 0 {
                break;
            }
        }
        (left == 0 && end > first).then_some(end - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(values: usize, chunk: usize) -> Chunking {
        Chunking::new(&Fragments::equal(values, 1), Holding::ALL, chunk)
    }

    #[test]
    fn chunks_cover_a_state() {
        for (values, chunk, count) in [(1, 5, 1), (5, 5, 1), (6, 5, 2), (11, 5, 3)] {
            let chunking = whole(values, chunk);
            assert_eq!(chunking.held_count(), count);
            let places: Vec<usize> = (0..count).flat_map(|chunk| chunking.span(chunk..chunk + 1)).collect();
            assert_eq!(places, (0..values).collect::<Vec<_>>());
            assert_eq!(chunking.span(0..count), 0..values);
            assert!(chunking.span(count..count + 1).is_empty());
            assert_eq!(chunking.count_of(0, values), Some(count));
            assert!(chunking.count_of(0, values + 1).is_none() && chunking.count_of(count, 1).is_none());
            assert!(chunking.count_of(0, 0).is_none());
            assert!(chunking.holds(Chunks { first: 0, count }));
            assert!(!chunking.holds(Chunks { first: 1, count }) && !chunking.holds(Chunks { first: 0, count: 0 }));
            assert!(!chunking.holds(Chunks { first: u32::MAX, count: 2 }));
        }
    }

    /// Three fragments of 256, 256 and 88 values, in chunks of 100: chunks 0 to 2, 3 to 5, and 6.
    fn cut(holding: Holding) -> Chunking {
        Chunking::new(&Fragments::equal(600, 3), holding, 100)
    }

    #[test]
    fn no_chunk_lies_in_two_fragments() {
        let chunking = cut(Holding::ALL);
        assert_eq!(chunking.held().collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        let spans: Vec<_> = (0..7).map(|chunk| chunking.span(chunk..chunk + 1)).collect();
        assert_eq!(spans, [0..100, 100..200, 200..256, 256..356, 356..456, 456..512, 512..600]);
        assert_eq!(chunking.span(1..4), 100..356);
        assert_eq!(chunking.count_of(1, 256), Some(3));
        assert_eq!(chunking.count_of(2, 57), None, "in the middle of a chunk");
        assert_eq!(chunking.fragments(2..7).collect::<Vec<_>>(), [(0, 3), (1, 6), (2, 7)]);
    }

    #[test]
    fn a_node_has_the_chunks_of_what_it_holds() {
        let chunking = cut(Holding::of([0, 2]));
        assert_eq!((chunking.held().collect::<Vec<_>>(), chunking.held_count()), (vec![0..3, 6..7], 4));
        assert_eq!(
            (chunking.span(0..3), chunking.span(6..7)),
            (0..256, 256..344),
            "one after the other in its own state"
        );
        assert!(chunking.span(3..4).is_empty() && chunking.span(2..4).is_empty());
        assert!(chunking.holds(Chunks { first: 6, count: 1 }) && !chunking.holds(Chunks { first: 2, count: 2 }));
        assert!(chunking.has(Chunks { first: 2, count: 2 }) && !chunking.has(Chunks { first: 6, count: 2 }));
        assert_eq!(
            (chunking.count_of(0, 256), chunking.count_of(2, 156), chunking.count_of(3, 100)),
            (Some(3), None, None)
        );
    }

    #[test]
    fn what_a_node_has_may_change() {
        let holdings = [Holding::of([0, 2]), Holding::of([1]), Holding::of([1, 2]), Holding::ALL];
        for (before, now) in holdings.iter().flat_map(|before| holdings.map(|now| (*before, now))) {
            let (mut chunking, anew) = (cut(before), cut(now));
            chunking.hold(now);
            assert_eq!(chunking.held().collect::<Vec<_>>(), anew.held().collect::<Vec<_>>(), "{before:?} to {now:?}");
            for chunk in 0..7 {
                assert_eq!(chunking.span(chunk..chunk + 1), anew.span(chunk..chunk + 1), "{before:?} to {now:?}");
            }
        }
    }
}
