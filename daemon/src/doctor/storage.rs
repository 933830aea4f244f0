//! Disk: space for checkpoints, and the speed of writing them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::Finding;
use crate::console::human_bytes;
use crate::limits::memory_check;
use crate::store::{checkpoints_in, free_bytes};

/// Written to measure the speed: enough that the time is not all seeking, little enough not to annoy.
const WRITTEN_BYTES: usize = 32 * 1024 * 1024;

/// Checks the folder that `directory` is or will be in; `keep` checkpoints of so many bytes are kept.
pub fn check_storage(directory: &Path, checkpoint_bytes: u64, keep: usize) -> Finding {
    if directory.exists() && !directory.is_dir() {
        let text = format!("{} is no folder", directory.display());
        return Finding::problem("disk", text, "choose another one with --data-dir");
    }
    let Some(place) = existing(directory) else {
        let text = format!("{} cannot be reached", directory.display());
        return Finding::problem("disk", text, "choose another folder with --data-dir");
    };
    let there = checkpoints_in(&directory.join("checkpoints"));
    let free = free_bytes(&place);
    let fix = "free some space, or choose another disk with --data-dir";
    match memory_check::check_disk(&place, checkpoint_bytes, (keep, there)) {
        Err(failure) => return Finding::of_failure("disk", &failure),
        Ok(Some(_)) => {
            let free = human_bytes(free.unwrap_or_default());
            let text = format!(
                "{free} free in {}, a checkpoint takes {}: the oldest goes before a new one is written",
                place.display(),
                human_bytes(checkpoint_bytes)
            );
            return Finding::warning("disk", text, fix);
        }
        Ok(None) => {}
    }
    match write_speed(&place) {
        Ok(speed) => {
            let free = free.map_or_else(|| "unknown space".to_owned(), human_bytes);
            // One more than is kept: the next one is written before the oldest goes.
            let (speed, needed) = (human_bytes(speed), human_bytes(checkpoint_bytes * (keep as u64 + 1)));
            let text = format!("{speed}/s, {free} free in {}, checkpoints take {needed}", place.display());
            Finding::good("disk", text)
        }
        Err(error) => Finding::problem("disk", format!("cannot write in {}: {error}", place.display()), fix),
    }
}

/// The directory, or the nearest folder above it that exists: nothing is created.
fn existing(directory: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(directory).ok()?;
    absolute.ancestors().find(|place| place.is_dir()).map(Path::to_owned)
}

/// Bytes a second, synced to the disk.
fn write_speed(place: &Path) -> std::io::Result<u64> {
    let path = place.join(format!(".murmur-doctor-{}", std::process::id()));
    let written = (|| {
        let mut file = std::fs::File::create(&path)?;
        let bytes = vec![0x5a; 1024 * 1024];
        let begin = Instant::now();
        for _ in 0..WRITTEN_BYTES / bytes.len() {
            file.write_all(&bytes)?;
        }
        file.sync_all()?;
        Ok((WRITTEN_BYTES as f64 / begin.elapsed().as_secs_f64()) as u64)
    })();
    let removed = std::fs::remove_file(&path);
    written.and_then(|speed| removed.map(|()| speed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[test]
    fn a_folder_that_does_not_exist_yet_is_checked_where_it_will_be_and_left_clean() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let finding = check_storage(&root.path().join("not/yet"), 1000, 2);
        assert_eq!(finding.health, Health::Good, "{finding:?}");
        assert_eq!(std::fs::read_dir(root.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_model_larger_than_the_disk_is_a_problem() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let finding = check_storage(root.path(), 1 << 55, 2);
        assert_eq!(finding.health, Health::Problem);
        assert!(!finding.fix.is_empty());
        // With two of them the older one gives way, and a daemon starts.
        for step in [1, 2] {
            std::fs::create_dir_all(root.path().join(format!("checkpoints/step-{step}"))).expect("made");
        }
        let finding = check_storage(root.path(), 1 << 55, 2);
        assert_eq!(finding.health, Health::Warning, "{finding:?}");
    }
}
