//! The runs of this machine: where their data directories are, the one used last first, and which one is meant by a name.
//!
//! Without `--data-dir` they lie in one folder, a swarm of `murmur local` in its sub-folder `local`. Those that lie
//! elsewhere are remembered there in the file `elsewhere`, a path a line.

use std::cmp::Ordering;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{DataDirectory, ELSEWHERE, LOCAL, RunningDaemon, Series, is_in_use, write_atomically};

/// Folders looked through at each level: more runs on one machine are somebody's archive.
const FOLDERS_MAX: usize = 1024;

/// Held while the list is changed.
const ELSEWHERE_LOCK: &str = ".elsewhere.lock";

/// Directories remembered that lie elsewhere.
const ELSEWHERE_MAX: usize = 64;

/// A run on this machine: a data directory, or the folder of a swarm of `murmur local`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its folder.
    pub directory: PathBuf,
    /// The data directories of its nodes: the folder itself, or those in it by their number. Never empty.
    pub nodes: Vec<PathBuf>,
    /// When the last of its daemons that run became ready, since 1970; `None` where none runs.
    pub started: Option<Duration>,
    /// When one of them was last written to.
    pub changed: SystemTime,
}

impl Run {
    /// The run in a folder, where there is one.
    pub fn open(directory: &Path) -> Option<Run> {
        let nodes = if is_data_directory(directory) { vec![directory.to_owned()] } else { nodes_in(directory) };
        let changed = nodes.iter().map(|node| changed(node)).max()?;
        let started = nodes.iter().filter_map(|node| Some(RunningDaemon::of(node)?.started())).max();
        Some(Run { directory: directory.to_owned(), nodes, started, changed })
    }

    /// The run that a path leads to, or that has this name: as its folder is called, or as its run file calls it.
    pub fn named(name: &Path) -> Option<Run> {
        let is_called = |run: &Run| {
            let manifest = run.nodes.first().and_then(|node| DataDirectory::claimed_manifest(node));
            manifest.is_some_and(|manifest| Some(manifest.run.name.as_str()) == name.to_str())
        };
        Run::in_folder(name).or_else(|| Run::all().into_iter().find(is_called))
    }

    /// The run that a path leads to, or that [`name`](Self::name) calls so. No other, though its run file may have that name.
    pub fn in_folder(name: &Path) -> Option<Run> {
        folders_named(name, &DataDirectory::default_base()).iter().find_map(|folder| Run::open(folder))
    }

    /// All of this machine, the one used last first: where daemons run, the one that was started last.
    pub fn all() -> Vec<Run> {
        let base = DataDirectory::default_base();
        let mut folders = sub_folders(&base);
        folders.extend(sub_folders(&base.join(LOCAL)));
        folders.extend(elsewhere(&base));
        let mut runs: Vec<Run> = folders.iter().filter_map(|folder| Run::open(folder)).collect();
        runs.sort_by(Run::compare_use);
        runs.dedup_by(|one, other| one.directory == other.directory);
        runs
    }

    /// The one used last first. All that run write now and then: who did last says nothing of use.
    fn compare_use(&self, other: &Run) -> Ordering {
        let used = (other.started, other.changed).cmp(&(self.started, self.changed));
        used.then_with(|| self.directory.cmp(&other.directory))
    }

    /// All of this machine that are one run, which is what commands take that are given none: the daemons of a swarm that trained
    /// each for itself are not.
    pub fn all_usual() -> Vec<Run> {
        let mut runs = Run::all();
        runs.retain(|run| Series::of(&run.directory).is_none_or(|series| !series.alone));
        runs
    }

    /// Its name for people, which [`named`](Self::named) understands: within the default folder, or its whole path.
    pub fn name(&self) -> String {
        let inside = self.directory.strip_prefix(DataDirectory::default_base()).unwrap_or(&self.directory);
        inside.display().to_string()
    }

    /// Its daemons that are ready, with their data directories.
    pub fn daemons(&self) -> Vec<(PathBuf, RunningDaemon)> {
        self.nodes.iter().filter_map(|node| Some((node.clone(), RunningDaemon::of(node)?))).collect()
    }

    /// Whether a process uses one of its data directories.
    pub fn is_in_use(&self) -> bool {
        self.nodes.iter().any(|node| is_in_use(node))
    }
}

/// Where a run of this name may lie. `../stories` and `./stories` are paths from the working directory, and never names.
pub(super) fn folders_named(name: &Path, base: &Path) -> Vec<PathBuf> {
    let mut folders = vec![name.to_owned()];
    if name.components().all(|part| matches!(part, Component::Normal(_))) {
        folders.extend([base.join(name), base.join(LOCAL).join(name)]);
    }
    folders
}

/// Remembers a data directory that does not lie in the default folder. Best effort: it can always be given by its path.
pub fn remember(directory: &Path) {
    remember_in(&DataDirectory::default_base(), directory);
}

fn remember_in(base: &Path, directory: &Path) {
    let Ok(directory) = directory.canonicalize() else { return };
    // Several nodes that begin at the same moment would each write the list without the others.
    let lock = fs::create_dir_all(base).and_then(|()| fs::File::create(base.join(ELSEWHERE_LOCK)));
    let _held = lock.and_then(|file| file.lock().map(|()| file));
    let known = elsewhere(base);
    let is_inside = base.canonicalize().is_ok_and(|base| directory.starts_with(base));
    let is_one_line = directory.to_str().is_some_and(|text| !text.contains('\n'));
    if is_inside || !is_one_line || known.contains(&directory) {
        return;
    }
    let newest_first = std::iter::once(directory).chain(known).take(ELSEWHERE_MAX);
    let text: String = newest_first.map(|path| format!("{}\n", path.display())).collect();
    if let Err(error) = write_atomically(&base.join(ELSEWHERE), text.as_bytes()) {
        tracing::debug!("cannot remember where the run lies: {error}");
    }
}

/// Those remembered that are still there; a node may not have begun in one yet.
fn elsewhere(base: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(base.join(ELSEWHERE)).unwrap_or_default();
    text.lines().take(ELSEWHERE_MAX).map(PathBuf::from).filter(|path| path.is_dir()).collect()
}

/// Whether a folder is a data directory of ours: a node that has begun leaves both files.
fn is_data_directory(folder: &Path) -> bool {
    folder.join("run.toml").is_file() && folder.join("identity.key").is_file()
}

/// One of them may have been removed by itself.
fn nodes_in(folder: &Path) -> Vec<PathBuf> {
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("node-")?.parse::<usize>().ok();
    let numbered = sub_folders(folder).into_iter().filter_map(|path| Some((number(&path)?, path)));
    let mut nodes: Vec<(usize, PathBuf)> = numbered.filter(|(_, path)| is_data_directory(path)).collect();
    nodes.sort();
    nodes.into_iter().map(|(_, path)| path).collect()
}

pub(super) fn sub_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(FOLDERS_MAX);
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn changed(node: &Path) -> SystemTime {
    let files = ["checkpoints", "run.toml", "daemon.json", "peers.json"];
    let time = |name: &str| fs::metadata(node.join(name)).and_then(|metadata| metadata.modified()).ok();
    files.into_iter().filter_map(time).max().unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin_node(folder: &Path) {
        fs::create_dir_all(folder.join("checkpoints")).expect("created");
        for file in ["run.toml", "identity.key"] {
            fs::write(folder.join(file), "").expect("written");
        }
    }

    #[test]
    fn a_run_is_a_data_directory_or_the_folder_of_a_local_swarm() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (alone, swarm, other) =
            (folder.path().join("alone"), folder.path().join("swarm"), folder.path().join("other"));
        begin_node(&alone);
        (0..3).for_each(|number| begin_node(&swarm.join(format!("node-{number}"))));
        fs::write(swarm.join("run.toml"), "").expect("written");
        fs::create_dir(&other).expect("created");
        fs::write(other.join("run.toml"), "").expect("written");
        assert_eq!(Run::open(&alone).expect("a run").nodes, std::slice::from_ref(&alone));
        assert_eq!(
            Run::open(&swarm).expect("a run").nodes,
            [0, 1, 2].map(|number| swarm.join(format!("node-{number}")))
        );
        fs::remove_dir_all(swarm.join("node-0")).expect("removed");
        assert_eq!(
            Run::open(&swarm).expect("still a run").nodes,
            [1, 2].map(|number| swarm.join(format!("node-{number}")))
        );
        assert_eq!(Run::open(&other), None, "somebody's folder with a run file in it");
        assert_eq!(Run::open(&folder.path().join("nothing")), None);
        assert_eq!(Run::named(&swarm).expect("by its path").directory, swarm);
    }

    #[test]
    fn where_daemons_run_the_one_started_last_is_the_run_used_last_whoever_wrote_last() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let begun = |name: &str| {
            let node = folder.path().join(name);
            begin_node(&node);
            node
        };
        let running = |name: &str, started_unix: u64, started_nanoseconds: u32| {
            let node = begun(name);
            let held = DataDirectory::open(&node).expect("free");
            let daemon =
                RunningDaemon { started_unix, started_nanoseconds, ..RunningDaemon::this(None, String::new()) };
            let announcement = daemon.announcement(&node);
            announcement.write().expect("written");
            (held, announcement)
        };
        let _second = running("second", 200, 2);
        let _first = running("first", 200, 1);
        let old = begun("old");
        let later = SystemTime::now() + Duration::from_secs(60);
        fs::File::open(old.join("checkpoints")).and_then(|file| file.set_modified(later)).expect("its time is set");
        let mut runs = ["old", "first", "second"].map(|name| Run::open(&folder.path().join(name)).expect("a run"));
        runs.sort_by(Run::compare_use);
        let names = runs.map(|run| run.directory.file_name().expect("a name").to_string_lossy().into_owned());
        assert_eq!(names, ["second", "first", "old"]);
    }

    #[test]
    fn nodes_that_begin_at_the_same_moment_are_all_remembered() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let base = folder.path().join("base");
        let nodes: Vec<PathBuf> = (0..16).map(|number| folder.path().join(format!("node-{number}"))).collect();
        nodes.iter().for_each(|node| begin_node(node));
        std::thread::scope(|scope| {
            nodes.iter().for_each(|node| drop(scope.spawn(|| remember_in(&base, node))));
        });
        let remembered = elsewhere(&base);
        assert!(nodes.iter().all(|node| remembered.contains(&node.canonicalize().expect("there"))), "{remembered:?}");
    }

    #[test]
    fn a_folder_in_which_a_service_is_to_begin_is_not_forgotten_before_it_has() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (base, service, node) = (folder.path().join("base"), folder.path().join("srv"), folder.path().join("node"));
        fs::create_dir(&service).expect("created");
        begin_node(&node);
        remember_in(&base, &service);
        remember_in(&base, &node);
        assert_eq!(elsewhere(&base), [&node, &service].map(|path| path.canonicalize().expect("there")));
        assert_eq!(Run::open(&service), None, "there is nothing to show");
    }

    #[test]
    fn only_a_name_is_looked_for_among_the_runs_of_this_machine() {
        let base = Path::new("/base");
        let of = |name: &str| folders_named(Path::new(name), base);
        assert_eq!(of("local/7-7"), ["local/7-7", "/base/local/7-7", "/base/local/local/7-7"].map(PathBuf::from));
        for path in ["../stories", "./stories", "/stories", "local/../../stories", ".."] {
            assert_eq!(of(path), [PathBuf::from(path)]);
        }
    }
}
