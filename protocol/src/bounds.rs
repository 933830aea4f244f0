//! Every bound and period of the core, with its reason.
//!
//! Limits that depend on the model's size derive from the layout: see
//! [`payload_bytes_max`] and [`inbound_bytes_budget`].

mod membership;

use std::time::Duration;

pub use membership::*;

use crate::numerics::{CodeWidth, codes_bytes, scales_bytes};

/// The slowest link that bulk is meant for, in bytes a second: 2 Mbit/s.
const BULK_RATE_MIN: u64 = 256 * 1024;

/// The least that an own exchange is given, whatever was seen: waiting costs nothing but the next exchange (a guess).
pub const EXCHANGE_TIMEOUT_MIN: Duration = Duration::from_secs(3);

/// After exchanges in vain the next is given twice as long, this often: a partner whose step takes minutes is met in the
/// end.
pub const EXCHANGE_DOUBLINGS_MAX: u32 = 4;

/// Steps of this node for which an exchange may wait beside all else: the starter takes its snapshot and its correction between two
/// steps, and so does the responder, whose steps may be as long.
pub const STEPS_OF_AN_EXCHANGE: u32 = 4;

/// A longer step is not waited for (a guess: who takes longer for one trains alone).
pub const STEP_TIME_MAX: Duration = Duration::from_secs(20 * 60);

/// One part in so many of the time that a starter gives an exchange is left for the reply to arrive (a guess).
pub const REPLY_SHARE: u32 = 8;

/// An exchange is proposed when the step under way ends within this: time for an answer, and for another partner where it is no.
pub const PROPOSED_BEFORE_STEP_ENDS: Duration = Duration::from_secs(3);

/// What an exchange may take beside its bytes: step boundaries and merges on both sides, repeated messages.
const EXCHANGE_TIMEOUT_BASE: Duration = Duration::from_secs(20);

/// An unanswered proposal is repeated after this, until it is known how fast partners answer: longer than most round
/// trips, and shorter than TCP's first second (RFC 6298), for a proposal is a hundred bytes and each node has one open.
pub const PROPOSAL_REPEAT_PERIOD: Duration = Duration::from_millis(300);

/// Repeats that go unanswered come half as often, this many times: a proposal is small, so once in 1.2 s does no harm.
pub const PROPOSAL_DOUBLINGS_MAX: u32 = 2;

/// Who has not answered after so many repeats is not waited for any longer: three seconds on a quick link, and where a third
/// of the messages are lost, one partner in thirty that is there. While a part of the swarm is out of reach, two that still
/// reach each other would otherwise both wait for those who are not there.
pub const PROPOSAL_REPEATS_MAX: u32 = 5;

/// The least wait before a proposal is repeated (TCP's on Linux is 200 ms). With a third of the messages lost, repeats
/// after half a second cost a third of the exchanges.
pub const PROPOSAL_REPEAT_PERIOD_MIN: Duration = Duration::from_millis(150);

/// What a starter skips when a partner says that a number is over: its clock was set back since an earlier life, which
/// counted microseconds. 2^32 of them are 72 minutes; each further refusal in a row doubles it.
pub const NUMBERS_SKIPPED: u64 = 1 << 32;

/// The most that is skipped at once, 203 days: a clock that begins in 1970 has caught up after some hundred refusals, and
/// a peer that always refuses needs a million in a row to use the numbers up.
pub const NUMBERS_SKIPPED_MAX: u64 = 1 << 44;

/// Partners tried for one due exchange before it waits for the next interval.
pub const PARTNERS_TRIED_MAX: u32 = 3;

/// Who has accepted an exchange and then said nothing is passed over for so many times as long as it was waited for, where others
/// can be asked: one that never answers takes a seventeenth of a node's time at most (a guess).
pub const SILENT_PASSED_OVER_FACTOR: u32 = 16;

/// Partners of whom such silences are remembered: as many as may be connected.
pub const SILENT_PARTNERS_MAX: usize = CONNECTIONS_MAX;

/// Links that a node has at most; each keeps a reference of two bytes a parameter.
pub const LINKS_MAX: usize = 5;

/// Exchanges answered at once. Each holds a snapshot, four bytes a parameter, until it is encoded, and then both sides'
/// codes.
pub const RESPONDING_MAX: usize = 2;

/// A starter that has our codes keeps its place for so many times as long as the exchange took until then, whoever else wants to
/// begin. Its scales came over the same line before, a hundredth of its codes, and ours went the other way: a line that carries
/// down forty times what it carries up needs no longer for the rest.
pub const CODES_WAIT_FACTOR: u32 = 32;

/// Replies kept for starters that did not get them, one byte a parameter each, at most until the deadline.
pub const REPLY_CACHE_MAX: usize = 4;

/// Starters whose last finished exchange is remembered, so that a late duplicate is not taken for a new exchange.
pub const FINISHED_STARTERS_MAX: usize = 1024;

/// Peers with a reputation: as many as a view, and as many again that came and went.
pub const REPUTATIONS_MAX: usize = 256;

/// The first ban of a peer; each further one is twice as long.
pub const BAN_FIRST: Duration = Duration::from_secs(60);

/// The longest ban: a machine that was repaired gets back in within the hour.
pub const BAN_MAX: Duration = Duration::from_secs(3600);

/// The most steps that a run can have: see `schedule.total_steps`.
pub const PROGRESS_MAX: f64 = 1e9;

/// Exchanges over which a joiner's weight grows to its full value (a guess: enough to be within the swarm's spread).
pub const RAMP_EXCHANGES: u32 = 5;

/// Donors that a joiner tries before it believes the last one.
pub const DONORS_MAX: u32 = 3;

/// A doubted donor is not asked again for this long: where there is no other, waiting is better than believing it.
pub const DOUBT_PERIOD: Duration = Duration::from_secs(60);

/// Checks of one copied model that are not answered, after which no more are asked for (a guess: over a bad line two in a
/// row happen).
pub const CHECKS_UNANSWERED_MAX: u32 = 3;

/// Objections of different peers with which a copied model is dropped: two outvote the donor.
pub const OBJECTIONS_MAX: usize = 2;

/// A copied model further from a second peer's than this many of that peer's clip norms is doubted (a guess: a clip norm
/// is 2.5 usual distances).
pub const SPOT_CHECK_FACTOR: f64 = 4.0;

/// A second peer's clip norm is believed up to this many times the one that its distance from the copy gives (a guess: where
/// that peer has just averaged with the donor, they are nearer than is usual).
pub const CLIP_TOLD_FACTOR: f64 = 10.0;

/// An old copy may be further from a second peer's model, but by no more than this share of its own length. Two models that
/// have nothing in common are further apart than either is long.
pub const AGED_SHARE: f64 = 0.5;

/// Shards of a corpus that nodes share: their hashes are in the manifest, 67 bytes each, which travels in every
/// handshake; and a node tells what it holds as bits of a `u128`.
pub const SHARDS_MAX: usize = 128;

/// The least that a founder cuts a corpus into by itself, in bytes: below it, asking takes longer than sending.
pub const SHARD_BYTES_MIN: u64 = 64 * 1024;

/// The largest shard, in bytes: with [`SHARDS_MAX`] of them a corpus has 128 GiB, more than nodes hold in memory.
pub const SHARD_BYTES_MAX: u64 = 1 << 30;

/// Members that are to hold a shard: two may vanish at once, and there is still a third (a guess, as file systems do).
pub const SHARD_REPLICAS: usize = 3;

/// Fragments that a model may be exchanged in.
pub const FRAGMENTS_MAX: u16 = 64;

/// Parameters of a fragment at most, where fragments are chosen by size. An exchange of pairs holds up to 20 bytes for each;
/// with as many as this a model of 100 M parameters is trained within 21 bytes a parameter.
pub const FRAGMENT_PARAMETERS: usize = 12 << 20;

/// When a busy node may be asked again.
pub const BUSY_RETRY: Duration = Duration::from_millis(300);

/// When a joiner may be asked again at the earliest, if it does not begin by itself: proposals every 300 ms of each member took
/// two fifths of a line of 64 kbit/s from the model, and these take a fiftieth. While much of its copy is to come it says half
/// of what that takes. After 20 s whatever the copy, those who joined at once had drifted so far apart on a busy machine that
/// they copied each other's models.
pub const JOINING_RETRY: Duration = Duration::from_secs(5);

/// Norms of recent exchanges behind the clip norm.
pub const CLIP_HISTORY: usize = 15;

/// Norms needed before their median counts; until then the clip norm depends on the model's own travel.
pub const CLIP_HISTORY_MIN: usize = 5;

/// The first clip norm of a copied model: so many times as far as own training has moved it since. With three times as far two liars in
/// ten led an honest member away for good in 11 of 100 swarms, and in one so; with as far as that those who join a young run let so
/// little in that its founder takes itself for far off.
pub const FIRST_CLIP_OF_COPY: f64 = 1.5;

/// The same of a model with which the run began. With three times as far 6 of 60 swarms lost somebody, and 11 of 800 so.
pub const FIRST_CLIP: f64 = 0.5;

/// A partner's declared speed counts within this factor of the median seen, either way.
pub const WEIGHT_CLAMP: f32 = 4.0;

/// Joiners that are sent the model at once; they share one copy of it.
pub const STATE_TRANSFERS_MAX: usize = 4;

/// A joiner has its place for so long, where members of its range of addresses have no more places than those of a newcomer's. Who
/// gives way asks elsewhere, or here again, and keeps what has come: where more joiners than [`STATE_TRANSFERS_MAX`] take that long,
/// they take turns (a guess: four that read as slowly as they may would otherwise keep all others out for hours).
pub const STATE_TURN: Duration = Duration::from_secs(600);

/// Values in a chunk of a state: 16 KiB, which a link of 64 kbit/s carries in two seconds. Chunks are what is asked for and
/// counted; so small that none has to be resumed where its donor dies. All nodes of a swarm must agree.
pub const STATE_CHUNK_VALUES: usize = 4096;

/// Chunks sent in one transfer at most, 4 MiB: on machines that are busy with training each transfer costs some waits for
/// a processor, so that smaller ones are slower where the line is fast.
pub const STATE_PART_CHUNKS_MAX: u32 = 256;

/// What a transfer of chunks is to take on its line: what is lost where a donor dies, and what others on the line wait for
/// (a guess between the few milliseconds that a transfer costs and the seconds that a slow link may lose).
pub const STATE_PART_TIME: Duration = Duration::from_secs(2);

/// Chunks asked of one donor at a time, 64 MiB.
pub const STATE_CHUNKS_MAX: u32 = 4096;

/// Requests that were given up or shortened and of which chunks may still come: some of each donor of a copy.
pub const STATE_REQUESTS_REMEMBERED: usize = 32;

/// Half of what a donor is still to send is asked of another that has nothing to do, where the rest would take longer than
/// this: the parts that are on their way already, twice over (a guess).
pub const STATE_SHARED_FROM: Duration = Duration::from_secs(8);

/// A donor's copy of its state, or of [`STATE_COPY_VALUES`] of it, serves requests for this long: one copy for each joiner, beside
/// chunks of the one before that are still on their way. Older ones would be far behind the model (a guess); with a new one for each
/// request a joiner waits for a step boundary each time.
pub const STATE_COPY_KEPT: Duration = Duration::from_secs(3);

/// Values that a donor copies of its state at once: 64 MiB, as many as a request asks for. Training stands still for the time of such a
/// copy, so that one joiner has no other within [`STATE_COPY_KEPT`], unless it has taken half of it by then.
pub const STATE_COPY_VALUES: usize = STATE_CHUNK_VALUES * STATE_CHUNKS_MAX as usize;

/// Nor does it serve requests after so many own steps (a guess): a tiny model takes thousands in three seconds.
pub const STATE_COPY_STEPS: u64 = 100;

/// Parts on their way to one joiner at once: one on the line, one that is being confirmed and replaced, which takes a second or
/// more on busy machines, and one that follows, so that the line is not idle meanwhile.
pub const STATE_PARTS_SENT_MAX: usize = 3;

/// Parts on their way to all joiners at once: to those that are served, and to as many that have given way to others, to which what
/// was sent is still on its way ([`STATE_TURN`]).
pub const STATE_PARTS_ON_THEIR_WAY_MAX: usize = 2 * STATE_TRANSFERS_MAX * STATE_PARTS_SENT_MAX;

/// Donors that a joiner copies from at once; more share a downlink that few can fill.
pub const STATE_DONORS_MAX: usize = 4;

/// A donor from which no chunk comes for this long is given up: its step may take as long as that.
pub const STATE_STALL: Duration = Duration::from_secs(120);

/// Another donor is asked for the chunks of one that is this late, until it is known how fast chunks come.
pub const STATE_LATE: Duration = Duration::from_secs(10);

/// The least lateness, twice what a part is to take.
pub const STATE_LATE_MIN: Duration = Duration::from_secs(4);

/// An unanswered request for a state is repeated this often.
pub const STATE_REPEAT_PERIOD: Duration = Duration::from_secs(1);

/// A joiner asks the next peer this long after a refusal.
pub const STATE_RETRY: Duration = Duration::from_millis(500);

/// How often a joiner that nobody can help says so.
pub const WAITING_NOTICE_PERIOD: Duration = Duration::from_secs(10);

/// How long a node whose model is older than what it has exchanged looks for somebody to copy it from. A guess: members are
/// found in seconds.
pub const OUTDATED_FOR: Duration = Duration::from_secs(60);

/// How much longer it waits for the rest of a copy that has begun, while nobody sends any of it. A guess.
pub const OUTDATED_BEGUN_FOR: Duration = Duration::from_secs(600);

/// The last exchange of a leaving node may take this long.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The exchanges after the last step may take this long in all.
pub const SETTLING_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest wait that a peer may ask for in `retry_after_ms`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Effects waiting for a reply. More would mean that a driver swallows them.
pub const PENDING_MAX: usize = 64;

/// Length of the state that a joiner copies, in bytes: θ as `f32`.
pub fn state_bytes(parameters: usize) -> usize {
    4 * parameters
}

/// Bytes of the largest part of a model's state, or of the whole state where that is smaller.
fn state_part_bytes(parameters: usize) -> usize {
    state_bytes(parameters).min(4 * STATE_CHUNK_VALUES * STATE_PART_CHUNKS_MAX as usize)
}

/// The largest payload that a peer may announce for a model of so many parameters, in bytes: a part of the state, or
/// what starts a first exchange (a little over two bytes a parameter).
pub fn payload_bytes_max(parameters: usize) -> u64 {
    state_part_bytes(parameters).max(proposal_bytes(parameters)) as u64
}

/// The most bytes of a payload in a synchronous run: a replica with the optimizer's two moments, or the outer one's
/// momentum, and a few counters.
pub fn replica_bytes_max(parameters: usize) -> u64 {
    4 * (3 * parameters as u64 + 64)
}

/// Bytes of payloads that may be on their way in at once in a synchronous run, where members send so many bytes of contributions to
/// one of them at once. All of them may be of one network, which has a quarter. Two groups that meet may each send a replica: with room
/// for one and a half, each of two holds what the other one needs. What is held is counted in whole units, hence the addend.
pub(crate) fn synchronous_inbound_budget(parameters: usize, contributions: u64) -> u64 {
    4 * contributions.max(2 * (replica_bytes_max(parameters) + (1 << 20)))
}

/// What a starter sends at most: scales and codes.
fn proposal_bytes(parameters: usize) -> usize {
    scales_bytes(parameters) + codes_bytes(parameters, CodeWidth::Sixteen)
}

/// How long so many bytes take on the slowest link that bulk is meant for.
pub(crate) fn bulk_time_max(bytes: u64) -> Duration {
    Duration::from_secs(bytes / BULK_RATE_MIN)
}

/// An exchange of a model of so many parameters is void after this long. (A partner that is gone is noticed sooner, by
/// its connection.)
pub fn exchange_timeout(parameters: usize) -> Duration {
    EXCHANGE_TIMEOUT_BASE + bulk_time_max(2 * proposal_bytes(parameters) as u64)
}

/// Bytes of payloads that may be on their way in at once: what all donors send, and all exchanges under way, so that a
/// peer that announces the largest payload and dawdles does not keep the others' codes out.
pub fn inbound_bytes_budget(parameters: usize) -> u64 {
    let exchanges = (RESPONDING_MAX + 1) * proposal_bytes(parameters);
    let parts = STATE_DONORS_MAX * STATE_PARTS_SENT_MAX * state_part_bytes(parameters);
    (parts + exchanges) as u64
}
