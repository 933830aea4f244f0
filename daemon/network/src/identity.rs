//! A node's key on disk: ed25519 in libp2p's protobuf form, readable by its owner only.
//!
//! A node that silently took a new identity would be a stranger to its peers, so a file that cannot be read as a key is
//! an error that names the remedy. A new key is written beside its place and renamed, so that a crash leaves either no
//! key or a whole one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use libp2p::identity::{KeyType, Keypair};

/// A key takes 68 bytes; a file that is longer than this is something else.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read the identity key {0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    /// The file is no key.
    #[error(
        "the identity key {0} is damaged: {1}; restore it from a backup, or remove it to let this node take a new identity"
    )]
    Damaged(PathBuf, String),
    /// A new key could not be written.
    #[error("cannot write the identity key {0}: {1}")]
    Write(PathBuf, #[source] io::Error),
}

/// Reads the key at `path`, or makes one and writes it there with mode 0600, creating the directory.
///
/// # Errors
/// When the file exists but is no ed25519 key, or when reading or writing fails. An existing file is never changed.
pub fn load_or_create(path: &Path) -> Result<Keypair, IdentityError> {
    match read_bounded(path) {
        Ok(bytes) => parse(path, &bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        Err(source) => Err(IdentityError::Read(path.to_owned(), source)),
    }
}

/// The core's form of an identity.
///
/// # Panics
/// When the key is not ed25519: [`load_or_create`] gives no other.
pub fn peer_id(identity: &Keypair) -> murmur_protocol::PeerId {
    crate::address::to_core_peer(&identity.public().to_peer_id()).expect("an identity of ours is ed25519")
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(KEY_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Keypair, IdentityError> {
    let damaged = |reason: String| IdentityError::Damaged(path.to_owned(), reason);
    if bytes.is_empty() {
        return Err(damaged("it is empty".to_owned()));
    }
    if bytes.len() as u64 > KEY_FILE_BYTES_MAX {
        return Err(damaged("it is too long for a key".to_owned()));
    }
    let keypair = Keypair::from_protobuf_encoding(bytes).map_err(|error| damaged(error.to_string()))?;
    match keypair.key_type() {
        KeyType::Ed25519 => Ok(keypair),
        other => Err(damaged(format!("it holds a key of type {other} where ed25519 belongs"))),
    }
}

fn create(path: &Path) -> Result<Keypair, IdentityError> {
    let keypair = Keypair::generate_ed25519();
    let bytes = keypair.to_protobuf_encoding().expect("an ed25519 key can be encoded");
    write_atomically(path, &bytes).map_err(|source| IdentityError::Write(path.to_owned(), source))?;
    Ok(keypair)
}

/// Temporary file, fsync, rename, fsync of the directory.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory)?;
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    // A leftover of a crashed process with the same number would make `create_new` fail.
    let _ = fs::remove_file(&temporary);
    let written = write_private(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn an_identity_is_kept() {
        let directory = directory();
        let path = directory.path().join("data/identity.key");
        let first = load_or_create(&path).expect("created");
        let second = load_or_create(&path).expect("read");
        assert_eq!(peer_id(&first), peer_id(&second));
        assert_eq!(peer_id(&first).to_string(), first.public().to_peer_id().to_string());
        let files = fs::read_dir(path.parent().expect("a parent")).expect("readable").count();
        assert_eq!(files, 1, "no temporary file is left behind");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let directory = directory();
        let path = directory.path().join("identity.key");
        load_or_create(&path).expect("created");
        let mode = fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_refused_and_left_alone() {
        let directory = directory();
        let path = directory.path().join("identity.key");
        load_or_create(&path).expect("created");
        let whole = fs::read(&path).expect("readable");
        for damaged in [&whole[..0], &whole[..20], b"hello".as_slice(), &[7; 5000]] {
            fs::write(&path, damaged).expect("writable");
            let error = load_or_create(&path).expect_err("damaged").to_string();
            assert!(error.contains("identity.key is damaged") && error.contains("remove it"), "{error}");
            assert_eq!(fs::read(&path).expect("readable"), damaged);
        }
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        let directory = directory();
        let path = directory.path().join("identity.key");
        load_or_create(&path).expect("created");
        let mut bytes = fs::read(&path).expect("readable");
        // Field 1 of the protobuf is the key's type; 2 is Secp256k1.
        bytes[1] = 2;
        fs::write(&path, bytes).expect("writable");
        assert!(matches!(load_or_create(&path), Err(IdentityError::Damaged(..))));
    }
}
