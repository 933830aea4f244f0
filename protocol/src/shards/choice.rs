//! What to fetch next, and from whom.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{ShardSet, Sharding};
use crate::peer::PeerId;

/// What is known of a connected member as a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// What it said it holds.
    pub held: ShardSet,
    /// How many more shards it may be asked for at the same time.
    pub room: usize,
}

/// The next shard to fetch and the source for it: held-out shards first, since nothing begins without them, then
/// `assigned` ones in `order` ([`own_order`](super::own_order)). Where none of these can be had and training cannot
/// begin with what is `held`, any shard will do. `held` and `under_way` are left out. Among sources the one with the
/// most room is chosen; of equals the one that holds least, which leaves a founder's uplink for what only it has.
pub fn next_fetch(
    sharding: &Sharding,
    order: &[usize],
    assigned: ShardSet,
    held: ShardSet,
    under_way: ShardSet,
    sources: &BTreeMap<PeerId, Source>,
) -> Option<(usize, PeerId)> {
    let available = sources.values().filter(|source| source.room > 0);
    let available = available.fold(ShardSet::EMPTY, |sum, source| sum.union(source.held));
    let open = available.intersection(sharding.all()).without(held).without(under_way);
    let first_of = |wanted: ShardSet| order.iter().copied().find(|index| open.intersection(wanted).contains(*index));
    let stuck = || !sharding.suffices(held.union(under_way));
    let index = first_of(sharding.held_out())
        .or_else(|| first_of(assigned))
        .or_else(|| stuck().then(|| first_of(sharding.all())).flatten())?;
    let holders = sources.iter().filter(|(_, source)| source.room > 0 && source.held.contains(index));
    let (peer, _) = holders.min_by_key(|(_, source)| (Reverse(source.room), source.held.len()))?;
    Some((index, *peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{DataSource, RunManifest};
    use crate::peer::peer;
    use crate::shards::list_shards;

    /// Ten shards; the last two hold held-out bytes.
    fn sharding() -> Sharding {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.share = true;
        manifest.data.shard_bytes = 1024;
        let corpus: Vec<u8> = (0..10_000).map(|index| (index * index % 251) as u8).collect();
        Sharding::of(&list_shards(&manifest, &corpus).expect("it fits").data).expect("listed")
    }

    fn set(indices: &[usize]) -> ShardSet {
        indices.iter().copied().collect()
    }

    #[test]
    fn held_out_shards_come_first_then_assigned_ones_in_order() {
        let (sharding, order) = (sharding(), [4, 3, 2, 1, 0, 9, 8, 7, 6, 5]);
        let sources = BTreeMap::from([(peer(1), Source { held: sharding.all(), room: 1 })]);
        let next = |held, under_way| next_fetch(&sharding, &order, set(&[2, 3]), held, under_way, &sources);
        assert_eq!(next(set(&[]), set(&[])), Some((9, peer(1))));
        assert_eq!(next(set(&[]), set(&[9])), Some((8, peer(1))));
        assert_eq!(next(set(&[8]), set(&[9])), Some((3, peer(1))));
        assert_eq!(next(set(&[3, 8, 9]), set(&[])), Some((2, peer(1))));
        assert_eq!(next(set(&[2, 3, 8, 9]), set(&[])), None);
    }

    #[test]
    fn where_no_assigned_shard_can_be_had_any_other_begins() {
        let (sharding, order) = (sharding(), [4, 3, 2, 1, 0, 9, 8, 7, 6, 5]);
        let sources = BTreeMap::from([(peer(1), Source { held: set(&[0, 1, 8, 9]), room: 1 })]);
        let next = |held| next_fetch(&sharding, &order, set(&[2, 3]), held, ShardSet::EMPTY, &sources);
        assert_eq!(next(set(&[8, 9])), Some((1, peer(1))));
        assert_eq!(next(set(&[1, 8, 9])), None);
    }

    #[test]
    fn the_source_with_the_most_room_is_asked_and_of_equals_the_one_with_least() {
        let (sharding, order) = (sharding(), [4, 3, 2, 1, 0, 9, 8, 7, 6, 5]);
        let source = |held: &[usize], room| Source { held: set(held), room };
        let sources = BTreeMap::from([
            (peer(1), source(&[9], 1)),
            (peer(2), source(&[8, 9], 2)),
            (peer(3), source(&[9], 2)),
            (peer(4), source(&[8], 5)),
            (peer(5), source(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 0)),
        ]);
        let next = |held| next_fetch(&sharding, &order, ShardSet::EMPTY, held, ShardSet::EMPTY, &sources);
        assert_eq!(next(set(&[])), Some((9, peer(3))));
        assert_eq!(next(set(&[9])), Some((8, peer(4))));
        assert_eq!(next(set(&[8, 9])), None);
    }
}
