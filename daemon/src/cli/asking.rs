//! Options of the commands that ask a running daemon: `status`, `ticket`, `id`.

use std::path::PathBuf;

use clap::Args;

use super::headings::OUTPUT;
use crate::console::Console;

/// Options of `status` and `ticket`.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// The run: its folder or its name [default: of the daemons on this machine, the one that started last].
    pub run: Option<PathBuf>,
    /// Where the daemon answers, where no run is given.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}

/// Options of `id`.
#[derive(Debug, Args)]
pub struct IdOptions {
    /// Folder of the node [default: the daemon that runs on this machine].
    #[arg(long, env = "MURMUR_DATA_DIR", value_name = "FOLDER")]
    pub data_dir: Option<PathBuf>,
    /// Where that daemon answers.
    #[arg(long, env = "MURMUR_STATUS_ADDRESS")]
    pub address: Option<String>,
    /// text: lines for people; json: one object.
    #[arg(long, value_enum, default_value = "text", help_heading = OUTPUT, hide_possible_values = true)]
    pub format: Console,
}
