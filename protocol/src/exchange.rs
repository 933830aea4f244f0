//! Exchanges with partners: one that we start, a few that we answer.
//!
//! ```text
//!   starter                                    responder
//!   PROPOSE ──────────────────────────────────► has room?
//!          ◄────────────────────────────────── ACCEPT (or REJECT)
//!   snapshot, encode
//!   scales ═══════════════════════════════════► snapshot, encode
//!   codes ════════════════════════════════════►
//!          ◄═══════════════════════════════════ codes
//!                                               merge; θ += correction
//!          ◄═══════════════════════════════════ merged, digest
//!   merge; θ += correction
//! ```
//!
//! A small proposal goes first, so that no byte of a model travels to a partner that has no room for it. The scales, two
//! bytes a block, are all that the responder needs to encode: so both sides' codes travel at the same time. The
//! responder merges first, and the starter only what the responder says it has merged. Whatever gets lost, the starter
//! repeats the small proposal under the same number, and both say or send again what has not arrived; each merges only
//! once.
//!
//! With γ = 0 an exchange is a probe: it tells how far apart two models are and moves neither.

mod averaging;
mod cadence;
mod clip;
mod gain;
mod last_merges;
mod links;
mod member_count;
mod outbound;
mod outcome;
mod outlier;
mod pairwise;
mod part_state;
mod progress;
mod responder;
mod reunion;
mod silent;
mod starter;
mod step_time;
mod terms;
mod timeout;
mod turns;
mod uplink;

pub use gain::stability_bound;
pub(crate) use last_merges::LastMerges;
pub(crate) use outcome::{Ended, Outcome};
pub(crate) use pairwise::{Pairwise, Unfit};
pub(crate) use progress::is_progress_odd;
pub(crate) use responder::Admission;
pub(crate) use terms::screen;
pub(crate) use timeout::TimeoutEstimator;
