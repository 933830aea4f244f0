//! Who is sent shards: there are few places, and a shard may take hours at the least rate that is waited for.
//!
//! Where all places are taken, one gives way to somebody in whose network fewer are sent to, at once, or to anybody after its turn.
//! Nothing is lost by it: whoever has given way asks again, here or elsewhere, from where it stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::bounds::{DATA_SENDING_MAX, DATA_TURN};

/// The places of a node; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sending(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// The oldest first; at most [`DATA_SENDING_MAX`].
    taken: Vec<Place>,
    so_far: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    /// In which the peer is reached, where that is known.
    network: Option<u128>,
    since: Instant,
    /// Rings when it is dropped.
    _held: oneshot::Sender<()>,
}

/// A place, until it is dropped or has given way.
#[derive(Debug)]
pub(crate) struct Turn {
    sending: Sending,
    number: u64,
    held: oneshot::Receiver<()>,
}

impl Sending {
    /// A place for a shard to somebody in this network; `None` where all are taken.
    pub(crate) fn take(&self, now: Instant, network: Option<u128>) -> Option<Turn> {
        let mut places = self.places();
        if places.taken.len() >= DATA_SENDING_MAX {
            let place = places.who_gives_way(now, network)?;
            places.taken.remove(place);
        }
        let (held, until) = oneshot::channel();
        let number = places.so_far;
        places.so_far += 1;
        places.taken.push(Place { number, network, since: now, _held: held });
        Some(Turn { sending: self.clone(), number, held: until })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The oldest of the network with the most places, where the newcomer's has fewer with this one; else the oldest of all, where
    /// it has had its turn.
    fn who_gives_way(&self, now: Instant, newcomer: Option<u128>) -> Option<usize> {
        let mut of_network: HashMap<Option<u128>, usize> = HashMap::from([(newcomer, 1)]);
        for place in &self.taken {
            *of_network.entry(place.network).or_insert(0) += 1;
        }
        let most = of_network.values().max()?;
        if of_network[&newcomer] < *most {
            return self.taken.iter().position(|place| of_network[&place.network] == *most);
        }
        self.taken.first().filter(|oldest| now >= oldest.since + DATA_TURN).map(|_| 0)
    }
}

impl Turn {
    /// Waits until somebody else has the place.
    pub(crate) async fn given_way(&mut self) {
        let _ = (&mut self.held).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.sending.places().taken.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn gone(turns: &mut [Turn]) -> Vec<usize> {
        let gone = turns.iter_mut().map(|turn| turn.given_way().now_or_never().is_some());
        gone.enumerate().filter(|(_, gone)| *gone).map(|(place, _)| place).collect()
    }

    #[test]
    fn slow_readers_of_one_network_give_way_to_another_at_once_until_both_have_as_much() {
        let (sending, now) = (Sending::default(), Instant::now());
        let mut crowd: Vec<Turn> = (0..DATA_SENDING_MAX).map(|_| sending.take(now, Some(1)).expect("free")).collect();
        assert!(sending.take(now, Some(1)).is_none(), "its own network has them all");
        let others: Vec<Turn> = std::iter::from_fn(|| sending.take(now, Some(2))).take(100).collect();
        assert_eq!((others.len(), gone(&mut crowd)), (DATA_SENDING_MAX / 2, (0..DATA_SENDING_MAX / 2).collect()));
        assert!(sending.take(now, Some(1)).is_none(), "they take it from nobody");
        drop(crowd);
        assert!(sending.take(now, Some(1)).is_some(), "who is done leaves its place");
        assert_eq!(sending.places().taken.len(), others.len());
    }

    #[test]
    fn where_all_have_as_much_each_has_its_turn() {
        let (sending, now) = (Sending::default(), Instant::now());
        let networks = (0..DATA_SENDING_MAX).map(|network| Some(network as u128));
        let mut slow: Vec<Turn> = networks.map(|network| sending.take(now, network).expect("free")).collect();
        let newcomer = Some(DATA_SENDING_MAX as u128);
        assert!(sending.take(now + DATA_TURN / 2, newcomer).is_none());
        let _turn = sending.take(now + DATA_TURN, newcomer).expect("the oldest has had its turn");
        assert_eq!(gone(&mut slow), [0]);
    }
}
