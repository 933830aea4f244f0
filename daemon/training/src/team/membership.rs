//! Which fragments of the model the machines of a team exchange by themselves.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use murmur_protocol::team::Cut;
use murmur_protocol::{Fragment, Fragments, Holding, ModelLayout, RunManifest};

use super::part::layouts;
use crate::model::{StageSpec, trained_layout, transformer_of};

/// How helpers come to the captain's swarm, a [`Ticket`](murmur_protocol::Ticket), as long as they may: nobody knows it
/// before the captain listens there, and in its quiet hours none is given. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SwarmTicket(Arc<Mutex<Option<String>>>);

impl SwarmTicket {
    /// What the next batch says.
    pub fn set(&self, ticket: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ticket;
    }

    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What of a run's model a helper's layers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Their fragments.
    pub holding: Holding,
    /// Their parameters, among all that the run trains.
    pub range: Range<usize>,
    /// How many parameters the run trains.
    pub of: usize,
}

impl Share {
    /// Of these layers; `None` where fragments do not begin and end with them.
    pub fn of(manifest: &RunManifest, layers: Range<u32>) -> Option<Share> {
        let all = trained_layout(manifest);
        let range = parameters_of(manifest, &all, layers)?;
        let fragments = Fragments::of(&manifest.gossip, &all);
        let is_inside = |index: &u16| {
            let fragment = fragments.range(Fragment { index: *index, count: fragments.count() });
            range.start <= fragment.start && fragment.end <= range.end
        };
        let inside: Vec<u16> = fragments.filled().filter(is_inside).collect();
        if inside.is_empty() {
            return None;
        }
        let holding = Holding::of(inside);
        let covered: usize = fragments.held(holding).map(|fragment| fragment.len()).sum();
        (covered == range.len()).then_some(Share { holding, range, of: all.parameters() })
    }
}

/// Where the parameters of some layers are among those that the run trains.
fn parameters_of(manifest: &RunManifest, all: &ModelLayout, layers: Range<u32>) -> Option<Range<usize>> {
    let own = layouts(manifest, &StageSpec { layers, embeds: false, predicts: false }).1;
    let first = all.tensor(&own.tensors().first()?.name)?.offset;
    Some(first..first + own.parameters())
}

/// Whether members of the run average one fragment at a time and nothing else, so that who has some can.
fn averages_by_fragment(manifest: &RunManifest) -> bool {
    !manifest.synchronous.is_on() && manifest.gossip.outer_learning_rate == 0.0
}

/// Layers at which fragments begin or end: between two of them a helper's layers are whole fragments. None where it could
/// not exchange them by itself.
pub(super) fn borders(manifest: &RunManifest) -> Vec<u32> {
    let all = trained_layout(manifest);
    let fragments = Fragments::of(&manifest.gossip, &all);
    if !averages_by_fragment(manifest) || fragments.filled().count() < 2 {
        return Vec::new();
    }
    let ranges = fragments.held(Holding::ALL);
    let ends: BTreeSet<usize> = ranges.flat_map(|range| [range.start, range.end]).collect();
    let layers = 0..transformer_of(manifest).layers;
    let of_layers: Vec<Range<usize>> =
        layers.filter_map(|layer| parameters_of(manifest, &all, layer..layer + 1)).collect();
    let starts = of_layers.iter().map(|range| range.start);
    let between = starts.chain(of_layers.last().map(|range| range.end));
    (0..).zip(between).filter(|(_, parameter)| ends.contains(parameter)).map(|(layer, _)| layer).collect()
}

/// What is left for the captain of a cut where each helper exchanges its own fragments; the whole model where they cannot: stages are no
/// whole fragments, nothing is left, or members of the run average otherwise than one fragment at a time.
pub fn left_for_captain(manifest: &RunManifest, cut: &Cut) -> Holding {
    if !averages_by_fragment(manifest) {
        return Holding::ALL;
    }
    let shares = cut.of_helpers().map(|(_, _, stage)| Share::of(manifest, stage.layers.numbers()));
    let Some(shares) = shares.collect::<Option<Vec<Share>>>() else { return Holding::ALL };
    let fragments = Fragments::of(&manifest.gossip, &trained_layout(manifest));
    let is_left = |index: &u16| !shares.iter().any(|share| share.holding.holds(*index));
    let left: Vec<u16> = fragments.filled().filter(is_left).collect();
    if shares.is_empty() || left.is_empty() { Holding::ALL } else { Holding::of(left) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::PeerId;
    use murmur_protocol::manifest::{FragmentCut, ModelSpec, TransformerModel};
    use murmur_protocol::team::{CutStage, LayerRange};

    use super::*;

    fn run(cut: FragmentCut, fragments: u16) -> RunManifest {
        let mut manifest = RunManifest::default();
        let model =
            TransformerModel { width: 32, layers: 4, heads: 2, key_value_heads: 2, ..TransformerModel::default() };
        manifest.model = ModelSpec::Transformer(model);
        (manifest.gossip.cut, manifest.gossip.fragments) = (cut, fragments);
        manifest
    }

    fn cut(stages: &[(bool, u32, u32)]) -> Cut {
        let stage = |(helps, first, end): &(bool, u32, u32)| CutStage {
            helper: helps.then(|| PeerId::from_public_key([*first as u8 + 1; 32])),
            layers: LayerRange { first: *first, end: *end },
            embeds: *end == 0,
            predicts: *end == 4 && !helps,
            in_flight: 1,
        };
        Cut { stages: stages.iter().map(stage).collect(), tokens_per_second: 1.0 }
    }

    #[test]
    fn a_helper_has_the_fragments_that_its_layers_are_and_the_captain_the_others() {
        let manifest = run(FragmentCut::Layers, 60);
        let fragments = Fragments::of(&manifest.gossip, &trained_layout(&manifest));
        let layers: Vec<Share> =
            (0..4).map(|layer| Share::of(&manifest, layer..layer + 1).expect("a fragment")).collect();
        for (share, next) in layers.iter().zip(&layers[1..]) {
            assert_eq!(share.range.end, next.range.start);
            assert_eq!(fragments.held(share.holding).map(|range| range.len()).sum::<usize>(), share.range.len());
        }
        let two = Share::of(&manifest, 1..3).expect("two fragments");
        assert_eq!(two.range, layers[1].range.start..layers[2].range.end);
        let left = left_for_captain(&manifest, &cut(&[(false, 0, 0), (true, 0, 3), (false, 3, 4)]));
        let holds = |share: &Share| share.holding.fragments(60).all(|index| left.holds(index));
        assert_eq!(layers.iter().map(holds).collect::<Vec<_>>(), [false, false, false, true]);
        assert!(!left.is_all() && left.holds(fragments.filled().next().expect("the embedding")));
    }

    #[test]
    fn between_two_borders_a_helper_has_whole_fragments_and_nowhere_else() {
        for (fragments, lora) in [(2, 0), (3, 0), (4, 0), (6, 0), (60, 0), (2, 2), (3, 2), (64, 2)] {
            let mut manifest = run(FragmentCut::Layers, fragments);
            manifest.lora.rank = lora;
            let borders = borders(&manifest);
            for (first, end) in (0..4).flat_map(|first| (first + 1..=4).map(move |end| (first, end))) {
                let is_between = borders.contains(&first) && borders.contains(&end);
                assert_eq!(Share::of(&manifest, first..end).is_some(), is_between, "{fragments} {first}..{end}");
            }
            assert!(fragments < 6 || borders == [0, 1, 2, 3, 4], "{fragments}: {borders:?}");
        }
        assert!(borders(&run(FragmentCut::Layers, 1)).is_empty());
        assert!(borders(&run(FragmentCut::Blocks, 7)).is_empty());
    }

    #[test]
    fn a_captain_exchanges_all_where_stages_are_no_fragments() {
        let team = cut(&[(false, 0, 0), (true, 0, 3), (false, 3, 4)]);
        assert!(left_for_captain(&run(FragmentCut::Blocks, 60), &team).is_all());
        assert!(left_for_captain(&run(FragmentCut::Layers, 1), &team).is_all());
        assert!(left_for_captain(&run(FragmentCut::Layers, 60), &cut(&[(false, 0, 4)])).is_all(), "no helper");
        let mut outer = run(FragmentCut::Layers, 60);
        outer.gossip.outer_learning_rate = 0.7;
        assert!(left_for_captain(&outer, &team).is_all() && borders(&outer).is_empty());
    }
}
