//! What a node tells of itself: one stream of [records](record), and one [picture](picture) that every view draws.
//!
//! ```text
//! reports, notices ──► source ──► hub ──► journal (journal/ in the data directory)
//!                                  ├────► /api/v1 (views that follow a daemon)
//!                                  └────► Picture::apply ◄── a journal that is played again
//! ```
//! Nobody waits for a reader: sinks have bounded queues, and what they miss is counted in a record.

pub mod cursor;
pub(crate) mod doing;
pub(crate) mod failures;
pub mod hub;
pub mod journal;
pub(crate) mod metrics;
pub(crate) mod outlook;
pub mod picture;
pub mod record;
pub mod report;
pub mod rings;
pub(crate) mod source;
pub mod synchronous;
pub mod traffic;

pub use hub::Hub;
pub use journal::Journal;
pub use picture::{Metric, NodePicture, PeerPicture, Picture};
pub use record::{Body, Record};
