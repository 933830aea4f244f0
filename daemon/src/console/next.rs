//! What can be done with a run once it has ended: commands to paste, with its folder in them.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;

/// The two or three commands that come next for the data directory of a node.
pub(crate) fn next_commands(directory: &Path, manifest: &RunManifest) -> Vec<String> {
    let folder = quoted(directory);
    let mut commands = Vec::new();
    let with_base = if manifest.lora.rank > 0 { " --base FOLDER" } else { "" };
    let with_tokenizer = if manifest.data.tokenizer.is_empty() { "" } else { " --tokenizer FILE" };
    if !manifest.model.kind.reads_images() {
        commands.push(format!("murmur sample {folder}{with_base}{with_tokenizer}"));
    }
    if manifest.data.source == DataSource::Table {
        commands.push(format!("murmur predict {folder} --data FILES"));
    }
    let has_own_files = manifest.data.source != DataSource::Grammar && !manifest.data.share;
    let with_files = if has_own_files { " --data FILES" } else { "" };
    commands.push(format!("murmur eval {folder}{with_base}{with_tokenizer}{with_files}"));
    commands.push(format!("murmur start --data-dir {folder}{with_base}{with_tokenizer}{with_files}"));
    commands
}

/// A path as it can be pasted into a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_folder_and_what_the_run_needs() {
        let mut manifest = RunManifest::default();
        let directory = Path::new("/tmp/it's here");
        let shown = next_commands(directory, &manifest);
        assert_eq!(shown[0], r"murmur sample '/tmp/it'\''s here'");
        assert_eq!(shown[2], r"murmur start --data-dir '/tmp/it'\''s here'");
        manifest.data.source = DataSource::Files;
        manifest.lora.rank = 8;
        assert_eq!(next_commands(Path::new("/a"), &manifest)[1], "murmur eval /a --base FOLDER --data FILES");
    }
}
