//! Exchanges with partners: one that we start, a few that we answer.
//!
//! ```text
//!   starter                                    responder
//!   PROPOSE ──────────────────────────────────► has room?
//!          ◄────────────────────────────────── ACCEPT (or REJECT)
//!   snapshot, encode
//!   steps, checks, codes ═════════════════════► snapshot, merge
//!          ◄═════════════════════════════════ checks, codes, digest
//!   merge; θ += correction                      θ += correction
//! ```
//!
//! A small proposal goes first, so that no byte of a model travels to a partner that has no room for it. Whatever gets
//! lost, the starter repeats the small proposal under the same number, and the responder says or sends again what it
//! had said or sent; it merges only once.
//!
//! With γ = 0 an exchange is a probe: it tells how far apart two models are and moves neither.

mod averaging;
mod cadence;
mod clip;
mod gain;
mod patience;
mod place;
mod responder;
mod starter;
mod terms;

pub(crate) use averaging::{Averaging, is_progress_odd};
pub use gain::stability_bound;
pub(crate) use patience::Patience;
pub(crate) use responder::{Admission, Responder};
pub(crate) use starter::{Ended, Outcome, Starter};
pub(crate) use terms::screen;
