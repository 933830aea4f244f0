//! The output directory: results for machines, a summary for people, plots. Whether it can be written is known before
//! any work.

use std::path::{Path, PathBuf};

use murmur_sim::report::{Plot, RunReport};

use crate::console::note;
use crate::failure::{ExitCode, Failure};

/// Name of the results in an output directory.
pub(super) const RESULTS: &str = "results.json";

/// A directory that can be written.
pub(in crate::commands) struct Output {
    directory: PathBuf,
    /// Whether each file is told of.
    tells: bool,
}

impl Output {
    /// Makes the directory where needed, and tries to write into it.
    pub(in crate::commands) fn open(directory: Option<&Path>) -> Result<Option<Output>, Failure> {
        let Some(directory) = directory else { return Ok(None) };
        let probe = directory.join(".murmur-sim-probe");
        let tried = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&probe, b""))
            .and_then(|()| std::fs::remove_file(&probe));
        tried.map_err(|error| unwritable(directory, &error))?;
        Ok(Some(Output { directory: directory.to_owned(), tells: true }))
    }

    /// A folder in it, of whose files nothing is told.
    pub(super) fn below(&self, name: &str) -> Result<Output, Failure> {
        let directory = self.directory.join(name);
        std::fs::create_dir_all(&directory).map_err(|error| unwritable(&directory, &error))?;
        Ok(Output { directory, tells: false })
    }

    pub(super) fn write_results(&self, report: &RunReport) -> anyhow::Result<()> {
        self.write(RESULTS, &serde_json::to_string(report)?)
    }

    pub(super) fn write_plots(&self, plots: &[Plot]) -> anyhow::Result<()> {
        plots.iter().try_for_each(|plot| self.write(plot.file_name, &plot.svg))
    }

    pub(in crate::commands) fn write(&self, name: &str, content: &str) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        std::fs::write(&path, content).map_err(|error| unwritable(&path, &error))?;
        if self.tells {
            note(&format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
        .hint("choose another directory with --output")
}
