//! Opening what has to be a regular file: a pipe would make its reader wait for ever, and a device has no end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// When it cannot be opened, or is a folder, pipe, socket or device.
pub(crate) fn open(path: &Path) -> Result<File> {
    // Looked at first: to open a pipe is to wait for somebody who writes.
    match std::fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Reads a regular file of at most `bytes_max`.
///
/// # Errors
/// As [`open`], or when it is longer.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    // One more than allowed tells that it is too long, however long it is and whatever its length is said to be.
    open(path)?.take(bytes_max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > bytes_max {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("it has more than the {bytes_max} bytes that are read"),
        ));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_too_long_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).expect("written");
        assert_eq!(read(&file, 100).expect("short enough"), [7; 100]);
        let message = read(&file, 99).expect_err("too long").to_string();
        assert!(message.contains("99 bytes"), "{message}");
        assert!(read(folder.path(), 99).expect_err("a folder").to_string().contains("no regular file"));
        if cfg!(target_os = "linux") {
            assert!(read(Path::new("/dev/zero"), 99).is_err());
            let pipe = folder.path().join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there");
            assert!(made.success());
            assert!(open(&pipe).expect_err("a pipe without a writer").to_string().contains("no regular file"));
        }
    }
}
