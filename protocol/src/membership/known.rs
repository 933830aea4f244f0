//! What a node remembers of a member to which it is not connected.
//!
//! The age of a descriptor, after Cyclon (Voulgaris et al. 2005), says how long ago anybody last heard from its owner
//! directly. It travels along and only direct contact makes it young again: so members that died unannounced grow old in
//! every view at once, without a heartbeat.

use std::time::Duration;

use crate::bounds::ADDRESSES_TOLD_MAX;
use crate::bounds::*;
use crate::message::{Descriptor, KnownPeer};
use crate::peer::{Address, PeerId};
use crate::profile::{MemberView, Profile};
use crate::random::{Generator, RngExt};
use crate::time::Time;

/// A moment on this node's clock, in whole seconds since its owner began to count; negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i32);

impl Moment {
    /// The second that `now` lies in.
    pub(super) fn of(now: Time) -> Moment {
        Moment(i32::try_from(now.since_start().as_secs()).unwrap_or(i32::MAX))
    }

    /// So many seconds before `now`.
    pub(super) fn before(now: Time, age_seconds: u32) -> Moment {
        let Moment(seconds) = Moment::of(now);
        Moment(seconds.saturating_sub_unsigned(age_seconds))
    }

    /// How long ago this was, in seconds, rounded up; zero in the future.
    pub(super) fn age_seconds(self, now: Time) -> u32 {
        let now = now.since_start();
        let rounded_up = now.as_secs() as i64 + i64::from(now.subsec_nanos() > 0);
        u32::try_from(rounded_up - i64::from(self.0)).unwrap_or(0)
    }

    /// How long ago this was.
    pub(super) fn age(self, now: Time) -> Duration {
        Duration::from_secs(u64::from(self.age_seconds(now)))
    }
}

/// Who told of a member: the first eight bytes of its id, enough to count what one has told; zeros for this node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Teller(u64);

impl Teller {
    /// The member itself: this node was in contact with it, or has a name for it from its own disk.
    pub(super) const NOBODY: Teller = Teller(0);

    /// A table that anybody may write to, or the local network. A member whose id begins like this shares its place.
    pub(super) const LOOKUP: Teller = Teller(u64::MAX);

    pub(super) fn of(peer: PeerId) -> Teller {
        let bytes = std::array::from_fn(|index| peer.as_bytes()[index]);
        Teller(u64::from_le_bytes(bytes).max(1))
    }
}

/// Where dialing a member or an address stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dial {
    /// In a row.
    pub(super) failures: u8,
    pub(super) not_before: Time,
    /// Until then others are dialed rather than this one: it has had enough connections, or this node had.
    pub(super) is_last_until: Time,
}

impl Dial {
    /// Of a member whose connection was pruned.
    pub(super) fn pruned(now: Time, random: &mut Generator) -> Dial {
        let not_before = now + jittered(PRUNED_PAUSE, random);
        Dial { failures: 0, not_before, is_last_until: now + jittered(PRUNED_BACK_OFF, random) }
    }

    pub(super) fn may_start(&self, now: Time) -> bool {
        self.not_before <= now && self.is_last_until <= now
    }

    /// The same where there is nobody else.
    pub(super) fn may_start_at_last(&self, now: Time) -> bool {
        self.not_before <= now
    }

    pub(super) fn failed(&mut self, now: Time, random: &mut Generator) {
        self.failures = self.failures.saturating_add(1);
        let doubled = DIAL_BACK_OFF.saturating_mul(1 << (self.failures - 1).min(10)).min(DIAL_BACK_OFF_MAX);
        self.not_before = now + jittered(doubled, random);
    }
}

/// One member that is not connected.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Newest first, at most [`ADDRESSES_TOLD_MAX`].
    pub(super) addresses: Box<[Address]>,
    /// When it was last heard of, by anybody.
    pub(super) alive_at: Moment,
    /// When this node could not reach it any more; `None` where that is not known.
    pub(super) lost_at: Option<Moment>,
    /// Whose word it is.
    pub(super) teller: Teller,
    pub(super) dial: Dial,
    /// Questions in a row that it left unanswered while it was connected.
    pub(super) silences: u8,
    /// What it said of itself.
    pub(super) profile: Profile,
}

impl Known {
    /// A member of which only another one has told.
    pub(super) fn told(now: Time, teller: Teller, descriptor: &Descriptor) -> Known {
        let mut addresses = Box::default();
        remember_addresses(&mut addresses, &descriptor.known.addresses);
        Known {
            addresses,
            alive_at: Moment::before(now, descriptor.age_seconds),
            lost_at: None,
            teller,
            dial: Dial::default(),
            silences: 0,
            profile: descriptor.profile.clone(),
        }
    }

    /// From an earlier life of this node.
    pub(super) fn remembered(now: Time, known: &KnownPeer) -> Known {
        let profile = Profile::default();
        Known::told(now, Teller::NOBODY, &Descriptor { known: known.clone(), age_seconds: 0, profile })
    }

    /// News of it came from somebody. Returns whether they are younger than what is known.
    pub(super) fn refresh(&mut self, now: Time, descriptor: &Descriptor) -> bool {
        let alive_at = Moment::before(now, descriptor.age_seconds);
        if alive_at <= self.alive_at {
            return false;
        }
        self.alive_at = alive_at;
        self.profile.clone_from(&descriptor.profile);
        if self.lost_at.is_some_and(|lost_at| lost_at < alive_at) {
            self.lost_at = None;
        }
        // Hearsay does not displace what the peer itself said, unless that proved wrong.
        if self.dial.failures > 0 {
            remember_addresses(&mut self.addresses, &descriptor.known.addresses);
        }
        true
    }

    /// This node could not reach it, `silent` or not there.
    pub(super) fn dial_failed(&mut self, now: Time, random: &mut Generator) {
        self.dial.failed(now, random);
        self.lost_at.get_or_insert(Moment::of(now));
    }

    /// How long it was away, if it is here again at `now`; `None` where it never was.
    pub(super) fn away(&self, now: Time) -> Option<Duration> {
        self.lost_at.map(|lost_at| lost_at.max(self.alive_at).age(now)).filter(|away| *away > Duration::ZERO)
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.dial.failures > 0 || self.silences > 0
    }

    pub(super) fn is_too_old(&self, now: Time) -> bool {
        self.alive_at.age(now) > AGE_MAX
    }

    pub(super) fn shown(&self, now: Time) -> MemberView {
        let age_seconds = self.alive_at.age_seconds(now);
        MemberView { profile: self.profile.clone(), age_seconds, is_connected: false }
    }

    pub(super) fn describe(&self, peer: PeerId, now: Time) -> Descriptor {
        let known = KnownPeer { peer, addresses: self.addresses.to_vec() };
        Descriptor { known, age_seconds: self.alive_at.age_seconds(now), profile: self.profile.clone() }
    }
}

/// A period, more or less: nodes must not fall into step.
pub(super) fn jittered(period: Duration, random: &mut Generator) -> Duration {
    period.mul_f64(random.random_range(0.8..1.2))
}

/// Puts new addresses first and keeps the list short.
pub(super) fn remember_addresses(addresses: &mut Box<[Address]>, told: &[Address]) {
    let is_new = |known: &&Address| !told.contains(known);
    let mut list: Vec<Address> = Vec::with_capacity(ADDRESSES_TOLD_MAX);
    for address in told.iter().chain(addresses.iter().filter(is_new)) {
        if list.len() < ADDRESSES_TOLD_MAX && !list.contains(address) {
            list.push(address.clone());
        }
    }
    *addresses = list.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::stream;
    use crate::time::second;

    fn descriptor(age_seconds: u32) -> Descriptor {
        let addresses = vec![Address::new("sim/1").expect("short")];
        Descriptor {
            known: KnownPeer { peer: PeerId::from_public_key([1; 32]), addresses },
            age_seconds,
            profile: Profile::default(),
        }
    }

    #[test]
    fn an_age_never_shrinks_on_its_way() {
        let half_past = Time::from_start(Duration::from_millis(1500));
        for (age, now) in [(0, second(1)), (0, half_past), (100, second(1)), (u32::MAX, half_past)] {
            let known = Known::told(now, Teller::NOBODY, &descriptor(age));
            let told_on = known.describe(PeerId::from_public_key([1; 32]), now).age_seconds;
            assert!(told_on >= age.min(i32::MAX as u32), "{age} became {told_on}");
        }
    }

    #[test]
    fn a_member_was_away_from_its_loss_on_unless_somebody_has_heard_from_it_since() {
        let mut known = Known::told(second(0), Teller::NOBODY, &descriptor(0));
        assert_eq!(known.away(second(500)), None, "never lost");
        known.dial_failed(second(100), &mut stream(1, "test", &[]));
        assert_eq!(known.away(second(100)), None);
        assert_eq!(known.away(second(200)), Some(Duration::from_secs(100)));
        known.refresh(second(200), &descriptor(150));
        assert_eq!(known.away(second(200)), Some(Duration::from_secs(100)), "that was before the loss");
        known.refresh(second(200), &descriptor(10));
        assert_eq!(known.away(second(400)), None);
    }

    #[test]
    fn waits_between_dials_double_up_to_a_minute() {
        let mut random = stream(1, "test", &[]);
        let mut dial = Dial::default();
        let waits: Vec<f64> = (0..10)
            .map(|_| {
                dial.failed(Time::ZERO, &mut random);
                dial.not_before.since_start().as_secs_f64()
            })
            .collect();
        assert!((0.8..1.2).contains(&waits[0]) && (6.4..9.6).contains(&waits[3]), "{waits:?}");
        assert!(waits[9] <= 1.2 * DIAL_BACK_OFF_MAX.as_secs_f64(), "{waits:?}");
    }

    #[test]
    fn the_newest_addresses_come_first_and_few_are_kept() {
        let address = |number: usize| Address::new(format!("sim/{number}")).expect("short");
        let mut addresses: Box<[Address]> = [1, 2, 3, 4].map(address).into();
        remember_addresses(&mut addresses, &[address(5), address(2)]);
        assert_eq!(*addresses, [5, 2, 1, 3].map(address));
    }
}
