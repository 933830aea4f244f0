//! A copy of the model on its way in: which chunks are there, and who has been asked for the others.
//!
//! A large model comes from several donors at once, each sending some chunks of its own model: in a swarm that averages
//! these lie close together. A donor that leaves or falls behind loses its chunks to others; what has arrived stays.

use crate::Payload;
use crate::bounds::*;
use crate::exchange::Patience;
use crate::message::Chunks;
use crate::peer::PeerId;
use crate::time::Time;

use super::chunking::Chunking;

/// The chunks so far, and the requests under way.
#[derive(Debug)]
pub(super) struct Copying {
    chunking: Chunking,
    /// By chunk; in all as long as the state.
    have: Vec<Option<Payload>>,
    missing: usize,
    /// Swarm progress that came with each chunk, in order of arrival.
    progress: Vec<f64>,
    /// At most [`STATE_DONORS_MAX`], and one more where somebody is late.
    asked: Vec<Asked>,
    /// Whose chunks are among them.
    donors: Vec<PeerId>,
    /// How long a donor takes for a chunk.
    pace: Patience,
}

/// A request to one donor.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) peer: PeerId,
    pub(super) request: u64,
    pub(super) chunks: Chunks,
    /// When the request is repeated; `NEVER` once a chunk has come.
    repeat_at: Time,
    /// When somebody else is asked for the rest as well.
    late_at: Time,
    /// When it is given up.
    stalled_at: Time,
    /// When it was made, or the last chunk came.
    since: Time,
}

impl Copying {
    pub(super) fn new(chunking: Chunking) -> Copying {
        Copying {
            chunking,
            have: vec![None; chunking.count() as usize],
            missing: chunking.count() as usize,
            progress: Vec::new(),
            asked: Vec::new(),
            donors: Vec::new(),
            pace: Patience::new(STATE_LATE, STATE_LATE_MIN, 2),
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
        (0..self.chunking.count()).any(|chunk| self.is_open(chunk))
    }

    fn is_open(&self, chunk: u32) -> bool {
        let is_among = |chunks: Chunks| (chunks.first..chunks.first + chunks.count).contains(&chunk);
        self.have[chunk as usize].is_none() && !self.asked.iter().any(|asked| is_among(asked.chunks))
    }

    /// Requests under way.
    pub(super) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// Chunks that are there, and chunks of the state.
    pub(super) fn chunks(&self) -> (usize, usize) {
        (self.have.len() - self.missing, self.have.len())
    }

    /// Gives up donors from which nothing comes; returns whether there were any.
    pub(super) fn give_up_stalled(&mut self, now: Time) -> bool {
        let before = self.asked.len();
        self.asked.retain(|asked| asked.stalled_at > now);
        self.asked.len() < before
    }

    /// Requests that are to be repeated now: lost, or their refusal was.
    pub(super) fn repeat_due(&mut self, now: Time) -> Vec<(PeerId, u64, Chunks)> {
        let due = self.asked.iter_mut().filter(|asked| asked.repeat_at <= now);
        due.map(|asked| {
            asked.repeat_at = now + STATE_REPEAT_PERIOD;
            (asked.peer, asked.request, asked.chunks)
        })
        .collect()
    }

    /// What the next donor is to be asked for, where `donors` of them could be asked now: an equal share of what nobody
    /// has been asked for, or what somebody is late with.
    pub(super) fn next_share(&mut self, now: Time, donors: usize) -> Option<Chunks> {
        let count = self.chunking.count();
        if let Some(first) = (0..count).find(|chunk| self.is_open(*chunk)) {
            let open = (first..count).filter(|chunk| self.is_open(*chunk)).count();
            let share = open.div_ceil(donors.max(1)).min(STATE_CHUNKS_MAX as usize);
            let count = (first..count).take(share).take_while(|chunk| self.is_open(*chunk)).count() as u32;
            return Some(Chunks { first, count });
        }
        let late = self.asked.iter_mut().find(|asked| asked.late_at <= now)?;
        // Whoever helps out may fail, too.
        late.late_at = now + self.pace.limit();
        let Chunks { first, count } = late.chunks;
        let is_missing = |chunk: &u32| self.have[*chunk as usize].is_none();
        let first = (first..first + count).find(is_missing)?;
        let count = (first..late.chunks.first + count).take_while(is_missing).count() as u32;
        Some(Chunks { first, count })
    }

    /// A donor was asked.
    pub(super) fn ask(&mut self, now: Time, peer: PeerId, request: u64, chunks: Chunks) {
        self.asked.push(Asked {
            peer,
            request,
            chunks,
            repeat_at: now + STATE_REPEAT_PERIOD,
            late_at: now + self.pace.limit(),
            stalled_at: now + STATE_STALL,
            since: now,
        });
    }

    /// Whether this chunk was asked of `peer`, and has how many values.
    pub(super) fn expects(&self, peer: PeerId, request: u64, chunk: u32) -> Option<usize> {
        let is_it = |asked: &&Asked| asked.peer == peer && asked.request == request;
        let asked = self.asked.iter().find(is_it)?;
        (asked.chunks.first..asked.chunks.first + asked.chunks.count)
            .contains(&chunk)
            .then(|| self.chunking.length(chunk))
    }

    /// Takes in a chunk that was expected and is sound; returns whether the donor has sent all that it was asked for.
    pub(super) fn take(&mut self, now: Time, peer: PeerId, chunk: u32, payload: Payload, progress: f64) -> bool {
        let place = &mut self.have[chunk as usize];
        if place.is_none() {
            *place = Some(payload);
            self.missing -= 1;
            self.progress.push(progress);
            if !self.donors.contains(&peer) {
                self.donors.push(peer);
            }
        }
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.peer == peer) else { return false };
        self.pace.record(now - asked.since);
        asked.since = now;
        asked.repeat_at = NEVER;
        asked.late_at = now + self.pace.limit();
        asked.stalled_at = now + STATE_STALL;
        // What others have brought meanwhile, nobody waits for any more.
        let have = &self.have;
        let is_done = |asked: &Asked| {
            let chunks = asked.chunks.first..asked.chunks.first + asked.chunks.count;
            chunks.into_iter().all(|chunk| have[chunk as usize].is_some())
        };
        let before = self.asked.len();
        self.asked.retain(|asked| !is_done(asked));
        self.asked.len() < before
    }

    /// The request is refused, or the donor gone: its chunks are open again.
    pub(super) fn drop_request(&mut self, is_dropped: impl Fn(&Asked) -> bool) -> bool {
        let before = self.asked.len();
        self.asked.retain(|asked| !is_dropped(asked));
        self.asked.len() < before
    }

    /// The whole state, with its swarm progress and its donors, once every chunk is there. The progress is the median of
    /// the chunks': a donor that forges it has to have sent most of them.
    pub(super) fn whole(&self) -> Option<(Vec<Payload>, f64, Vec<PeerId>)> {
        let chunks: Vec<Payload> = self.have.iter().cloned().collect::<Option<_>>()?;
        let mut progress = self.progress.clone();
        progress.sort_by(f64::total_cmp);
        Some((chunks, progress[(progress.len() - 1) / 2], self.donors.clone()))
    }
}

/// Later than any deadline.
const NEVER: Time = Time::MAX;
