//! Options of `replay`.

use std::path::PathBuf;

use clap::Args;

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// A recording of `murmur start --record-core FILE`.
    #[arg(long, value_name = "FILE", required = true)]
    pub check: PathBuf,
}
