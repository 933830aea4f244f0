//! Whose helper this machine is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use murmur_protocol::PeerId;

/// Whose helper this machine is; clones share it. Behind a lock, since greetings look at it while the helper sets it; held for a
/// comparison.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<Mutex<Option<Holder>>>);

#[derive(Clone, Copy, Debug)]
struct Holder {
    captain: PeerId,
    /// Whether a greeting of its has come to an end, or the helper says so. Until then it has no more than its greetings.
    is_let_in: bool,
    /// Under way.
    greetings: usize,
}

impl Taken {
    /// From now on only this captain is let in, or whoever comes first.
    pub fn set(&self, captain: Option<PeerId>) {
        *self.holder() = captain.map(|captain| Holder { captain, is_let_in: true, greetings: 0 });
    }

    /// The place for this captain, if it may come in: while it is held, and after it is kept, nobody else may.
    pub(super) fn takes(&self, captain: PeerId) -> Option<Place> {
        let mut holder = self.holder();
        let holder = holder.get_or_insert(Holder { captain, is_let_in: false, greetings: 0 });
        if holder.captain != captain {
            return None;
        }
        holder.greetings += 1;
        Some(Place { taken: self.clone(), captain })
    }

    fn holder(&self) -> MutexGuard<'_, Option<Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a captain has during its greeting. Dropped, it is free again, unless the captain has been let in on another connection.
#[derive(Debug)]
pub(super) struct Place {
    taken: Taken,
    captain: PeerId,
}

impl Place {
    /// The captain is let in.
    pub(super) fn keep(self) {
        let mut holder = self.taken.holder();
        let holder = holder.get_or_insert(Holder { captain: self.captain, is_let_in: true, greetings: 0 });
        holder.is_let_in |= holder.captain == self.captain;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.holder();
        if let Some(holder) = taken.as_mut().filter(|holder| holder.captain == self.captain) {
            holder.greetings = holder.greetings.saturating_sub(1);
            if !holder.is_let_in && holder.greetings == 0 {
                *taken = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captain_has_the_place_while_it_greets_and_once_it_is_let_in() {
        let [captain, other] = [1, 2].map(|key| PeerId::from_public_key([key; 32]));
        let taken = Taken::default();
        let (first, second) = (taken.takes(captain).expect("free"), taken.takes(captain).expect("its own"));
        drop(first);
        assert!(taken.takes(other).is_none(), "it still greets on the second connection");
        drop(second);
        drop(taken.takes(other).expect("nothing has come of its greetings"));
        let (first, second) = (taken.takes(captain).expect("free"), taken.takes(captain).expect("its own"));
        first.keep();
        drop(second);
        assert!(taken.takes(other).is_none() && taken.takes(captain).is_some());
        taken.set(None);
        assert!(taken.takes(other).is_some());
    }
}
