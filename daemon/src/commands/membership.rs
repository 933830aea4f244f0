//! The membership secret of a node: from its data directory, a ticket, a file, or drawn at random.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use murmur_protocol::Secret;
use murmur_protocol::secret::SECRET_BYTES;

use crate::failure::{ExitCode, Failure};
use crate::settings::NetworkSettings;
use crate::store::{DataDirectory, SECRET_FILE, make_private};

/// More than a secret and its line's end: a device may have no end.
const FILE_BYTES_MAX: u64 = 4096;

/// The secret that a node takes part with, kept in its data directory from now on; `None` in an open run. `ticket`: from a
/// ticket that a member has honoured, so that it replaces an older one.
///
/// # Errors
/// When a file cannot be read or is no secret, or when the owner's file and the data directory differ.
pub(super) fn resolve(
    directory: &DataDirectory,
    settings: &NetworkSettings,
    ticket: Option<Secret>,
) -> Result<Option<Secret>, Failure> {
    let kept = read(&directory.secret_path())?;
    let given = from_settings(settings)?;
    let secret = match (ticket, given, &kept) {
        (Some(ticket), _, _) => ticket,
        (None, Some(given), Some(kept)) if given != *kept => {
            let message = format!(
                "{} holds another membership secret than {}",
                directory.root().display(),
                settings.secret_file.display()
            );
            let hint = format!("to change it on this node, remove {SECRET_FILE} from the data directory");
            return Err(Failure::new(ExitCode::Settings, message).hint(hint));
        }
        (None, Some(given), _) => given,
        (None, None, Some(kept)) => kept.clone(),
        (None, None, None) if directory.is_closed() => return Err(lost(directory)),
        (None, None, None) if settings.closed => draw()?,
        (None, None, None) => return Ok(None),
    };
    let keep = || if kept.as_ref() == Some(&secret) { Ok(()) } else { directory.keep_secret(&secret) };
    keep().and_then(|()| directory.mark_closed()).map_err(|error| {
        let message = format!("cannot keep the membership secret in {}: {error}", directory.root().display());
        Failure::new(ExitCode::Files, message).hint("is the disk full, or the directory of another user?")
    })?;
    Ok(Some(secret))
}

/// The run is closed, and its secret is not there: an open run, or one with another secret, would be another swarm.
fn lost(directory: &DataDirectory) -> Failure {
    let root = directory.root().display();
    Failure::new(ExitCode::Files, format!("the run in {root} is closed, and its {SECRET_FILE} is missing")).hint(
        "restore that file from a backup (only its owner may read it, so a copy that another user makes lacks it); or join \
         again with the ticket of a member: murmur join TICKET --data-dir FOLDER",
    )
}

/// The secret in the file that the settings name.
pub(super) fn from_settings(settings: &NetworkSettings) -> Result<Option<Secret>, Failure> {
    let path = &settings.secret_file;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let secret = read(path)?.ok_or_else(|| {
        Failure::new(ExitCode::Settings, format!("there is no membership secret at {}", path.display()))
            .hint("--closed draws one; or write 64 hexadecimal digits there, such as from `openssl rand -hex 32`")
    })?;
    Ok(Some(secret))
}

/// The secret in a file, which is its owner's alone from now on; `None` where there is no such file. What holds no secret is left
/// as it is.
pub(super) fn read(path: &Path) -> Result<Option<Secret>, Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => {
            let secret = text.parse().map_err(|error| {
                Failure::new(ExitCode::Settings, format!("{}: {error}", path.display()))
                    .hint("restore the file, or ask a member for a ticket")
            })?;
            make_private(path);
            Ok(Some(secret))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(ExitCode::Files, format!("cannot read {}: {error}", path.display()))
            .hint("may this user read it?")),
    }
}

fn draw() -> Result<Secret, Failure> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("the system gives no randomness: {error}")))?;
    Ok(Secret::from_bytes(bytes))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_closed_run_does_not_start_without_its_secret() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = DataDirectory::open(folder.path()).expect("free");
        let mut settings = NetworkSettings::default();
        assert!(resolve(&directory, &settings, None).expect("open").is_none());
        settings.closed = true;
        let secret = resolve(&directory, &settings, None).expect("drawn").expect("closed");
        std::fs::remove_file(directory.secret_path()).expect("there");
        for closed in [false, true] {
            settings.closed = closed;
            let failure = resolve(&directory, &settings, None).expect_err("lost");
            assert!(failure.code() == ExitCode::Files && failure.to_string().contains(SECRET_FILE), "{failure}");
            assert!(!directory.secret_path().exists());
        }
        assert!(resolve(&directory, &settings, Some(secret.clone())).expect("a ticket") == Some(secret));
        // As an earlier version left it.
        let marker = folder.path().join("closed");
        std::fs::remove_file(&marker).expect("there");
        assert!(resolve(&directory, &NetworkSettings::default(), None).expect("kept").is_some() && marker.exists());
    }

    #[test]
    fn only_a_file_that_holds_a_secret_is_made_private() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("secret");
        let mode = || std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        for (content, is_secret, expected) in [("notes", false, 0o644), (&*"ab".repeat(SECRET_BYTES), true, 0o600)] {
            std::fs::write(&path, content).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
            assert_eq!((read(&path).is_ok(), mode()), (is_secret, expected), "{content}");
        }
        // Anybody could write to it before, and must be able to still.
        assert!(read(Path::new("/dev/null")).is_err() && read(Path::new("/dev/zero")).is_err());
        let null = std::fs::metadata("/dev/null").expect("there").permissions().mode();
        assert_eq!(null & 0o777, 0o666);
        assert!(read(&folder.path().join("absent")).expect("no failure").is_none());
    }
}
