//! Sections of a node file on where things lie and what is written: the base model, data, checkpoints, the journal, trackers.

use std::path::{Path, PathBuf};

use murmur_training::DataPlace;

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::{Daemon, Local, Machine};
use super::range::Range;
use crate::cli::headings::{DATA, TRACKING, TRAINING};

section! {
    /// Where the model lies that a run begins from.
    pub struct ModelSettings {
        /// Folder of a model of Hugging Face (config.json, safetensors) to begin from, or hf://OWNER/NAME.
        ///
        /// Empty: none. The founder's becomes the run's; where the run trains adapters, every node needs it.
        base: PathBuf = PathBuf::new() =>
            flag(Flag::new("base", "FOLDER", TRAINING).of(&[Machine, Local]));
    }
}

section! {
    /// Where data lies.
    pub struct DataSettings {
        /// Files and folders to train on, in this order; also https://…, s3://BUCKET/PREFIX, hf://datasets/OWNER/NAME/PATH.
        ///
        /// Needed unless the run's `data.source` is "grammar"; where the run shares them, by its founder alone.
        files: Vec<PathBuf> = Vec::new() =>
            flag(
                Flag::new("data", "FILE", DATA).of(&[Machine, Local])
                    .says_of(Local, "Files and folders to train on; with the built-in run, texts to read instead of its stories")
            );
        /// Load what a run names (data.remote, base.remote), without this node's keys.
        accept_remote: bool = false => flag(
            Flag::switch("accept-remote", DATA).of(&[Machine, Local])
                .says_of(Local, "Load what the run names (data.remote, base.remote), without your keys")
        );
        /// The tokenizer.json of a run that has one [default: that of the base's folder].
        tokenizer: PathBuf = PathBuf::new() => flag(Flag::new("tokenizer", "FILE", DATA).of(&[Machine, Local]));
        /// Tokens and decoded images [default: prepared in the data directory].
        cache: PathBuf = PathBuf::new() => flag(Flag::new("data-cache", "FOLDER", DATA).of(&[Machine]));
    }
}

section! {
    /// What a node keeps.
    pub struct CheckpointSettings {
        /// Identity, known peers and checkpoints [default: murmur/<run> in $XDG_DATA_HOME, or else in ~/.local/share].
        directory: PathBuf = PathBuf::new() => flag(Flag::new("data-dir", "FOLDER", DATA).of(&[Machine]));
        /// Seconds between two checkpoints, the first of them within 30 s; 0 writes only the final one.
        every_seconds: u64 = 300 =>
            range(Range::new(1, 366 * 86_400).unit(" (a year)").or_zero("writes only the final one"));
        /// Checkpoints kept, at least 2, so that a damaged one has a predecessor.
        keep: usize = 2 => range(Range::new(2, 100));
    }
}

section! {
    /// What a node writes down of how it goes.
    pub struct JournalSettings {
        /// Megabytes that the journal in the data directory takes at most. A day takes about 90, with many exchanges more.
        megabytes: u64 = 256 => range(Range::new(4, 1_000_000).or_zero("writes none"));
    }
}

section! {
    /// Where TensorBoard reads how a node goes.
    pub struct TensorBoardSettings {
        /// Write event files for TensorBoard into a folder of this node below this one.
        ///
        /// They go into `<run>/<node>`; empty: none are written.
        directory: PathBuf = PathBuf::new() => flag(
            Flag::new("tensorboard", "FOLDER", TRACKING).of(&[Daemon, Local])
                .says_of(Local, "Write event files for TensorBoard into a folder of each daemon below this one")
        );
    }
}

section! {
    /// The MLflow server that is told how a node goes.
    pub struct MlflowSettings {
        /// Address of an MLflow server that is told how this node does, such as http://127.0.0.1:5000.
        url: String = String::new() => flag(
            Flag::new("mlflow", "URL", TRACKING).of(&[Daemon, Local]).says_of(
                Local,
                "Address of an MLflow server that is told how each daemon does, such as http://127.0.0.1:5000"
            )
        );
        /// The experiment that the node's run belongs to; empty: the name of the run file's run.
        experiment: String = String::new();
        /// Send the model once it is complete, where the server takes files.
        model: bool = true;
    }
}

impl ModelSettings {
    /// The folder, where one is given.
    pub fn base(&self) -> Option<&Path> {
        (!self.base.as_os_str().is_empty()).then_some(&self.base)
    }
}

impl DataSettings {
    /// The tokenizer's file, where one is given.
    pub fn tokenizer(&self) -> Option<&Path> {
        (!self.tokenizer.as_os_str().is_empty()).then_some(&self.tokenizer)
    }

    /// The same as training wants it; `cache` is where prepared data goes unless the settings say otherwise.
    pub fn place(&self, cache: Option<PathBuf>) -> DataPlace {
        let given = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        let (tokenizer, cache) = (given(&self.tokenizer), given(&self.cache).or(cache));
        DataPlace { files: self.files.clone(), tokenizer, cache, ..DataPlace::default() }
    }
}
