//! Properties of the assignment of shards: every shard is owned, members hold about as much, and when one comes or goes
//! only its own shards move.

use std::collections::BTreeSet;

use murmur_protocol::PeerId;
use murmur_protocol::bounds::{SHARD_REPLICAS, SHARDS_MAX};
use murmur_protocol::shards::{ShardHash, ShardSet, assignment, own_order, owners};
use proptest::collection::btree_set;
use proptest::prelude::*;

fn members() -> impl Strategy<Value = Vec<PeerId>> {
    btree_set(any::<[u8; 32]>(), 1..40).prop_map(|keys| keys.into_iter().map(PeerId::from_public_key).collect())
}

fn shards() -> impl Strategy<Value = Vec<ShardHash>> {
    (any::<u64>(), 1..=SHARDS_MAX).prop_map(|(seed, count)| {
        (0..count as u64).map(|index| ShardHash::of(&[seed.to_le_bytes(), index.to_le_bytes()].concat())).collect()
    })
}

fn all_assignments(members: &[PeerId], shards: &[ShardHash]) -> Vec<ShardSet> {
    members.iter().map(|me| assignment(*me, members, shards, SHARD_REPLICAS)).collect()
}

proptest! {
    #[test]
    fn every_shard_has_its_owners_and_all_members_agree_on_them(members in members(), shards in shards()) {
        let assignments = all_assignments(&members, &shards);
        for (index, shard) in shards.iter().enumerate() {
            let chosen: BTreeSet<PeerId> = owners(shard, &members, SHARD_REPLICAS).into_iter().collect();
            prop_assert_eq!(chosen.len(), SHARD_REPLICAS.min(members.len()));
            let holders = members.iter().zip(&assignments).filter(|(_, held)| held.contains(index));
            prop_assert_eq!(holders.map(|(member, _)| *member).collect::<BTreeSet<_>>(), chosen);
        }
    }

    /// A load is a sum of independent draws: six standard deviations around its mean hold in all but one of 10⁸ cases.
    #[test]
    fn members_hold_about_as_much(members in members(), shards in shards()) {
        let share = (SHARD_REPLICAS as f64 / members.len() as f64).min(1.0);
        let mean = shards.len() as f64 * share;
        let bound = 6.0 * (mean * (1.0 - share)).sqrt() + 3.0;
        for held in all_assignments(&members, &shards) {
            prop_assert!((held.len() as f64 - mean).abs() <= bound, "{} shards, {mean} on average", held.len());
        }
    }

    #[test]
    fn only_shards_that_a_newcomer_gains_move(
        members in members(), shards in shards(), newcomer in any::<[u8; 32]>(),
    ) {
        let newcomer = PeerId::from_public_key(newcomer);
        prop_assume!(!members.contains(&newcomer));
        let with: Vec<PeerId> = members.iter().copied().chain([newcomer]).collect();
        let gained = assignment(newcomer, &with, &shards, SHARD_REPLICAS);
        let mut lost = 0;
        for member in &members {
            let before = assignment(*member, &members, &shards, SHARD_REPLICAS);
            let after = assignment(*member, &with, &shards, SHARD_REPLICAS);
            // Read backwards, this is what happens when a member leaves.
            prop_assert!(before.contains_all(after));
            prop_assert!(gained.contains_all(before.without(after)));
            lost += before.without(after).len();
        }
        // Each shard that it gains is given up by one member, unless there were too few before.
        prop_assert_eq!(lost, if members.len() < SHARD_REPLICAS { 0 } else { gained.len() });
    }

    #[test]
    fn duplicates_and_the_node_itself_among_the_members_change_nothing(members in members(), shards in shards()) {
        let me = members[0];
        let others: Vec<PeerId> = members[1..].to_vec();
        let doubled: Vec<PeerId> = members.iter().chain(&members).copied().collect();
        let expected = assignment(me, &others, &shards, SHARD_REPLICAS);
        prop_assert_eq!(assignment(me, &doubled, &shards, SHARD_REPLICAS), expected);
    }

    /// What comes first in the order is assigned under any view: fetching in it wastes nothing while the view grows.
    #[test]
    fn the_order_begins_with_what_is_assigned_under_the_largest_view(members in members(), shards in shards()) {
        let me = members[0];
        let order = own_order(me, &shards);
        prop_assert_eq!(order.iter().copied().collect::<BTreeSet<_>>().len(), shards.len());
        let assigned = assignment(me, &members, &shards, SHARD_REPLICAS);
        for smaller in [1, members.len() / 2 + 1] {
            let seen = assignment(me, &members[..smaller.min(members.len())], &shards, SHARD_REPLICAS);
            prop_assert!(seen.contains_all(assigned));
        }
        // Own weights fall along the order, so early shards are assigned at least as often as late ones.
        let half = order.len() / 2;
        let count = |part: &[usize]| part.iter().filter(|index| assigned.contains(**index)).count();
        prop_assert!(count(&order[..half]) + 1 >= count(&order[order.len() - half..]));
    }
}
