//! A copy of the model on its way in: which chunks are there, and who has been asked for the others.
//!
//! A large model comes from several donors at once, each sending some chunks of its own model: in a swarm that averages
//! these lie close together. A donor that leaves or falls behind loses its chunks to others; what has arrived stays, and so
//! does what arrives after its donor was given up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::Payload;
use crate::bounds::*;
use crate::exchange::TimeoutEstimator;
use crate::fragments::Holding;
use crate::message::Chunks;
use crate::peer::PeerId;
use crate::time::Time;

use super::checking::Witness;
use super::chunking::Chunking;
use super::missing::Missing;

/// The chunks so far, and the requests under way.
#[derive(Debug)]
pub(super) struct Copying {
    chunking: Chunking,
    /// By their first chunk: they do not overlap. In all as long as the state.
    parts: BTreeMap<u32, Payload>,
    missing: Missing,
    /// Swarm progress that came with each part, and its chunks, in order of arrival.
    progress: Vec<(f64, u32)>,
    /// At most [`STATE_DONORS_MAX`], and one more where somebody is late.
    asked: Vec<Asked>,
    /// Requests that were given up, at most [`STATE_REQUESTS_REMEMBERED`]: what still comes of them is as good.
    given_up: VecDeque<(PeerId, u64, Range<u32>)>,
    /// Whose chunks are among them.
    donors: Vec<Witness>,
    /// How long a donor takes for a part.
    pace: TimeoutEstimator,
    /// When the first donor was asked.
    began: Option<Time>,
}

/// A request to one donor.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) peer: PeerId,
    pub(super) request: u64,
    /// What it is still to send.
    chunks: Range<u32>,
    /// What it was asked for at first.
    granted: Range<u32>,
    /// When it was asked, and how many chunks it has sent since.
    began: Time,
    sent: u32,
    /// Whether somebody helps out, and nothing has come since.
    is_helped: bool,
    /// When the request is repeated; `NEVER` once a chunk has come.
    repeat_at: Time,
    /// When somebody else is asked for the rest as well.
    late_at: Time,
    /// When it is given up.
    stalled_at: Time,
    /// When it was made, or the last chunk came.
    since: Time,
}

/// What a donor is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) chunks: Chunks,
    /// Whose request becomes so short with it.
    pub(super) taken_from: Option<(PeerId, u64, Chunks)>,
}

impl Copying {
    pub(super) fn new(chunking: Chunking) -> Copying {
        Copying {
            missing: Missing::all(chunking.held()),
            chunking,
            parts: BTreeMap::new(),
            progress: Vec::new(),
            asked: Vec::new(),
            given_up: VecDeque::new(),
            donors: Vec::new(),
            pace: TimeoutEstimator::new(STATE_LATE, STATE_LATE_MIN, 2),
            began: None,
        }
    }

    pub(super) fn is_busy_with(&self, peer: PeerId) -> bool {
        self.asked.iter().any(|asked| asked.peer == peer)
    }

    /// When a request is to be repeated, is late, or is given up.
    pub(super) fn next_deadline(&self) -> Time {
        let deadlines = self.asked.iter().map(|asked| asked.repeat_at.min(asked.late_at).min(asked.stalled_at));
        deadlines.min().unwrap_or(NEVER)
    }

    pub(super) fn is_anybody_late(&self, now: Time) -> bool {
        self.asked.iter().any(|asked| asked.late_at <= now)
    }

    /// Nobody else can be asked for now for what is late.
    pub(super) fn put_up_with_late(&mut self, now: Time) {
        for asked in self.asked.iter_mut().filter(|asked| asked.late_at <= now) {
            asked.late_at = now + self.pace.limit();
        }
    }

    /// Whether there is a chunk that nobody has been asked for.
    pub(super) fn has_open(&self) -> bool {
        self.open().count() > 0
    }

    /// The chunks that nobody has been asked for.
    fn open(&self) -> Missing {
        let mut open = self.missing.clone();
        self.asked.iter().for_each(|asked| open.remove(&asked.chunks));
        open
    }

    /// Whether some of what is missing is of a fragment that is held there.
    pub(super) fn lacks(&self, holding: Holding) -> bool {
        self.missing.ranges().iter().any(|stretch| self.askable(stretch, &[holding]).is_some())
    }

    /// Requests under way.
    pub(super) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// Chunks that are there, and chunks of the state.
    pub(super) fn chunks(&self) -> (usize, usize) {
        let count = self.chunking.held_count();
        ((count - self.missing.count()) as usize, count as usize)
    }

    /// How long donors will take for what they have been asked for; zero where that is not known.
    pub(super) fn time_left(&self, now: Time) -> Duration {
        self.asked.iter().map(|asked| asked.time_left(now, &self.missing)).max().unwrap_or_default()
    }

    /// Gives up donors from which nothing comes; returns whether there were any.
    pub(super) fn give_up_stalled(&mut self, now: Time) -> bool {
        self.drop_requests(|asked| asked.stalled_at <= now)
    }

    /// Each request under way, with its first chunk alone.
    pub(super) fn least_of_requests(&self) -> impl Iterator<Item = (PeerId, u64, Chunks)> + use<'_> {
        self.asked.iter().map(|asked| (asked.peer, asked.request, Chunks { first: asked.chunks.start, count: 1 }))
    }

    /// Requests that are to be repeated now: lost, or their refusal was.
    pub(super) fn repeat_due(&mut self, now: Time) -> Vec<(PeerId, u64, Chunks)> {
        let due = self.asked.iter_mut().filter(|asked| asked.repeat_at <= now);
        due.map(|asked| {
            asked.repeat_at = now + STATE_REPEAT_PERIOD;
            (asked.peer, asked.request, to_chunks(&asked.chunks))
        })
        .collect()
    }

    /// What the next donor is to be asked for, where `at_once` of `donors`, who hold that much, could be asked now: an equal
    /// share of what nobody has been asked for, or what somebody is late with, or half of what will keep somebody busy for
    /// long.
    pub(super) fn next_share(&mut self, now: Time, donors: &[Holding], at_once: usize) -> Option<Share> {
        let open = self.open();
        if let Some(first) = open.ranges().iter().find_map(|stretch| self.askable(stretch, donors)) {
            let share = open.count().div_ceil(at_once.max(1) as u32).min(STATE_CHUNKS_MAX);
            let chunks = to_chunks(&(first.start..first.end.min(first.start + share)));
            return Some(Share { chunks, taken_from: None });
        }
        let limit = self.pace.limit();
        let (missing, chunking) = (&self.missing, &self.chunking);
        let has_help = |asked: &Asked| donors.iter().any(|holding| is_held(chunking, &asked.chunks, *holding));
        if let Some(late) = self.asked.iter_mut().find(|asked| asked.late_at <= now && has_help(asked)) {
            // Whoever helps out may fail, too.
            late.late_at = now + limit;
            // Who is late will go on, as a rule: half of the rest is help enough, and nothing comes twice.
            let goes_on = !late.is_helped;
            late.is_helped = true;
            return match late.give_half(missing).filter(|_| goes_on) {
                Some(share) => Some(share),
                None => {
                    let chunks = to_chunks(&missing.within(&late.chunks).first()?);
                    Some(Share { chunks, taken_from: None })
                }
            };
        }
        let helped = self.asked.iter_mut().filter(|asked| has_help(asked));
        let slowest = helped.max_by_key(|asked| asked.time_left(now, missing))?;
        if slowest.time_left(now, missing) < STATE_SHARED_FROM { None } else { slowest.give_half(missing) }
    }

    /// The beginning of a stretch that some of these donors have: all of it where all have all.
    fn askable(&self, stretch: &Range<u32>, donors: &[Holding]) -> Option<Range<u32>> {
        let mut start = stretch.start;
        for (fragment, end) in self.chunking.fragments(stretch.clone()) {
            if donors.iter().any(|holding| holding.holds(fragment)) {
                let is_any = donors.iter().all(|holding| holding.is_all());
                return Some(start..if is_any { stretch.end } else { end.min(stretch.end) });
            }
            start = end;
        }
        None
    }

    /// Whether a donor that holds this much has all of `chunks`.
    pub(super) fn is_held(&self, chunks: Chunks, holding: Holding) -> bool {
        is_held(&self.chunking, &(chunks.first..chunks.first + chunks.count), holding)
    }

    /// A donor was asked.
    pub(super) fn ask(&mut self, now: Time, peer: PeerId, request: u64, chunks: Chunks) {
        let chunks = chunks.first..chunks.first + chunks.count;
        self.began.get_or_insert(now);
        self.asked.push(Asked {
            peer,
            request,
            granted: chunks.clone(),
            chunks,
            began: now,
            sent: 0,
            is_helped: false,
            repeat_at: now + STATE_REPEAT_PERIOD,
            late_at: now + self.pace.limit(),
            stalled_at: now + STATE_STALL,
            since: now,
        });
    }

    /// How many values belong into a payload that begins with `chunk`, and to how many chunks it belongs, where they were
    /// asked of `peer`, now or before, and fill it. Else how many the first of them has.
    pub(super) fn expects(&self, peer: PeerId, request: u64, chunk: u32, values: usize) -> Option<(u32, usize)> {
        let asked = self.asked.iter().map(|asked| (asked.peer, asked.request, &asked.granted));
        let mut known = asked.chain(self.given_up.iter().map(|(peer, request, chunks)| (*peer, *request, chunks)));
        let (.., granted) = known.find(|(of, number, _)| (*of, *number) == (peer, request))?;
        let count = self.chunking.count_of(chunk, values).filter(|count| *count <= STATE_PART_CHUNKS_MAX);
        let count = count.unwrap_or(1);
        let is_granted = granted.contains(&chunk) && count <= granted.end - chunk;
        is_granted.then(|| (count, self.chunking.span(chunk..chunk + count).len()))
    }

    /// Takes in chunks that were expected and are sound; returns whether a donor has sent all that it was asked for.
    pub(super) fn take(
        &mut self,
        now: Time,
        (donor, request): (Witness, u64),
        part: Range<u32>,
        payload: &Payload,
        progress: f64,
    ) -> bool {
        let start = self.chunking.span(part.clone()).start;
        let new = self.missing.within(&part);
        let bytes_of = |range: &Range<u32>| {
            let values = self.chunking.span(range.clone());
            4 * (values.start - start)..4 * (values.end - start)
        };
        let bytes_new: usize = new.ranges().iter().map(|range| bytes_of(range).len()).sum();
        // All that came stays in memory with what is kept of it: were parts to overlap, many times the state.
        let is_mostly_new = 2 * bytes_new >= payload.len();
        for range in new.ranges() {
            let Some(values) = payload.slice(bytes_of(range)) else { return false };
            let values = if is_mostly_new { values } else { values.bytes().to_vec().into() };
            self.parts.insert(range.start, values);
            self.missing.remove(range);
        }
        if new.count() > 0 {
            self.progress.push((progress, new.count()));
            if self.donors.iter().all(|known| known.peer != donor.peer) {
                self.donors.push(donor);
            }
        }
        if let Some(asked) = self.asked.iter_mut().find(|asked| (asked.peer, asked.request) == (donor.peer, request)) {
            asked.repeat_at = NEVER;
            // Who sends the same again and again does nothing for the copy, and is to be late in the end.
            if new.count() > 0 {
                let taken = now - asked.since;
                if asked.sent > 0 {
                    self.pace.record(taken); // the first one waits for a step, and for connections
                }
                asked.sent += part.end - part.start;
                asked.is_helped = false;
                asked.since = now;
                asked.late_at = now + self.pace.limit();
                asked.stalled_at = now + STATE_STALL;
            }
        }
        // What others have brought meanwhile, nobody waits for any more.
        let missing = self.missing.clone();
        self.drop_requests(|asked| missing.within(&asked.chunks).count() == 0)
    }

    /// Such requests are refused, done, or their donors gone: their chunks are open again. Returns whether there were any.
    pub(super) fn drop_requests(&mut self, is_dropped: impl Fn(&Asked) -> bool) -> bool {
        let before = self.asked.len();
        for asked in self.asked.extract_if(.., |asked| is_dropped(asked)) {
            if self.given_up.len() >= STATE_REQUESTS_REMEMBERED {
                self.given_up.pop_front();
            }
            self.given_up.push_back((asked.peer, asked.request, asked.granted));
        }
        self.asked.len() < before
    }

    /// How long the copy has taken so far.
    pub(super) fn taken(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now - began)
    }

    /// The whole state, with its swarm progress and its donors, once every chunk is there. The progress is the median of
    /// the chunks': a donor that forges it has to have sent most of them.
    pub(super) fn whole(&self) -> Option<(Vec<Payload>, f64, Vec<Witness>)> {
        if self.missing.count() > 0 {
            return None;
        }
        let mut progress = self.progress.clone();
        progress.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut left = self.chunking.held_count().div_ceil(2);
        let median = progress.iter().find(|(_, chunks)| {
            let is_beyond = *chunks >= left;
            left = left.saturating_sub(*chunks);
            is_beyond
        });
        Some((self.parts.values().cloned().collect(), median?.0, self.donors.clone()))
    }
}

impl Asked {
    /// How long it will take for the rest, by what it has sent so far; zero where that is not known.
    fn time_left(&self, now: Time, missing: &Missing) -> Duration {
        if self.sent == 0 {
            return Duration::ZERO;
        }
        let left = missing.within(&self.chunks).count();
        (now - self.began).mul_f64(f64::from(left) / f64::from(self.sent))
    }

    /// Takes the later half of what is missing away, where there is enough.
    fn give_half(&mut self, missing: &Missing) -> Option<Share> {
        let rest = missing.within(&self.chunks).ranges().last()?.clone();
        // The first chunks are on their way.
        let middle = rest.start + (rest.end - rest.start).div_ceil(2);
        if middle >= rest.end {
            return None;
        }
        self.chunks.end = middle;
        // Where it has given the request up, it begins anew with what it is told: nothing comes twice.
        let first = missing.within(&self.chunks).first()?.start;
        let taken_from = Some((self.peer, self.request, to_chunks(&(first..middle))));
        Some(Share { chunks: to_chunks(&(middle..rest.end)), taken_from })
    }
}

fn is_held(chunking: &Chunking, chunks: &Range<u32>, holding: Holding) -> bool {
    chunking.fragments(chunks.clone()).all(|(fragment, _)| holding.holds(fragment))
}

fn to_chunks(range: &Range<u32>) -> Chunks {
    Chunks { first: range.start, count: range.end - range.start }
}

/// Later than any deadline.
const NEVER: Time = Time::MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;

    use super::*;
    use crate::fragments::Fragments;

    const CHUNKS: u32 = 600;

    /// Memory of a transfer, counted for as long as anything of it is held.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl Counted {
        fn payload(bytes: usize, held: &Arc<AtomicUsize>) -> Payload {
            held.fetch_add(bytes, Ordering::Relaxed);
            Bytes::from_owner(Counted(vec![0; bytes], held.clone())).into()
        }
    }

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }

    /// A copy of which all is asked of one donor, in chunks of one value.
    fn asked_of_one() -> (Copying, Witness) {
        let chunking = Chunking::new(&Fragments::equal(CHUNKS as usize, 1), Holding::ALL, 1);
        let donor = Witness { peer: PeerId::from_public_key([1; 32]), range: None, holding: Holding::ALL };
        let mut copying = Copying::new(chunking);
        copying.ask(Time::ZERO, donor.peer, 0, Chunks { first: 0, count: CHUNKS });
        (copying, donor)
    }

    /// Of each part a single chunk was new, and all of it was held: 256 times the model.
    #[test]
    fn parts_that_overlap_hold_no_more_than_twice_the_state() {
        for step in [1, 100, 150, 200] {
            let (mut copying, donor) = asked_of_one();
            let (held, mut most) = (Arc::default(), 0);
            for first in (0..=CHUNKS - STATE_PART_CHUNKS_MAX).rev().step_by(step) {
                let part = first..first + STATE_PART_CHUNKS_MAX;
                let payload = Counted::payload(4 * part.len(), &held);
                assert!(copying.expects(donor.peer, 0, first, part.len()).is_some(), "the donor may send this");
                copying.take(Time::ZERO, (donor, 0), part, &payload, 1.0);
                drop(payload);
                most = most.max(held.load(Ordering::Relaxed));
            }
            assert!(most <= 2 * 4 * CHUNKS as usize, "{most} bytes with parts that begin {step} chunks apart");
        }
    }

    /// It was never late, and its chunks were asked of nobody else.
    #[test]
    fn who_sends_the_same_again_and_again_is_late_and_given_up() {
        let (mut copying, donor) = asked_of_one();
        let mut now = Time::ZERO;
        while now < Time::ZERO + STATE_STALL {
            copying.take(now, (donor, 0), 0..1, &vec![0; 4].into(), 1.0);
            now = now + Duration::from_secs(1);
        }
        assert!(copying.is_anybody_late(now));
        assert!(copying.give_up_stalled(now), "nothing has come since its first chunk");
    }
}
