//! `murmur service`: a systemd unit that keeps a daemon running, with as few rights as it needs.

mod folders;

use std::path::{Path, PathBuf};

use murmur_protocol::manifest::DataSource;
use murmur_protocol::{RunManifest, Secret, Ticket};

use self::folders::{Folders, is_remote, of_loading};
use super::start::other_than;
use crate::cli::ServiceOptions;
use crate::console::{note, print_line, quoted};
use crate::failure::{ExitCode, Failure, to_write};
use crate::settings::{NodeSettings, load_node_settings, load_run_manifest};
use crate::store::{DataDirectory, SECRET_FILE, check_name, remember, write_private};

pub(super) fn run(options: &ServiceOptions) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let absolute = |path: &Path| std::path::absolute(path);
    let directory = absolute(&options.data_dir)?;
    let Checked { ticket, run, node: settings } = check(options)?;
    if ticket.is_none() && run.is_none() && !directory.exists() {
        let message = format!("there is no folder {}, nor is it said which run is to begin there", directory.display());
        let hint = "is its name right? `murmur list` shows the runs of this machine; --run FILE founds one in a new folder, \
                    --ticket TICKET joins one";
        return Err(Failure::new(ExitCode::Files, message).hint(hint).into());
    }
    check_name(&directory)?;
    refuse_of_another_run(&directory, ticket.as_ref(), run.as_ref())?;
    let manifest = run.or_else(|| DataDirectory::claimed_manifest(&directory)).unwrap_or_default();
    refuse_without_files(&manifest, &settings)?;
    let user = options.system.as_deref().map(Account::of).transpose()?;
    let mut arguments = match &ticket {
        None => vec!["start".to_owned()],
        Some(ticket) => vec!["join".to_owned(), Ticket { secret: None, ..ticket.clone() }.to_string()],
    };
    if let Some(run) = &options.run {
        arguments.push(absolute(run)?.display().to_string());
    }
    if let Some(node) = &options.node {
        arguments.extend(["--node".to_owned(), absolute(node)?.display().to_string()]);
    }
    arguments.extend(["--data-dir".to_owned(), directory.display().to_string()]);
    let here = std::env::current_dir()?;
    let folders = Folders::of((&directory, here), (&settings, &manifest), user.is_some());
    let paths = folders.writable.iter().chain([&folders.here]).map(|path| path.display().to_string());
    if let Some(word) = paths.chain(arguments.iter().cloned()).find(|word| word.contains(char::is_control)) {
        let message = format!("{word:?} has a control character, which would begin another line of the unit");
        return Err(Failure::new(ExitCode::Settings, message).hint("choose another name").into());
    }
    folders.make()?;
    // The daemon may write nothing in its user's home but its own folders.
    remember(&directory);
    if let Some(secret) = ticket.as_ref().and_then(|ticket| ticket.secret.as_ref()) {
        arguments.extend(["--secret-file".to_owned(), keep_secret(&directory, secret)?]);
    }
    let place = match &options.system {
        Some(_) => "sudo systemctl enable --now murmur, with this text in /etc/systemd/system/murmur.service",
        None => "systemctl --user enable --now murmur, with this text in ~/.config/systemd/user/murmur.service",
    };
    let others = user.map(|user| user.lacking(&folders.writable)).unwrap_or_default();
    if let (Some(user), false) = (&options.system, others.is_empty()) {
        note(&format!("begin with: sudo chown -R {user} {}", others.join(" ")));
        note(&format!("and then:   {place}"));
    } else {
        note(&format!("begin with: {place}"));
    }
    if options.system.is_none() {
        note("            loginctl enable-linger lets it run while nobody is logged in");
    }
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let lacking = of_loading(set.filter_map(|(name, _)| name.into_string().ok()));
    if !lacking.is_empty() && is_remote(&settings, &manifest) {
        note(&format!("warning: set in this shell, and not in the unit: {}", lacking.join(", ")));
        note(
            "hint: Environment=NAME=VALUE below [Service] sets one; keys go into a file of its user's, behind EnvironmentFile=",
        );
    }
    let uses_tmp = uses_tmp(&program, &arguments, &folders, &settings);
    print_line(unit(&program, &arguments, &folders, (options.system.as_deref(), uses_tmp)).trim_end());
    Ok(())
}

/// What the options lead to.
struct Checked {
    ticket: Option<Ticket>,
    run: Option<RunManifest>,
    node: NodeSettings,
}

/// What a daemon would refuse is refused now: in the background nobody would see it.
fn check(options: &ServiceOptions) -> Result<Checked, Failure> {
    let parse = |ticket: &String| {
        ticket.parse::<Ticket>().map_err(|error| {
            Failure::new(ExitCode::Settings, error.to_string())
                .hint("`murmur ticket` prints a fresh one on a member's machine")
        })
    };
    Ok(Checked {
        ticket: options.ticket.as_ref().map(parse).transpose()?,
        run: options.run.as_deref().map(load_run_manifest).transpose()?,
        node: options.node.as_deref().map(load_node_settings).transpose()?.unwrap_or_default(),
    })
}

/// Nor does a daemon start in the folder of another run.
fn refuse_of_another_run(
    directory: &Path,
    ticket: Option<&Ticket>,
    manifest: Option<&RunManifest>,
) -> Result<(), Failure> {
    DataDirectory::check_not_lent(directory)?;
    let Some(claimed) = DataDirectory::claimed(directory)? else { return Ok(()) };
    if ticket.is_some_and(|ticket| ticket.run != claimed.run_id()) {
        let message = format!("{} belongs to another run than the ticket", directory.display());
        return Err(Failure::new(ExitCode::Settings, message).hint("choose another folder with --data-dir"));
    }
    match manifest.map(|manifest| other_than(manifest, &claimed)).unwrap_or_default() {
        differences if differences.is_empty() => Ok(()),
        differences => Err(DataDirectory::anothers(directory, &differences)),
    }
}

/// A daemon that has to be told where its data or its base is would end at once, however often it is started.
fn refuse_without_files(manifest: &RunManifest, settings: &NodeSettings) -> Result<(), Failure> {
    let refused = |message: &str, hint: &str| Err(Failure::new(ExitCode::Files, message).hint(hint));
    let data = &settings.data;
    // A run that shares its data and lists no shards yet is to be founded: nobody else has any.
    let has_sharer = manifest.data.share && !manifest.data.shards.is_empty();
    let finds_data = has_sharer || !manifest.data.remote.is_empty();
    if manifest.data.source != DataSource::Grammar && data.files.is_empty() && !finds_data {
        return refused(
            "this run trains on data of each member, and no file of it is named",
            "write data.files into a node file, and give that with --node: `murmur init` makes one",
        );
    }
    if manifest.lora.is_on() && settings.model.base().is_none() && manifest.base.remote.is_empty() {
        return refused(
            "this run trains adapters of a base model, and no base is named",
            "write model.base into a node file, and give that with --node: `murmur init` makes one",
        );
    }
    Ok(())
}

/// A user of this machine.
struct Account {
    id: u32,
}

impl Account {
    /// # Errors
    /// When there is none of this name.
    fn of(name: &str) -> Result<Account, Failure> {
        let asked = std::process::Command::new("id").args(["-u", "--", name]).output();
        let id = asked.ok().filter(|output| output.status.success());
        let id = id.and_then(|output| String::from_utf8_lossy(&output.stdout).trim().parse().ok());
        id.map(|id| Account { id }).ok_or_else(|| {
            Failure::new(ExitCode::Settings, format!("there is no user {name:?} on this machine"))
                .hint("make one: sudo useradd --system --create-home NAME")
        })
    }

    /// Those of these folders that are another's, or have something of another's in them, as words of a shell.
    #[cfg(unix)]
    fn lacking(&self, folders: &[PathBuf]) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let is_anothers = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() != self.id);
        let holds_anothers = |folder: &Path| {
            std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(|entry| is_anothers(&entry.path())))
        };
        let lacking = folders.iter().filter(|folder| is_anothers(folder) || holds_anothers(folder));
        lacking.map(|folder| quoted(folder)).collect()
    }

    #[cfg(not(unix))]
    fn lacking(&self, _: &[PathBuf]) -> Vec<String> {
        Vec::new()
    }
}

/// Keeps a closed run's secret where the node keeps it: everybody on a machine can read units and a process's arguments. Returns
/// the file.
fn keep_secret(directory: &Path, secret: &Secret) -> Result<String, Failure> {
    let path = directory.join(SECRET_FILE);
    write_private(&path, format!("{}\n", secret.to_text()).as_bytes()).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display())).hint(to_write(&error))
    })?;
    note(&format!("the ticket's secret is kept in {}, and is not in this text", path.display()));
    Ok(path.display().to_string())
}

/// Whether something that the daemon needs lies where a service with folders of its own for temporary files does not find it.
fn uses_tmp(program: &Path, arguments: &[String], folders: &Folders, settings: &NodeSettings) -> bool {
    let places = settings.data.files.iter().map(PathBuf::as_path);
    let places = places.chain(settings.model.base()).chain(settings.data.tokenizer());
    let places = places.map(|place| folders.here.join(place));
    let named = arguments.iter().map(PathBuf::from).chain([program.to_owned(), folders.here.clone()]);
    let mut all = places.chain(named).chain(folders.writable.iter().cloned());
    all.any(|place| place.starts_with("/tmp") || place.starts_with("/var/tmp"))
}

fn unit(program: &Path, arguments: &[String], folders: &Folders, (user, uses_tmp): (Option<&str>, bool)) -> String {
    let words = std::iter::once(program.display().to_string()).chain(arguments.iter().cloned());
    let command = words.map(|word| escaped(&word)).collect::<Vec<_>>().join(" ");
    let writable = folders.writable.iter().map(|folder| escaped_path(&folder.display().to_string()));
    let writable = writable.collect::<Vec<_>>().join(" ");
    let variables = folders
        .variables
        .iter()
        .map(|(name, value)| format!("Environment={}\n", escaped_path(&format!("{name}={value}"))));
    let variables: String = variables.collect();
    let (user_line, wanted_by) = match user {
        Some(user) => (format!("User={user}\n"), "multi-user.target"),
        None => (String::new(), "default.target"),
    };
    format!(
        "\
# Written by `murmur service`, murmur {version}.
[Unit]
Description=Murmuration: trains a model together with others
Documentation=man:murmur-start(1)
Wants=network-online.target
After=network-online.target

[Service]
# The daemon says when it listens, and then regularly that it lives.
Type=notify
NotifyAccess=main
WatchdogSec=2min
# Data may have to be prepared before it listens.
TimeoutStartSec=30min
# A last exchange, a last evaluation and a last checkpoint.
TimeoutStopSec=15min
WorkingDirectory={here}
{variables}ExecStart={command}
{user_line}Restart=on-failure
RestartSec=15
# A wrong command line and wrong settings do not mend themselves; a disk that is full or not there yet may.
RestartPreventExitStatus=2 3
Nice=5

# It reads its data and writes its own folders.
UMask=0077
NoNewPrivileges=yes
{private_tmp}ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={writable}
ProtectControlGroups=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
{for_system}# Not set, because GPUs need them: PrivateDevices, MemoryDenyWriteExecute.

[Install]
WantedBy={wanted_by}
",
        version = env!("CARGO_PKG_VERSION"),
        here = folders.here.display().to_string().replace('%', "%%"),
        private_tmp = if uses_tmp { "" } else { "PrivateTmp=yes\n" },
        for_system = if user.is_some() { FOR_SYSTEM } else { "" },
    )
}

/// Only the system's own systemd can grant these.
const FOR_SYSTEM: &str = "\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
";

/// A word of a command line as systemd reads it: `%` and `$` have meanings there.
fn escaped(word: &str) -> String {
    escaped_path(&word.replace('$', "$$"))
}

/// A word elsewhere: only `%` has a meaning there.
fn escaped_path(word: &str) -> String {
    let word = word.replace('%', "%%");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@,%$".contains(&byte);
    if word.bytes().all(is_plain) { word } else { format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"")) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{DataSpec, TransformerModel};
    use murmur_protocol::shards::ShardHash;
    use murmur_training::trained_layout;

    use super::*;

    #[test]
    fn a_unit_has_whole_paths_and_is_what_systemd_takes() {
        let folders = Folders {
            here: "/srv/50% more".into(),
            writable: ["/srv/mur mur/50%", "/srv/$tensorboard"].map(PathBuf::from).into(),
            variables: vec![("HF_HOME", "/srv/hugging face".to_owned())],
        };
        let arguments = ["start", "--data-dir", "/srv/mur mur/50%"].map(str::to_owned);
        let text = unit(Path::new("/bin/true"), &arguments, &folders, (Some("root"), false));
        assert!(text.contains("ExecStart=/bin/true start --data-dir \"/srv/mur mur/50%%\"\n"), "{text}");
        assert!(text.contains("ReadWritePaths=\"/srv/mur mur/50%%\" /srv/$tensorboard\n"), "{text}");
        assert!(text.contains("WorkingDirectory=/srv/50%% more\n"), "{text}");
        assert!(text.contains("Environment=\"HF_HOME=/srv/hugging face\"\n"), "{text}");
        assert!(text.contains("RestartPreventExitStatus=2 3\n") && text.contains("User=root\n"), "{text}");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("murmur.service");
        for user in [Some("root"), None] {
            std::fs::write(&file, unit(Path::new("/bin/true"), &arguments, &folders, (user, false))).expect("written");
            let mut verify = std::process::Command::new("systemd-analyze");
            verify.args(["verify", "--man=no"]).args(user.is_none().then_some("--user")).arg(&file);
            let Ok(output) = verify.env("SYSTEMD_LOG_LEVEL", "warning").output() else {
                eprintln!("skipped: systemd-analyze is not installed");
                return;
            };
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("murmur.service")).collect();
            assert!(ours.is_empty(), "{said}");
        }
    }

    /// Else the daemon would find another folder in its place.
    #[test]
    fn a_service_has_no_temporary_files_of_its_own_where_something_that_it_needs_is_among_the_others() {
        let mut settings = NodeSettings::default();
        let mut folders = Folders { here: "/srv".into(), writable: vec!["/srv/node".into()], variables: Vec::new() };
        let arguments = ["start", "--data-dir", "/srv/node"].map(str::to_owned);
        let uses = |folders: &Folders, settings: &NodeSettings| {
            uses_tmp(Path::new("/usr/bin/murmur"), &arguments, folders, settings)
        };
        assert!(!uses(&folders, &settings));
        let text = |uses_tmp| unit(Path::new("/usr/bin/murmur"), &arguments, &folders, (None, uses_tmp));
        assert!(text(false).contains("PrivateTmp=yes\n") && !text(true).contains("PrivateTmp"));
        settings.data.files = vec!["/tmp/book.txt".into()];
        assert!(uses(&folders, &settings));
        settings.data.files.clear();
        folders.here = "/var/tmp/mine".into();
        assert!(uses(&folders, &settings));
    }

    #[test]
    fn a_folder_of_another_run_is_refused_and_that_of_the_run_file_is_not() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut asked = RunManifest::default();
        asked.data.source = DataSource::Files;
        let refused = |asked: &RunManifest| refuse_of_another_run(folder.path(), None, Some(asked));
        assert!(refused(&asked).is_ok(), "it is nobody's yet");
        // As its founder has completed it.
        let mut begun = asked.clone();
        begun.run.founder = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X".to_owned();
        begun.data.tokenizer = "00".repeat(32);
        begun.base.digest = "00".repeat(32);
        begun.model = TransformerModel { layers: 7, ..TransformerModel::default() }.into();
        let parameters = trained_layout(&begun).parameters();
        begun.gossip = begun.gossip.sized(parameters);
        DataDirectory::open(folder.path()).expect("free").claim(&begun).expect("unclaimed");
        assert!(refused(&asked).is_ok(), "it is this run's");
        let mut other = asked.clone();
        other.schedule.total_steps = 7;
        let failure = refused(&other).expect_err("another run");
        assert!(failure.to_string().contains("belongs to another run: schedule.total_steps: 7 asked for"), "{failure}");
    }

    #[test]
    fn a_run_whose_data_or_base_is_named_nowhere_is_refused() {
        let (mut manifest, mut settings) = (RunManifest::default(), NodeSettings::default());
        assert!(refuse_without_files(&manifest, &settings).is_ok());
        manifest.data.source = DataSource::Files;
        assert!(refuse_without_files(&manifest, &settings).is_err());
        manifest.data.share = true;
        assert!(refuse_without_files(&manifest, &settings).is_err(), "its founder shares what nobody else has");
        manifest.data.shards = vec![ShardHash::of(b"a shard")];
        assert!(refuse_without_files(&manifest, &settings).is_ok(), "a member fetches it");
        manifest.data = DataSpec { source: DataSource::Files, ..DataSpec::default() };
        settings.data.files = vec!["book.txt".into()];
        assert!(refuse_without_files(&manifest, &settings).is_ok());
        manifest.lora.rank = 4;
        assert!(refuse_without_files(&manifest, &settings).is_err());
        settings.model.base = "base".into();
        assert!(refuse_without_files(&manifest, &settings).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_the_user_cannot_write_are_told() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(folder.path().join("membership.secret"), "").expect("written");
        let own = Account { id: folder.path().metadata().expect("there").uid() };
        assert!(own.lacking(&[folder.path().to_owned()]).is_empty());
        let other = Account { id: own.id + 1 };
        assert_eq!(other.lacking(&[folder.path().to_owned()]), [folder.path().display().to_string()]);
        assert!(Account::of("root").is_ok_and(|root| root.id == 0));
        assert!(Account::of("no such user").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_closed_runs_secret_goes_to_a_file_that_only_its_owner_reads() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let secret = Secret::from_bytes([7; 32]);
        let kept = || std::fs::read_to_string(folder.path().join(SECRET_FILE)).unwrap_or_default();
        let manifest = RunManifest::default();
        DataDirectory::open(folder.path()).expect("free").claim(&manifest).expect("unclaimed");
        let path = keep_secret(folder.path(), &secret).expect("written");
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!((kept().trim(), mode & 0o777), (&*secret.to_text(), 0o600));
    }
}
