//! Programs that people follow experiments with: what a node tells of itself, in their formats.
//!
//! ```text
//! hub ──► queue of bounded size ──► TensorBoard (event files)
//!  └────► journal ──► from a place that is kept ──► MLflow (HTTP)
//! ```
//! Each has a thread of its own. Training waits for none of them: what cannot be written or sent is said in one line, counted
//! or kept for later, and the node goes on.

pub mod event_file;
pub mod mlflow;
pub mod scalars;
pub mod tensorboard;

pub use mlflow::{LastRecords, Mlflow};
pub use tensorboard::TensorBoard;
