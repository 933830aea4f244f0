//! Law: in a synchronous run, who averages together ends each operation with the same bits.
//!
//! Of one sum there is one replica; and members of one group have one sum of an operation. Parts of a group that was split
//! go on by themselves, and come by the same step from other sums.

use std::collections::BTreeMap;
use std::time::Duration;

use murmur_protocol::Time;
use murmur_protocol::collective::Members;

use super::Violation;
use super::violation::ensure;
use crate::scenario::HostIndex;

const CHECK: &str = "one replica";

/// Members take one operation up within this of each other; a later one by the same name is of another part, that was split.
const ONE_OPERATION: Duration = Duration::from_secs(2);

/// Operations remembered.
const REMEMBERED_MAX: usize = 4096;

/// A host has taken a sum up.
#[derive(Clone, Debug)]
pub(crate) struct SumTaken {
    pub(crate) host: HostIndex,
    pub(crate) at: Time,
    /// The swarm's progress afterwards, in steps.
    pub(crate) progress: f64,
    /// Contributions in the sum.
    pub(crate) members: u32,
    /// With whom it averages, as it has told last.
    pub(crate) group: Members,
    /// Digest of the sum.
    pub(crate) sum: u64,
    /// Digest of the parameters afterwards.
    pub(crate) replica: u64,
}

/// What was taken up lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct OneReplica {
    /// Replicas by step and sum.
    replicas: BTreeMap<(u64, u64), u64>,
    /// When a group came by a step first, its sum, and the host that did.
    sums: BTreeMap<(u64, Vec<u8>), (Time, u64, HostIndex)>,
}

impl OneReplica {
    /// # Errors
    /// When another host has made another replica of the same sum, or one of the same group has another sum.
    pub(crate) fn taken(&mut self, taken: SumTaken) -> Result<(), Violation> {
        let SumTaken { host, at, progress, members, group, sum, replica } = taken;
        let step = progress as u64;
        let known = *self.replicas.entry((step, sum)).or_insert(replica);
        let mut other_sum = false;
        // A host tells its group a moment before or after it takes a sum up: where they do not fit, nothing is concluded.
        if group.len() == members as usize {
            let name = group.iter().flat_map(|peer| *peer.as_bytes()).collect();
            let first = self.sums.entry((step, name)).or_insert((at, sum, host));
            // Where the one that was first comes by it again, it has copied an older replica since, and the group does it anew.
            if at.saturating_since(first.0) > ONE_OPERATION || first.2 == host {
                *first = (at, sum, host);
            }
            other_sum = first.1 != sum;
        }
        while self.replicas.len() > REMEMBERED_MAX {
            self.replicas.pop_first();
        }
        while self.sums.len() > REMEMBERED_MAX {
            self.sums.pop_first();
        }
        ensure!(known == replica, CHECK, "host {host} has another replica after step {step}");
        ensure!(!other_sum, CHECK, "host {host} has another sum of step {step}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmur_protocol::PeerId;

    #[test]
    fn another_replica_of_one_sum_and_another_sum_of_one_group_are_refused() {
        let group: Members = [1, 2].map(|key| PeerId::from_public_key([key; 32])).into_iter().collect();
        let taken = |host, sum, replica| SumTaken {
            host,
            at: Time::ZERO,
            progress: 3.0,
            members: 2,
            group: group.clone(),
            sum,
            replica,
        };
        let mut law = OneReplica::default();
        assert_eq!(law.taken(taken(0, 7, 8)), Ok(()));
        assert_eq!(law.taken(taken(1, 7, 8)), Ok(()));
        assert!(law.clone().taken(taken(1, 7, 9)).is_err());
        assert!(law.clone().taken(taken(1, 6, 9)).is_err());
        let mut anew = law.clone();
        assert_eq!([taken(0, 6, 9), taken(1, 6, 9)].map(|taken| anew.taken(taken).is_ok()), [true, true]);
        let of_another_part = SumTaken { at: Time::ZERO + 2 * ONE_OPERATION, ..taken(1, 6, 9) };
        assert_eq!(law.taken(of_another_part), Ok(()));
    }
}
