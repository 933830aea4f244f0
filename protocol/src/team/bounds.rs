//! Limits of a team: each with the reason for its size.

use std::time::Duration;

/// Helpers of a team, at most: all their orders are tried when a cut is sought, and a captain's link carries the streams of all.
pub const HELPERS_MAX: usize = 6;

/// Helpers that a captain remembers, connected or not: what it has learned of each. A guess.
pub const HELPERS_KNOWN_MAX: usize = 16;

/// Layers of a model, at most: four times what the largest models of today have.
pub const LAYERS_MAX: u32 = 512;

/// Tensors of a stage, at most: their squares, 8 bytes each, fit one control message.
pub const TENSORS_MAX: u32 = 3_000;

/// Microbatches of a batch, at most. A guess: with more, the bubble is below a thousandth for any team.
pub const MICROBATCHES_MAX: u32 = 16_384;

/// Microbatches whose activations a stage holds, at most, and frames that wait for it in each direction. Three for each of
/// [`HELPERS_MAX`] stages that follow, and the last one.
pub const IN_FLIGHT_MAX: u32 = 32;

/// Rows of a stream (sequences times tokens), at most.
pub const ROWS_MAX: u32 = 1 << 20;

/// Width of a stream, at most: beyond the largest models of today.
pub const WIDTH_MAX: u32 = 1 << 16;

/// Bytes of a frame's stream, at most: with [`IN_FLIGHT_MAX`] frames each way this is what a hostile captain could make a helper
/// hold. A guess: 32,768 rows of width 8,192 in 32 bits.
pub const FRAME_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a run's text in an assignment, at most: as in a handshake.
pub const RUN_TEXT_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a ticket in a membership, at most: four members with a dozen addresses each take half of it.
pub const TICKET_BYTES_MAX: usize = 4 * 1024;

/// Numbers of epochs, batches, revisions and requests stay below this, so that counting on never overflows.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Characters of a reason that is told to the other side, at most.
pub const REASON_BYTES_MAX: usize = 500;

/// Within which time a new cut has to repay what its copying costs.
pub const REPAYS_WITHIN: Duration = Duration::from_secs(600);

/// Share by which a new cut has to be faster than the one there is, whatever it costs: below that measurements say nothing. A guess.
pub const GAIN_MIN: f64 = 0.05;

/// How often a captain that waits for helpers says so.
pub const WAITING_NOTICE_PERIOD: Duration = Duration::from_secs(10);

/// For how long the captain exchanges all layers once a helper has reached nobody of the swarm. A guess: a machine that was started anew
/// is back within minutes.
pub const APART_FOR: Duration = Duration::from_secs(300);

/// For how long a helper stays a member of the swarm while no batch is under way: its captain may wait for others, and be in its quiet
/// hours. A guess, longer than an evaluation.
pub const MEMBER_IDLE_MAX: Duration = Duration::from_secs(120);
