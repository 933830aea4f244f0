//! Where everything of a test lies: a run file, and the folders of its daemons. It goes with the test.

use std::path::{Path, PathBuf};

use murmur_tests::{Daemon, folder, text, write_run};

use crate::MURMUR;

pub(crate) struct Place {
    folder: tempfile::TempDir,
    run_file: PathBuf,
}

impl Place {
    /// With this run file.
    pub(crate) fn new(run: &str) -> Place {
        let folder = folder();
        Place { run_file: write_run(folder.path(), run), folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Something in it, which need not be there.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run_file(&self) -> &str {
        text(&self.run_file)
    }

    /// A daemon in a folder of this name.
    pub(crate) fn spawn(&self, name: &str, arguments: &[&str]) -> Daemon {
        Daemon::spawn(MURMUR, &self.at(name), arguments)
    }

    /// The same that founds a swarm with the run file.
    pub(crate) fn start(&self, name: &str, more: &[&str]) -> Daemon {
        self.spawn(name, &[&["start", self.run_file()], more].concat())
    }
}
