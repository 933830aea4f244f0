//! How a run's model is cut into fragments, and which of them a node holds.
//!
//! An exchange averages one fragment. A node that has only some layers of the model in its memory holds only some
//! fragments, and exchanges each with whoever holds it as well: where fragments end at layers (`gossip.cut = "layers"`), a
//! machine with the whole model and two with half of it each average with one another.

use std::ops::Range;
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::bounds::FRAGMENTS_MAX;
use crate::bulk::BLOCK;
use crate::layout::ModelLayout;
use crate::manifest::{FragmentCut, GossipSpec};
use crate::part::Fragment;

/// Where the fragments of a model begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragments {
    /// Their beginnings, and the end of the last: one more than there are fragments, and they never fall.
    boundaries: Arc<[usize]>,
}

impl Fragments {
    /// As a run cuts its model.
    pub fn of(gossip: &GossipSpec, layout: &ModelLayout) -> Fragments {
        match gossip.cut {
            FragmentCut::Blocks => Fragments::equal(layout.parameters(), gossip.fragments),
            FragmentCut::Layers => Fragments::at_layers(layout, gossip.fragments),
        }
    }

    /// Equal shares of whole blocks of [`BLOCK`] parameters, but for the last one of the model. Some are empty where there are
    /// fewer blocks than fragments.
    pub fn equal(parameters: usize, count: u16) -> Fragments {
        let count = usize::from(count.max(1));
        let blocks = parameters.div_ceil(BLOCK);
        let boundaries = (0..=count).map(|index| (blocks * index / count * BLOCK).min(parameters));
        Fragments { boundaries: boundaries.collect() }
    }

    /// Each ends with the layer whose end is nearest to an equal share. Some are empty where there are fewer layers than
    /// fragments.
    fn at_layers(layout: &ModelLayout, count: u16) -> Fragments {
        let (count, parameters) = (usize::from(count.max(1)), layout.parameters());
        let mut ends = vec![0];
        for pair in layout.tensors().windows(2) {
            if layer_of(&pair[0].name) != layer_of(&pair[1].name) {
                ends.push(pair[1].offset);
            }
        }
        ends.push(parameters);
        let nearest = |index: usize| {
            let share = parameters as u128 * index as u128 / count as u128;
            let end = ends.iter().min_by_key(|end| (**end as u128).abs_diff(share));
            *end.expect("a model has an end")
        };
        Fragments { boundaries: (0..=count).map(nearest).collect() }
    }

    /// How many there are, at least 1.
    pub fn count(&self) -> u16 {
        u16::try_from(self.boundaries.len() - 1).expect("a run's fragments are few")
    }

    /// Parameters of the whole model.
    pub fn parameters(&self) -> usize {
        self.boundaries[self.boundaries.len() - 1]
    }

    /// The parameters of a fragment, among those of the whole model.
    ///
    /// # Panics
    /// When the model is not cut into so many fragments; [`Fragment::WHOLE`] is the model however it is cut.
    pub fn range(&self, fragment: Fragment) -> Range<usize> {
        if fragment == Fragment::WHOLE {
            return 0..self.parameters();
        }
        assert_eq!(fragment.count, self.count(), "a fragment of a model that is cut otherwise");
        let index = usize::from(fragment.index);
        self.boundaries[index]..self.boundaries[index + 1]
    }

    /// Those that are not empty.
    pub fn filled(&self) -> impl Iterator<Item = u16> {
        let filled = self.boundaries.windows(2).zip(0..).filter(|(pair, _)| pair[0] < pair[1]);
        filled.map(|(_, index)| index)
    }

    /// The parameters of all fragments that are held, in order: what a node that holds those has of the model.
    pub fn held(&self, holding: Holding) -> impl Iterator<Item = Range<usize>> {
        let count = self.count();
        let held = holding.fragments(count);
        held.map(move |index| self.range(Fragment { index, count }))
    }
}

/// To which layer a tensor belongs, by its name: `model.layers.3` of `model.layers.3.mlp.up_proj.weight`; the whole name where
/// there is no number in it.
fn layer_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name
}

/// Which fragments of the model a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Holding(
    /// A bit for each fragment, the lowest for the first; 0 for all of them.
    u64,
);

impl Holding {
    /// The whole model.
    pub const ALL: Holding = Holding(0);

    /// Those fragments.
    ///
    /// # Panics
    /// When there is none, or one that no run can have.
    pub fn of(fragments: impl IntoIterator<Item = u16>) -> Holding {
        let bits = fragments.into_iter().fold(0, |bits, fragment| {
            assert!(fragment < FRAGMENTS_MAX, "no run has a fragment {fragment}");
            bits | 1 << fragment
        });
        assert_ne!(bits, 0, "a node holds something");
        Holding(bits)
    }

    /// Whether it is the whole model, without naming fragments.
    pub fn is_all(self) -> bool {
        self == Holding::ALL
    }

    /// Whether this fragment is among them.
    pub fn holds(self, fragment: u16) -> bool {
        self.is_all() || self.0.checked_shr(fragment.into()).is_some_and(|bits| bits & 1 == 1)
    }

    /// Those and this one, which a run can have.
    pub(crate) fn with(self, fragment: u16) -> Holding {
        if self.is_all() { self } else { Holding(self.0 | Holding::of([fragment]).0) }
    }

    /// Those of `count` fragments, in order.
    pub fn fragments(self, count: u16) -> impl Iterator<Item = u16> {
        (0..count).filter(move |fragment| self.holds(*fragment))
    }

    /// Which share of these fragments `other` holds as well, 0 to 1; `count`: of the model.
    pub(crate) fn shared_with(self, other: Holding, count: u16) -> f64 {
        let (mut own, mut shared) = (0_u32, 0_u32);
        for fragment in self.fragments(count) {
            own += 1;
            shared += u32::from(other.holds(fragment));
        }
        f64::from(shared) / f64::from(own.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(fragments: &Fragments) -> Vec<Range<usize>> {
        fragments.held(Holding::ALL).collect()
    }

    #[test]
    fn fragments_cover_a_model_without_overlap() {
        for (parameters, count) in [(1, 1), (1000, 3), (256, 4), (10_000, 7)] {
            let ranges = ranges(&Fragments::equal(parameters, count));
            assert_eq!(ranges.len(), usize::from(count));
            assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, parameters));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
            assert!(ranges.iter().all(|range| range.start % BLOCK == 0), "{ranges:?}");
        }
    }

    fn layered() -> ModelLayout {
        let names = ["embed", "layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b", "layers.10.a", "norm", "head"];
        let lengths = [100, 30, 20, 30, 20, 50, 1, 49];
        ModelLayout::in_order(names.iter().zip(lengths).map(|(name, length)| ((*name).to_owned(), vec![length])))
    }

    #[test]
    fn fragments_end_at_the_layer_nearest_to_an_equal_share() {
        let cut = |count| ranges(&Fragments::at_layers(&layered(), count));
        assert_eq!(cut(1).first(), Some(&(0..300)));
        assert_eq!(cut(2), [0..150, 150..300], "layer 0 is not cut between its tensors");
        assert_eq!(cut(3), [0..100, 100..200, 200..300]);
        assert_eq!(cut(4), [0..100, 100..150, 150..200, 200..300], "75 lies nearer to 100 than to 0");
        let many = cut(64);
        assert_eq!((many[0].start, many[63].end), (0, 300));
        assert!(many.windows(2).all(|pair| pair[0].end == pair[1].start), "{many:?}");
        assert_eq!(many.iter().filter(|range| !range.is_empty()).count(), 6, "no more than layers");
    }

    #[test]
    fn a_holding_names_fragments() {
        let holding = Holding::of([1, 63]);
        assert!(holding.holds(1) && holding.holds(63) && !holding.holds(0) && !holding.holds(64) && !holding.is_all());
        assert_eq!(holding.fragments(3).collect::<Vec<u16>>(), [1]);
        assert_eq!(Holding::ALL.fragments(3).collect::<Vec<u16>>(), [0, 1, 2]);
        let (whole, half) = (Holding::ALL, Holding::of([0, 1]));
        assert_eq!((whole.shared_with(half, 4), half.shared_with(whole, 4)), (0.5, 1.0));
        let fragments = Fragments::equal(1000, 4);
        assert_eq!(fragments.held(holding).next(), Some(256..512));
    }
}
