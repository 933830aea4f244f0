//! What can be done with a run once it has ended: commands to paste, with its folder in them.

use std::path::{Path, PathBuf};

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;

use crate::named;

/// What a node was given beside its run file, which the commands need again. What is not known stands there by its kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given<'a> {
    /// Folder of the base model.
    pub(crate) base: Option<&'a Path>,
    /// The tokenizer's file.
    pub(crate) tokenizer: Option<&'a Path>,
    /// Files and folders of data.
    pub(crate) files: &'a [PathBuf],
    /// Other options of the node, each behind a space.
    pub(crate) again: &'a str,
}

/// Tokens of a model that reads bytes.
const BYTES: u32 = 256;

/// More of them are not repeated.
const FILES_SHOWN_MAX: usize = 4;

impl Given<'_> {
    /// Such as ` --base FOLDER`, where the run needs it.
    fn option(name: &str, is_needed: bool, given: Option<&Path>, kind: &str) -> String {
        if is_needed { format!(" --{name} {}", given.map_or(kind.to_owned(), again)) } else { String::new() }
    }

    fn files(&self) -> String {
        let are_shown = (1..=FILES_SHOWN_MAX).contains(&self.files.len());
        let files: Vec<String> = self.files.iter().map(|file| again(file)).collect();
        if are_shown { files.join(" ") } else { "FILES".to_owned() }
    }
}

/// The two or three commands that come next for the data directory of a node.
pub(crate) fn next_commands(directory: &Path, manifest: &RunManifest, given: &Given<'_>) -> Vec<String> {
    let folder = quoted(directory);
    let mut commands = Vec::new();
    let Needed { with_base, with_tokenizer, with_files } = Needed::of(manifest, given);
    // Without a tokenizer, only tokens that are bytes can be shown.
    let can_be_shown = !manifest.data.tokenizer.is_empty() || manifest.model.vocabulary() <= BYTES;
    if manifest.model.reads_text() && can_be_shown {
        commands.push(format!("murmur sample {folder}{with_base}{with_tokenizer}"));
    }
    if manifest.data.source == DataSource::Table {
        commands.push(format!("murmur predict {folder} --data FILES"));
    }
    commands.push(format!("murmur eval {folder}{with_base}{with_tokenizer}{with_files}"));
    commands.push(start_command(directory, manifest, given));
    commands
}

/// The line that starts the node of a data directory again.
pub(crate) fn start_command(directory: &Path, manifest: &RunManifest, given: &Given<'_>) -> String {
    let Needed { with_base, with_tokenizer, with_files } = Needed::of(manifest, given);
    format!("murmur start --data-dir {}{with_base}{with_tokenizer}{with_files}{}", quoted(directory), given.again)
}

/// Options that a run needs again, each behind a space; empty where it does not.
struct Needed {
    with_base: String,
    with_tokenizer: String,
    with_files: String,
}

impl Needed {
    fn of(manifest: &RunManifest, given: &Given<'_>) -> Needed {
        // Of data that are shared, whoever has given them keeps no copy.
        let has_own_files =
            manifest.data.source != DataSource::Grammar && (!manifest.data.share || !given.files.is_empty());
        Needed {
            with_base: Given::option("base", manifest.lora.rank > 0, given.base, "FOLDER"),
            with_tokenizer: Given::option("tokenizer", !manifest.data.tokenizer.is_empty(), given.tokenizer, "FILE"),
            with_files: if has_own_files { format!(" --data {}", given.files()) } else { String::new() },
        }
    }
}

/// What is remote, as its owner would type it again.
fn again(path: &Path) -> String {
    quoted(&named::typed(path))
}

/// A path as it can be pasted into a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::TransformerModel;

    use super::*;

    #[test]
    fn commands_name_the_folder_and_what_the_run_needs() {
        let mut manifest = RunManifest::default();
        let directory = Path::new("/tmp/it's here");
        let shown = next_commands(directory, &manifest, &Given::default());
        assert_eq!(shown[0], r"murmur sample '/tmp/it'\''s here'");
        assert_eq!(shown[2], r"murmur start --data-dir '/tmp/it'\''s here'");
        manifest.data.source = DataSource::Files;
        manifest.lora.rank = 8;
        let eval = |given: &Given<'_>| next_commands(Path::new("/a"), &manifest, given).remove(1);
        assert_eq!(eval(&Given::default()), "murmur eval /a --base FOLDER --data FILES");
        let files = ["my book.txt", "/b"].map(PathBuf::from);
        let given = Given {
            base: Some(Path::new("/m")),
            tokenizer: Some(Path::new("/unused")),
            files: &files,
            again: " --name=ada",
        };
        assert_eq!(eval(&given), "murmur eval /a --base /m --data 'my book.txt' /b");
        let start = next_commands(Path::new("/a"), &manifest, &given).remove(2);
        assert!(start.ends_with(" --data 'my book.txt' /b --name=ada"), "{start}");
        let mut shared = manifest.clone();
        shared.data.share = true;
        let start = |given: &Given<'_>| next_commands(Path::new("/a"), &shared, given).remove(2);
        assert!(start(&given).ends_with(" --data 'my book.txt' /b --name=ada"), "the founder");
        assert_eq!(start(&Given { files: &[], again: "", ..given }), "murmur start --data-dir /a --base /m");
        let many = vec![PathBuf::from("/b"); 99];
        assert!(eval(&Given { files: &many, ..given }).ends_with(" --data FILES"));
    }

    #[test]
    fn no_sample_is_offered_of_tokens_that_nothing_can_read() {
        let model = TransformerModel { vocabulary: 400, ..TransformerModel::default() }.into();
        let mut manifest = RunManifest { model, ..RunManifest::default() };
        let first = |manifest: &RunManifest| next_commands(Path::new("/a"), manifest, &Given::default()).remove(0);
        assert_eq!(first(&manifest), "murmur eval /a");
        manifest.data.tokenizer = "00".repeat(32);
        assert_eq!(first(&manifest), "murmur sample /a --tokenizer FILE");
    }
}
