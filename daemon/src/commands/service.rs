//! `murmur service`: a systemd unit that keeps a daemon running, with as few rights as it needs.

use std::path::Path;

use murmur_protocol::Ticket;

use crate::cli::ServiceOptions;
use crate::console::{note, print_line};
use crate::failure::{ExitCode, Failure};
use crate::settings::{load_node_settings, load_run_manifest};

pub(super) fn run(options: &ServiceOptions) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let absolute = |path: &Path| std::path::absolute(path);
    let directory = absolute(&options.data_dir)?;
    check(options)?;
    let mut arguments = match &options.ticket {
        None => vec!["start".to_owned()],
        Some(ticket) => vec!["join".to_owned(), ticket.clone()],
    };
    if let Some(run) = &options.run {
        arguments.push(absolute(run)?.display().to_string());
    }
    if let Some(node) = &options.node {
        arguments.extend(["--node".to_owned(), absolute(node)?.display().to_string()]);
    }
    arguments.extend(["--data-dir".to_owned(), directory.display().to_string()]);
    // systemd refuses to make a folder writable that is not there.
    std::fs::create_dir_all(&directory).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot make {}: {error}", directory.display()))
            .hint("choose another folder with --data-dir")
    })?;
    let place = match &options.system {
        Some(_) => "sudo systemctl enable --now murmur, with this text in /etc/systemd/system/murmur.service",
        None => "systemctl --user enable --now murmur, with this text in ~/.config/systemd/user/murmur.service",
    };
    note(&format!("begin with: {place}"));
    if options.system.is_none() {
        note("            loginctl enable-linger lets it run while nobody is logged in");
    }
    print_line(unit(&program, &arguments, &directory, options.system.as_deref()).trim_end());
    Ok(())
}

/// What a daemon would refuse is refused now: in the background nobody would see it.
fn check(options: &ServiceOptions) -> Result<(), Failure> {
    if let Some(ticket) = &options.ticket {
        ticket.parse::<Ticket>().map_err(|error| {
            Failure::new(ExitCode::Settings, error.to_string())
                .hint("`murmur ticket` prints a fresh one on a member's machine")
        })?;
    }
    options.run.as_deref().map(load_run_manifest).transpose()?;
    options.node.as_deref().map(load_node_settings).transpose()?;
    Ok(())
}

fn unit(program: &Path, arguments: &[String], directory: &Path, user: Option<&str>) -> String {
    let words = std::iter::once(program.display().to_string()).chain(arguments.iter().cloned());
    let command = words.map(|word| escaped(&word)).collect::<Vec<_>>().join(" ");
    let folder = escaped(&directory.display().to_string());
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
ExecStart={command}
{user_line}Restart=on-failure
RestartSec=15
# A wrong command line, wrong settings and damaged files do not mend themselves.
RestartPreventExitStatus=2 3 5
Nice=5

# It reads its data and writes its own folder.
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={folder}
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
    let word = word.replace('%', "%%").replace('$', "$$");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@,%$".contains(&byte);
    if word.bytes().all(is_plain) { word } else { format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_whole_paths_and_is_what_systemd_takes() {
        let directory = Path::new("/srv/mur mur/50%");
        let arguments = ["start", "--data-dir", "/srv/mur mur/50%"].map(str::to_owned);
        let text = unit(Path::new("/bin/true"), &arguments, directory, Some("root"));
        assert!(text.contains("ExecStart=/bin/true start --data-dir \"/srv/mur mur/50%%\"\n"), "{text}");
        assert!(text.contains("RestartPreventExitStatus=2 3 5\n") && text.contains("User=root\n"), "{text}");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("murmur.service");
        for user in [Some("root"), None] {
            std::fs::write(&file, unit(Path::new("/bin/true"), &arguments, directory, user)).expect("written");
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
}
