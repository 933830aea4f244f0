//! The output directory: results for machines, a summary for people, plots. Whether it can be written is known before
//! any work.

use std::path::{Path, PathBuf};

use murmur_sim::report::{Plot, RunReport};

use crate::console::note;
use crate::failure::{ExitCode, Failure};

/// Name of the results in an output directory.
pub(super) const RESULTS: &str = "results.json";

/// An empty file that says whose an output directory is.
const MARK: &str = ".murmur-output";

/// What earlier versions, which left no mark, have written: the summary, and one of the others.
const EARLIER: (&str, [&str; 3]) = ("summary.txt", ["series.csv", "sweep.csv", "curves.csv"]);

/// A directory that can be written.
pub(in crate::commands) struct Output {
    directory: PathBuf,
    /// Whether it was not there.
    is_new: bool,
    /// Whether each file is told of.
    tells: bool,
}

impl Output {
    /// Makes the directory where needed, and tries to write into it. One with files of others is refused: ours have usual names.
    pub(in crate::commands) fn open(directory: Option<&Path>) -> Result<Option<Output>, Failure> {
        let Some(directory) = directory else { return Ok(None) };
        let has_files = std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
        if has_files && !is_ours(directory) {
            let message = format!("{} holds files that murmur has not written", directory.display());
            return Err(Failure::new(ExitCode::Files, message)
                .hint("choose a new folder with --output: files in this one might be written over"));
        }
        let is_new = !directory.exists();
        let tried = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(directory.join(MARK), b""));
        tried.map_err(|error| unwritable(directory, &error))?;
        Ok(Some(Output { directory: directory.to_owned(), is_new, tells: true }))
    }

    /// Where nothing came of the work: a folder that was made for it goes again.
    pub(in crate::commands) fn take_back(self) {
        if self.is_new {
            let _ = std::fs::remove_file(self.directory.join(MARK)).and_then(|()| std::fs::remove_dir(&self.directory));
        }
    }

    /// A folder in it, of whose files nothing is told.
    pub(super) fn below(&self, name: &str) -> Result<Output, Failure> {
        let directory = self.directory.join(name);
        std::fs::create_dir_all(&directory).map_err(|error| unwritable(&directory, &error))?;
        Ok(Output { directory, is_new: false, tells: false })
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

fn is_ours(directory: &Path) -> bool {
    let is_there = |name: &str| directory.join(name).is_file();
    is_there(MARK) || is_there(EARLIER.0) && EARLIER.1.into_iter().any(is_there)
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
        .hint("choose another directory with --output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_files_of_others_is_refused_and_one_of_ours_is_used_again() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
        for _ in 0..2 {
            let output = Output::open(Some(&ours)).expect("new, or of ours").expect("one");
            output.write("index.html", "a page").expect("written");
        }
        std::fs::create_dir(&others).expect("created");
        std::fs::write(others.join("index.html"), "mine").expect("written");
        let failure = Output::open(Some(&others)).err().expect("a refusal");
        assert!(failure.remedy().contains("--output"), "{failure}");
        assert_eq!(std::fs::read_dir(&others).expect("there").count(), 1, "nothing is left there");
        for name in ["summary.txt", "curves.csv"] {
            std::fs::write(others.join(name), "").expect("written");
        }
        assert!(Output::open(Some(&others)).is_ok(), "as an earlier version leaves it");
    }
}
