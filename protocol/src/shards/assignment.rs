//! Who is to hold which shard: rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit
//! rates", 1998), also called highest random weight.
//!
//! Each pair of shard and member has a weight, a hash of both names; a shard belongs to the members of highest weight.
//! Whoever knows the members computes the same owners, and when one member comes or goes only the shards move that it
//! gains or loses.

use std::cmp::Reverse;

use super::{ShardHash, ShardSet};
use crate::peer::PeerId;

/// The owners of a shard among `members`, best first: `replicas`, or all where there are fewer. Duplicates in `members`
/// count once.
pub fn owners(shard: &ShardHash, members: &[PeerId], replicas: usize) -> Vec<PeerId> {
    let mut ranked: Vec<(Reverse<u128>, PeerId)> =
        members.iter().map(|member| (Reverse(weight(shard, member)), *member)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(replicas).map(|(_, member)| member).collect()
}

/// The shards that `me` is to hold where `others` are the members besides it.
pub fn assignment(me: PeerId, others: &[PeerId], shards: &[ShardHash], replicas: usize) -> ShardSet {
    let is_mine = |shard: &ShardHash| {
        let own = (weight(shard, &me), Reverse(me));
        let mut better: Vec<PeerId> = others.to_vec();
        better.retain(|other| *other != me && (weight(shard, other), Reverse(*other)) > own);
        better.sort_unstable();
        better.dedup();
        better.len() < replicas
    };
    shards.iter().enumerate().filter(|(_, shard)| is_mine(shard)).map(|(index, _)| index).collect()
}

/// The shards in the order in which `me` fetches: by its own weight, highest first. Those in front are its own however
/// many members there turn out to be, so a node that knows only one so far does not fetch what it will not keep, and
/// nodes that come at the same time begin with different shards and soon have something for each other.
pub fn own_order(me: PeerId, shards: &[ShardHash]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shards.len()).collect();
    order.sort_by_key(|index| (Reverse(weight(&shards[*index], &me)), *index));
    order
}

fn weight(shard: &ShardHash, member: &PeerId) -> u128 {
    let mut hasher = blake3::Hasher::new_derive_key("murmuration 2026 shard owner");
    hasher.update(shard.as_bytes());
    hasher.update(member.as_bytes());
    let hash = hasher.finalize();
    let (first, _) = hash.as_bytes().split_first_chunk::<16>().expect("a hash has 32 bytes");
    u128::from_le_bytes(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_have_not_changed() {
        let members: Vec<PeerId> = (0..5).map(|number| PeerId::from_public_key([number; 32])).collect();
        let chosen = owners(&ShardHash::of(b"golden"), &members, 3);
        let numbers: Vec<u8> = chosen.iter().map(|member| member.as_bytes()[0]).collect();
        // Printed once by this very test; other owners would make members of different versions disagree.
        assert_eq!(numbers, [3, 0, 4]);
    }
}
