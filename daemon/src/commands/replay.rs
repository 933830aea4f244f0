//! `murmur replay --check`: does a recorded node decide the same again?

use std::path::Path;

use murmur_protocol::replay::{Checked, Ending, ReplayError, check};

use crate::cli::ReplayOptions;
use crate::console::figures::counted;
use crate::console::print_line;
use crate::failure::{ExitCode, Failure};

/// A recording is no larger than this, in bytes: one that is, is something else, and is not read into memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub(super) fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let path = &options.check;
    let bytes = read(path)?;
    let checked = check(&bytes, env!("CARGO_PKG_VERSION")).map_err(|error| {
        let message = format!("cannot replay {}: {error}", path.display());
        let hint = match error {
            ReplayError::Foreign => "`murmur start --record-core FILE` writes one",
            ReplayError::OtherVersion { .. } => "replay it with the version that has recorded it",
            ReplayError::Damaged { .. } => {
                "copy the file again, if there is another copy; what stands after the damage is lost"
            }
        };
        Failure::new(ExitCode::Files, message).hint(hint)
    })?;
    if let Some(difference) = &checked.difference {
        print_line(&format!("event {} at {:?}: {}", difference.entry, difference.time, difference.event));
        let what = match difference.effect {
            0 => "all effects are the same, and the node's next deadline is another".to_owned(),
            number => format!("effect {number} differs; recorded were {}, and now it decides:", difference.recorded),
        };
        print_line(&what);
        difference.now.iter().for_each(|effect| print_line(&format!("  {effect}")));
        let message = format!("the decisions differ at event {}", difference.entry);
        return Err(Failure::new(ExitCode::Failure, message)
            .hint("if this binary is the one that has recorded it, that is a bug: please report it with the recording")
            .into());
    }
    print_line(&words(&checked));
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(ExitCode::Files, format!("cannot read {}: {error}", path.display()))
            .hint("`murmur start --record-core FILE` writes one")
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(failed(std::io::Error::other("it is too large for a recording")));
    }
    std::fs::read(path).map_err(failed)
}

fn words(checked: &Checked) -> String {
    let ending = match checked.ending {
        Ending::Whole => "to the node's end",
        Ending::Full => "until the file was as large as it may be",
        Ending::Overtaken => "until the disk was too slow",
        Ending::BrokenOff => "until the recording breaks off: the process was killed, or still runs",
    };
    format!(
        "{} and {} in {:?}, {ending}: all decisions are the same",
        counted(checked.events, "event"),
        counted(checked.effects, "decision"),
        checked.time
    )
}
