//! The membership secret of a node: from its data directory, a ticket, a file, or drawn at random.

use std::path::Path;

use murmur_protocol::Secret;
use murmur_protocol::secret::SECRET_BYTES;

use crate::failure::{ExitCode, Failure};
use crate::settings::NetworkSettings;
use crate::store::{DataDirectory, SECRET_FILE, make_private};

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
        (None, None, None) if settings.closed => draw()?,
        (None, None, None) => return Ok(None),
    };
    if kept.as_ref() != Some(&secret) {
        directory.keep_secret(&secret).map_err(|error| {
            let message = format!("cannot write {}: {error}", directory.secret_path().display());
            Failure::new(ExitCode::Files, message).hint("is the disk full, or the directory of another user?")
        })?;
    }
    Ok(Some(secret))
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

/// The secret in a file; `None` where there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<Secret>, Failure> {
    make_private(path);
    match std::fs::read_to_string(path) {
        Ok(text) => text.parse().map(Some).map_err(|error| {
            Failure::new(ExitCode::Settings, format!("{}: {error}", path.display()))
                .hint("restore the file, or ask a member for a ticket")
        }),
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
