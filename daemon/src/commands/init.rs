//! `murmur init`: the annotated files of `configs/`, to begin with.

use crate::cli::InitOptions;
use crate::console::{print_line, quoted};
use crate::failure::{ExitCode, Failure};
use crate::store::write_atomically;

const FILES: [(&str, &str); 2] = [
    ("run.toml", include_str!("../../../configs/runs/stories.toml")),
    ("node.toml", include_str!("../../../configs/nodes/default.toml")),
];

pub(super) fn run(options: &InitOptions) -> anyhow::Result<()> {
    let directory = &options.directory;
    let unwritable = |path: &std::path::Path, error: std::io::Error| {
        Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
            .hint("give a folder that this user may write to")
    };
    std::fs::create_dir_all(directory).map_err(|error| unwritable(directory, error))?;
    if let Some((name, _)) = FILES.iter().find(|(name, _)| directory.join(name).exists() && !options.force) {
        let message = format!("{} exists", directory.join(name).display());
        return Err(Failure::new(ExitCode::Files, message).hint("--force overwrites it").into());
    }
    for (name, content) in FILES {
        let path = directory.join(name);
        // Whole or not at all: half a file would be in the way of the next try.
        write_atomically(&path, content.as_bytes()).map_err(|error| unwritable(&path, error))?;
        eprintln!("wrote {}", path.display());
    }
    print_line(&format!(
        "murmur start {} --node {}",
        quoted(&directory.join("run.toml")),
        quoted(&directory.join("node.toml"))
    ));
    Ok(())
}
