//! `murmur start`: found a swarm, or come back to one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use murmur_network::{Keypair, peer_id};
use murmur_protocol::RunManifest;
use murmur_training::{DataPlace, trained_layout};

use super::node::Coming;
use super::{join, node};
use crate::cli::StartOptions;
use crate::daemon::{AskedLength, Entry};
use crate::failure::{ExitCode, Failure};
use crate::limits::stay::Stay;
use crate::remote;
use crate::settings::{NetworkSettings, NodeSettings, load_run_manifest};
use crate::setup::base_model;
use crate::setup::corpus::{built_in_run, check_statistics, corpus_failure};
use crate::setup::privacy;
use crate::setup::sharing;
use crate::store::{DataDirectory, newest_checkpoint};
use crate::team;

pub(super) fn run(options: StartOptions) -> anyhow::Result<()> {
    let mut settings = node::settings(&options.node)?;
    let stay = Stay::begin(&settings.stay, &settings.limits, SystemTime::now());
    let (mut manifest, is_built_in) = run_to_start(options.run.as_deref(), &settings)?;
    team::captain::check(&manifest, &settings)?;
    // Before anything is asked of a founder that would be of no use.
    if settings.privacy.is_on() {
        privacy::check_run(&manifest, &settings)?;
    }
    let brought = node::bring(&mut settings, &manifest, Coming::Founds)?;
    if is_built_in {
        manifest = built_in_run(&settings); // its base is on this machine now
    }
    base_model::take_tokenizer(&mut settings, &manifest)?;
    let (manifest, base) = base_model::found(remote::describe(manifest, &settings)?, &settings)?;
    check_statistics(&options.statistics)?;
    let place = DataPlace {
        statistics: options.statistics.clone(),
        private: settings.privacy.is_on(),
        ..settings.data.place(None)
    };
    let manifest = place.complete(manifest).map_err(|error| corpus_failure(&error))?;
    let manifest = sharing::list(manifest, &settings)?;
    let bootstrap = node::bootstrap(&settings.network.bootstrap)?;
    let (directory, loaded) = brought.directory(&settings, &manifest, Coming::Founds)?;
    let identity = node::identity(&directory)?;
    let manifest = with_founder(manifest, &directory, &identity, &settings)?;
    let is_founder = manifest.run.founder == peer_id(&identity).to_string();
    // Killed before its first checkpoint, a member has no model; to found the run once more would be a fork of it.
    let is_member =
        DataDirectory::claimed_manifest(directory.root()).is_some() && !manifest.run.founder.is_empty() && !is_founder;
    check_openness(&settings, &directory, is_founder)?;
    let joins = !bootstrap.is_empty() || (is_member && !options.begin_anew);
    if (options.hours.is_some() || options.tokens.is_some()) && !is_founder {
        let message = "--hours and --tokens are for a run that this node founds, and another one has founded this run";
        return Err(Failure::new(ExitCode::CommandLine, message)
            .hint("give them to `murmur start` there, or leave them out")
            .into());
    }
    let length = options.hours.map(AskedLength::Hours).or(options.tokens.map(AskedLength::Tokens));
    let entry = Entry { bootstrap, joins, begins_anew: options.begin_anew, length, base, loaded, stay };
    node::run(manifest, settings, directory, (entry, None), &options.node)
}

/// The run that a node would found or resume, and whether it is the built-in one, to be begun. A node that has joined resumes with its
/// data directory alone.
///
/// # Errors
/// When its file cannot be read, or is none.
pub(super) fn run_to_start(run: Option<&Path>, settings: &NodeSettings) -> Result<(RunManifest, bool), Failure> {
    if let Some(path) = run {
        return Ok((completed_before(load_run_manifest(path)?, settings), false));
    }
    let begun = run_of(&settings.checkpoint.directory)?;
    let is_built_in = begun.is_none();
    Ok((begun.unwrap_or_else(|| built_in_run(settings)), is_built_in))
}

/// Who has a secret and goes on in an open run is parted from its members, who have none.
fn check_openness(settings: &NodeSettings, directory: &DataDirectory, is_founder: bool) -> Result<(), Failure> {
    let NetworkSettings { closed, secret_file, .. } = &settings.network;
    let has_file = !secret_file.as_os_str().is_empty();
    let has_begun = DataDirectory::claimed_manifest(directory.root()).is_some();
    // Of a run that has not begun here, its founder decides, and a secret in a file may be its.
    if directory.is_closed() || !(*closed || has_file) || (!has_begun && (is_founder || has_file)) {
        return Ok(());
    }
    let (option, root) = (if *closed { "--closed" } else { "--secret-file" }, directory.root().display());
    let message = match is_founder {
        true => format!("the run in {root} has begun open: {option} would cut off its members"),
        false => {
            format!(
                "{root} belongs to an open run that another node has founded: {option} would part this node from it"
            )
        }
    };
    Err(Failure::new(ExitCode::Settings, message).hint(format!(
        "leave {option} out to go on in that run; for a closed one take another --data-dir, or another run.name"
    )))
}

/// The run of a data directory, or `None` where it is new, or none is given.
///
/// # Errors
/// When its run file cannot be used, or is missing beside checkpoints.
fn run_of(directory: &Path) -> Result<Option<RunManifest>, Failure> {
    if directory.as_os_str().is_empty() {
        return Ok(None);
    }
    let claimed = DataDirectory::claimed(directory)?;
    if claimed.is_none()
        && let Some(checkpoint) = newest_checkpoint(&directory.join("checkpoints"))
    {
        let message = format!("{} holds checkpoints, and no run.toml that says of which run", directory.display());
        return Err(Failure::new(ExitCode::Files, message).hint(format!(
            "restore run.toml from a backup, or write the text of `manifest` in {} there; or choose another directory with \
             --data-dir",
            checkpoint.join("checkpoint.json").display()
        )));
    }
    Ok(claimed)
}

/// What a founder finds in its data, and writes into the run.
const FOUND_IN_DATA: [&str; 12] = [
    "data.class_names",
    "model.classes",
    "model.inputs",
    "run.founder",
    "table.categories",
    "table.class_weights",
    "table.deviations",
    "table.indicators",
    "table.means",
    "table.numbers",
    "table.target_deviation",
    "table.target_mean",
];

/// And what else it writes into the run, of its tokenizer, of data of a remote place and of data that it shares.
const FOUND_IN_FILES: [&str; 5] =
    ["data.corpus_bytes", "data.digest", "data.shard_bytes", "data.shards", "data.tokenizer"];

/// Where this node keeps a run, unless another run has taken the place.
pub(super) fn directory_of(manifest: &RunManifest, settings: &NodeSettings) -> PathBuf {
    let configured = &settings.checkpoint.directory;
    match configured.as_os_str().is_empty() {
        true => DataDirectory::default_path(&manifest.run.name),
        false => configured.clone(),
    }
}

/// A run file as it was completed when its run began in this node's data directory, where no data is given that would complete it: a
/// run that is over needs none.
fn completed_before(manifest: RunManifest, settings: &NodeSettings) -> RunManifest {
    let directory = directory_of(&manifest, settings);
    let is_of_file =
        |claimed: &RunManifest| differences(&manifest, claimed, |field| FOUND_IN_DATA.contains(&field)).is_empty();
    let claimed = DataDirectory::claimed_manifest(&directory).filter(|_| settings.data.files.is_empty());
    claimed.filter(is_of_file).unwrap_or(manifest)
}

/// In what a run file differs from the run of a directory, which may be the one that has begun with it: but for what a founder finds
/// in its data, its base and its tokenizer, which nobody has read here.
pub(super) fn other_than(manifest: &RunManifest, claimed: &RunManifest) -> Vec<String> {
    let has_base = !claimed.base.digest.is_empty();
    differences(manifest, claimed, |field| {
        FOUND_IN_DATA.contains(&field)
            || FOUND_IN_FILES.contains(&field)
            || (has_base && (field == "base.digest" || field.starts_with("model.")))
    })
}

/// In what two runs differ, but for fields that are found.
fn differences(manifest: &RunManifest, claimed: &RunManifest, is_found: impl Fn(&str) -> bool) -> Vec<String> {
    let mut manifest = manifest.clone();
    manifest.gossip = manifest.gossip.sized(trained_layout(claimed).parameters());
    let mut differences = manifest.differences_in(claimed, ["asked for", "in that directory"]);
    differences.retain(|difference| difference.split_once(": ").is_none_or(|(field, _)| !is_found(field)));
    differences
}

/// A run file leaves open who founds the run. In a directory that belongs to the run it is known, with members to dial
/// they tell it, and else it is this node.
fn with_founder(
    manifest: RunManifest,
    directory: &DataDirectory,
    identity: &Keypair,
    settings: &NodeSettings,
) -> Result<RunManifest, Failure> {
    if !manifest.run.founder.is_empty() {
        return Ok(manifest);
    }
    let with = |founder: &str| {
        let mut manifest = manifest.clone();
        manifest.run.founder = founder.to_owned();
        manifest
    };
    if let Some(claimed) = DataDirectory::claimed_manifest(directory.root()) {
        return Ok(with(&claimed.run.founder));
    }
    if settings.network.bootstrap.is_empty() {
        return Ok(with(&peer_id(identity).to_string()));
    }
    let reached = join::destination(None, settings)?.fetch(settings)?;
    Ok(with(&reached.manifest.run.founder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_begun_needs_its_data_no_more_to_be_known() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut settings = NodeSettings::default();
        settings.checkpoint.directory = folder.path().join("node");
        let (run_file, rows) = (folder.path().join("run.toml"), folder.path().join("rows.csv"));
        let text = "[model]\nkind = \"mlp\"\n[data]\nsource = \"table\"\n[table]\ntarget = \"ill\"\n";
        std::fs::write(&run_file, text).expect("written");
        std::fs::write(&rows, "age,ill\n40,yes\n50,no\n60,yes\n").expect("written");
        let mut manifest = load_run_manifest(&run_file).expect("sound");
        assert_eq!(completed_before(manifest.clone(), &settings), manifest, "it has not begun");
        settings.data.files = vec![rows];
        let described = base_model::described(manifest.clone(), &settings).expect("without a base");
        let mut begun = settings.data.place(None).complete(described).expect("a table");
        begun.run.founder = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X".to_owned();
        DataDirectory::open(&settings.checkpoint.directory).expect("free").claim(&begun).expect("unclaimed");
        assert_eq!(completed_before(manifest.clone(), &settings), manifest, "the data say");
        settings.data.files.clear();
        assert_eq!(completed_before(manifest.clone(), &settings), begun);
        manifest.schedule.total_steps = 7;
        assert_eq!(completed_before(manifest.clone(), &settings), manifest, "it is another run");
    }

    #[test]
    fn checkpoints_without_a_sound_run_file_begin_no_other_run() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        assert!(run_of(folder.path()).expect("new").is_none() && run_of(Path::new("")).expect("none").is_none());
        std::fs::create_dir_all(folder.path().join("checkpoints/step-000000000007")).expect("made");
        let failure = run_of(folder.path()).expect_err("no run file");
        assert!(failure.code() == ExitCode::Files && failure.remedy().contains("checkpoint.json"), "{failure}");
        let run_file = folder.path().join("run.toml");
        std::fs::write(&run_file, "[run]\nname = \"cut of").expect("written");
        let failure = run_of(folder.path()).expect_err("cut off");
        assert!(failure.code() == ExitCode::Files && failure.to_string().contains("run.toml"), "{failure}");
        let manifest = RunManifest::default();
        std::fs::write(&run_file, manifest.canonical_text()).expect("written");
        assert_eq!(run_of(folder.path()).expect("sound"), Some(manifest));
    }
}
