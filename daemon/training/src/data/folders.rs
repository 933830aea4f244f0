//! What a run reads of the user's folders: all files in them and below, but for those that cannot be meant.
//!
//! A file that is given by its own name is taken as it is: what is wrong with it is an error. In a folder, empty files,
//! files of another kind and the data directories of murmur itself are left out, and said so: nobody wants a model that
//! has learned its own checkpoints.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use murmur_protocol::manifest::DataSource;

use super::CorpusError;
use crate::regular;

/// Folders in folders are followed this deep. A guess.
const DEPTH_MAX: usize = 16;

/// The beginning of a file that tells its kind, in bytes: as much as git looks at.
const HEAD_BYTES: usize = 8000;

/// Names of files that are images.
pub(super) const IMAGE_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Names of files that are JSON Lines.
const JSON_EXTENSIONS: [&str; 3] = ["jsonl", "ndjson", "json"];

/// A text holds fewer control characters than one in this many bytes; compressed data has one in nine.
const BYTES_PER_CONTROL: usize = 20;

/// What a folder holds that is not trained on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The file or folder.
    pub path: PathBuf,
    /// Why it is left out.
    pub reason: Reason,
}

/// Why a file or folder is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It holds nothing.
    Empty,
    /// It is no text.
    Binary,
    /// It is not of the kind that the run reads.
    OtherKind,
    /// A pipe, a socket or a device.
    NoFile,
    /// Checkpoints and settings of a node, or of a local swarm.
    DataDirectory,
    /// A link that leads nowhere, or what has gone meanwhile.
    Gone,
    /// A link to a folder that it lies in.
    Loop,
    /// A folder in more folders than are followed.
    TooDeep,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Reason::Empty => "empty",
            Reason::Binary => "binary",
            Reason::OtherKind => "of another kind",
            Reason::NoFile => "no regular file",
            Reason::DataDirectory => "a data directory of murmur",
            Reason::Gone => "leads nowhere",
            Reason::Loop => "a link to a folder that it lies in",
            Reason::TooDeep => "more than 16 folders deep",
        };
        write!(formatter, "{} ({reason})", self.path.display())
    }
}

/// What some paths name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What is read, in order.
    pub files: Vec<PathBuf>,
    /// What is not.
    pub left_out: Vec<LeftOut>,
    /// What is read as text because it was named, though it looks like none.
    pub doubtful: Vec<LeftOut>,
}

/// The files that `paths` name, in order: a folder stands for all files in it and below that a run of this source reads,
/// sorted by path, without hidden ones.
///
/// # Errors
/// When there is no path, one cannot be read, is a data directory of murmur, or a folder holds nothing to read.
pub fn list(source: DataSource, paths: &[PathBuf]) -> Result<Listing, CorpusError> {
    let mut listing = listed(source, paths)?;
    if source == DataSource::ImageFolders {
        let is_read = |path: &PathBuf| {
            let is_of_class = |root: &PathBuf| path.parent().and_then(Path::parent) == Some(root.as_path());
            paths.contains(path) || (is_called(path, &IMAGE_EXTENSIONS) && paths.iter().any(is_of_class))
        };
        let (read, others): (Vec<PathBuf>, Vec<PathBuf>) = listing.files.into_iter().partition(is_read);
        listing.files = read;
        listing.left_out.extend(others.into_iter().map(|path| LeftOut { path, reason: Reason::OtherKind }));
    }
    Ok(listing)
}

/// The same, with all that lies among images: their digest is of that, too.
fn listed(source: DataSource, paths: &[PathBuf]) -> Result<Listing, CorpusError> {
    if paths.is_empty() {
        return Err(CorpusError::NoFiles);
    }
    let mut listing = Listing::default();
    for path in paths {
        if !path.is_dir() {
            // What cannot be read is an error when it is opened.
            let reason = head(path).ok().and_then(|head| reason_against(source, path, &head));
            match (source, reason) {
                (DataSource::Files, Some(Reason::Binary)) => {
                    listing.doubtful.push(LeftOut { path: path.clone(), reason: Reason::Binary });
                }
                (DataSource::JsonLines, Some(Reason::Binary | Reason::OtherKind)) => {
                    return Err(CorpusError::OtherKind(path.clone(), "JSON Lines"));
                }
                (DataSource::Parquet, Some(Reason::OtherKind)) => {
                    return Err(CorpusError::OtherKind(path.clone(), "Parquet"));
                }
                _ => {}
            }
            listing.files.push(path.clone());
            continue;
        }
        if is_data_directory(path) {
            return Err(CorpusError::DataDirectory(path.clone()));
        }
        let (files, left_out) = (listing.files.len(), listing.left_out.len());
        collect(source, path, &mut Vec::new(), &mut listing)?;
        if listing.files.len() == files {
            return Err(match &listing.left_out[left_out..] {
                [] => CorpusError::NothingIn(path.clone(), "file"),
                others => CorpusError::AllLeftOut(path.clone(), described(others)),
            });
        }
    }
    Ok(listing)
}

/// The same without what is left out.
pub(super) fn list_files(source: DataSource, paths: &[PathBuf]) -> Result<Vec<PathBuf>, CorpusError> {
    Ok(listed(source, paths)?.files)
}

/// How many there are, with the first of them.
pub fn described(left_out: &[LeftOut]) -> String {
    const NAMED_MAX: usize = 3;
    let names: Vec<String> = left_out.iter().take(NAMED_MAX).map(LeftOut::to_string).collect();
    match left_out.len().saturating_sub(NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// `around`: the folders that it lies in, links followed.
fn collect(
    source: DataSource,
    folder: &Path,
    around: &mut Vec<PathBuf>,
    listing: &mut Listing,
) -> Result<(), CorpusError> {
    let unreadable = |path: &Path, source| CorpusError::Unreadable(path.to_owned(), source);
    around.push(folder.canonicalize().map_err(|error| unreadable(folder, error))?);
    for path in entries(folder)? {
        let kind = match std::fs::metadata(&path) {
            Ok(kind) => kind,
            Err(error) if leads_nowhere(&path, &error) => {
                listing.left_out.push(LeftOut { path, reason: Reason::Gone });
                continue;
            }
            Err(error) => return Err(unreadable(&path, error)),
        };
        let reason = if kind.is_dir() {
            let place = path.canonicalize().map_err(|error| unreadable(&path, error))?;
            if around.contains(&place) {
                Some(Reason::Loop)
            } else if is_data_directory(&path) {
                Some(Reason::DataDirectory)
            } else if around.len() == DEPTH_MAX {
                Some(Reason::TooDeep)
            } else {
                collect(source, &path, around, listing)?;
                continue;
            }
        } else if kind.is_file() {
            reason_against(source, &path, &head(&path).map_err(|error| unreadable(&path, error))?)
        } else {
            Some(Reason::NoFile)
        };
        match reason {
            None => listing.files.push(path),
            Some(reason) => listing.left_out.push(LeftOut { path, reason }),
        }
    }
    around.pop();
    Ok(())
}

/// Whether an entry that cannot be looked at is none: a link to nothing or to itself, or gone since the folder was read.
fn leads_nowhere(path: &Path, error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || (error.kind() != ErrorKind::PermissionDenied && std::fs::read_link(path).is_ok())
}

/// What lies in a folder, sorted by name, without hidden entries.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, CorpusError> {
    let unreadable = |source| CorpusError::Unreadable(folder.to_owned(), source);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// A node's data directory has its key, a local swarm's folder has such directories in it.
fn is_data_directory(folder: &Path) -> bool {
    let is_node = |folder: &Path| folder.join("identity.key").is_file();
    is_node(folder) || (folder.join("run.toml").is_file() && folder.join("node-0").is_dir())
}

fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    regular::open(path)?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Why a file that begins like this is not what a run of this source reads.
fn reason_against(source: DataSource, path: &Path, head: &[u8]) -> Option<Reason> {
    let is_compressed = head.starts_with(&[0x1f, 0x8b]);
    match source {
        _ if head.is_empty() => Some(Reason::Empty),
        DataSource::Grammar | DataSource::ImageFolders => None,
        DataSource::Files => is_binary(head).then_some(Reason::Binary),
        DataSource::JsonLines if !is_compressed && is_binary(head) => Some(Reason::Binary),
        // What is wrong in a file that is called so is an error with its line.
        DataSource::JsonLines if is_called_json(path) => None,
        DataSource::JsonLines => (!begins_with_object(head, is_compressed)).then_some(Reason::OtherKind),
        DataSource::Table if head.starts_with(b"PAR1") || is_compressed => None,
        DataSource::Table => is_binary(head).then_some(Reason::Binary),
        DataSource::Parquet => (!head.starts_with(b"PAR1")).then_some(Reason::OtherKind),
        DataSource::Idx => (!is_compressed && !head.starts_with(&[0, 0])).then_some(Reason::OtherKind),
    }
}

/// Whether a file's name ends so.
pub(super) fn is_called(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    extensions.contains(&extension.as_str())
}

/// Whether it is that of JSON Lines, which may be compressed.
fn is_called_json(path: &Path) -> bool {
    let is_compressed = is_called(path, &["gz"]);
    let name = if is_compressed { path.file_stem().map_or(path, Path::new) } else { path };
    is_called(name, &JSON_EXTENSIONS)
}

/// Also true where nothing but space can be read.
fn begins_with_object(head: &[u8], is_compressed: bool) -> bool {
    let mut plain = [0; 512];
    let begins = if is_compressed {
        let length = MultiGzDecoder::new(head).read(&mut plain).unwrap_or(0);
        &plain[..length]
    } else {
        head
    };
    let begins = begins.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begins);
    begins.trim_ascii_start().first().is_none_or(|byte| *byte == b'{')
}

/// A zero byte, as git has it, or many control characters: compressed data without one at its beginning.
fn is_binary(head: &[u8]) -> bool {
    let is_control = |byte: &&u8| matches!(byte, 0x01..=0x08 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f);
    head.contains(&0) || head.iter().filter(is_control).count() * BYTES_PER_CONTROL > head.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path, paths: &[PathBuf]) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(root).expect("inside").display().to_string();
        paths.iter().map(name).collect()
    }

    fn left_out(root: &Path, listing: &Listing) -> Vec<(String, Reason)> {
        let paths: Vec<PathBuf> = listing.left_out.iter().map(|left| left.path.clone()).collect();
        names(root, &paths).into_iter().zip(listing.left_out.iter().map(|left| left.reason)).collect()
    }

    #[test]
    fn folders_stand_for_their_files_in_order_and_hidden_ones_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("b")).expect("a folder");
        for name in ["c.txt", "a.txt", "b/z.txt", ".hidden"] {
            std::fs::write(folder.path().join(name), name).expect("written");
        }
        let listing = list(DataSource::Files, &[folder.path().to_owned()]).expect("files");
        assert_eq!(names(folder.path(), &listing.files), ["a.txt", "b/z.txt", "c.txt"]);
        assert_eq!(listing.left_out, []);
        let empty = tempfile::tempdir().expect("a folder");
        let error = list(DataSource::Files, &[empty.path().to_owned()]).expect_err("nothing in it").to_string();
        assert!(error.contains("holds no file"), "{error}");
    }

    #[test]
    fn empty_and_binary_files_of_a_folder_are_left_out_and_given_by_name_they_are_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let noise: Vec<u8> = (0..4000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
        let files: [(&str, &[u8]); 6] = [
            ("a.txt", b"text\r\n\tand \x1b[1mmore\x1b[0m"),
            ("b.png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"),
            ("c.txt", b""),
            ("d.bin", &noise),
            ("latin.txt", b"gr\xfc\xdfe aus K\xf6ln"),
            ("utf8.txt", "größe 雀".as_bytes()),
        ];
        for (name, content) in files {
            std::fs::write(root.join(name), content).expect("written");
        }
        let listing = list(DataSource::Files, &[root.to_owned()]).expect("files");
        assert_eq!(names(root, &listing.files), ["a.txt", "latin.txt", "utf8.txt"]);
        let expected = [("b.png", Reason::Binary), ("c.txt", Reason::Empty), ("d.bin", Reason::Binary)];
        assert_eq!(left_out(root, &listing), expected.map(|(name, reason)| (name.to_owned(), reason)));
        let text = described(&listing.left_out);
        assert!(text.contains("b.png (binary)") && text.contains("c.txt (empty)"), "{text}");
        let named = [root.join("c.txt"), root.join("d.bin")];
        let listing = list(DataSource::Files, &named).expect("as they are");
        assert_eq!((listing.files, listing.left_out), (named.to_vec(), Vec::new()));
        let doubtful: Vec<Reason> = listing.doubtful.iter().map(|doubtful| doubtful.reason).collect();
        assert_eq!(doubtful, [Reason::Binary]);
        for name in ["a.txt", "latin.txt", "utf8.txt"] {
            std::fs::remove_file(root.join(name)).expect("there");
        }
        let error = list(DataSource::Files, &[root.to_owned()]).expect_err("nothing is left").to_string();
        assert!(error.contains("nothing to train on") && error.contains("c.txt (empty)"), "{error}");
    }

    /// What is held out would be trained on in a second copy.
    #[cfg(unix)]
    #[test]
    fn links_that_lead_around_or_nowhere_are_left_out() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::create_dir(root.join("b")).expect("a folder");
        std::fs::write(root.join("a.txt"), "text").expect("written");
        std::fs::write(root.join("b/c.txt"), "text").expect("written");
        let links = [("loop", "."), ("gone", "nowhere"), ("itself", "itself"), ("b/up", ".."), ("b/a.txt", "../a.txt")];
        links.into_iter().for_each(|(link, target)| symlink(target, root.join(link)).expect("linked"));
        let listing = list(DataSource::Files, &[root.to_owned()]).expect("files");
        assert_eq!(names(root, &listing.files), ["a.txt", "b/a.txt", "b/c.txt"]);
        let expected =
            [("b/up", Reason::Loop), ("gone", Reason::Gone), ("itself", Reason::Gone), ("loop", Reason::Loop)];
        assert_eq!(left_out(root, &listing), expected.map(|(name, reason)| (name.to_owned(), reason)));
    }

    #[test]
    fn folders_that_are_too_deep_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |depth: usize| (1..depth).fold(folder.path().to_owned(), |path, _| path.join("d"));
        std::fs::create_dir_all(path(DEPTH_MAX + 2)).expect("folders");
        for depth in [1, DEPTH_MAX, DEPTH_MAX + 1] {
            std::fs::write(path(depth).join("a.txt"), "text").expect("written");
        }
        let listing = list(DataSource::Files, &[folder.path().to_owned()]).expect("files");
        assert_eq!(listing.files, [path(1).join("a.txt"), path(DEPTH_MAX).join("a.txt")]);
        assert_eq!(listing.left_out, [LeftOut { path: path(DEPTH_MAX + 1), reason: Reason::TooDeep }]);
        assert!(described(&listing.left_out).contains(&format!("more than {DEPTH_MAX} folders deep")));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_that_is_named_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(super::super::files::JoinedFiles::open(&[pipe]).map(|_| ())));
        let opened = told.recv_timeout(std::time::Duration::from_secs(5)).expect("an answer at once");
        let message = opened.expect_err("a pipe").to_string();
        assert!(message.contains("no regular file"), "{message}");
    }

    #[test]
    fn a_folder_of_another_kind_of_data_is_read_for_that_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"a,b\n1,2\n").expect("compressed");
        let table = encoder.finish().expect("compressed");
        let files: [(&str, &[u8]); 9] = [
            ("README.md", b"# Data"),
            ("bad.jsonl", b"no object"),
            ("bad.jsonl.gz", &table),
            ("d.csv.gz", &table),
            ("e.txt", b"\xef\xbb\xbf\n {\"text\": \"a\"}"),
            ("f.csv", b"a,b"),
            ("a.parquet", b"PAR1\0\0"),
            ("b.gz", b"\x1f\x8b\x08\0"),
            ("c.idx", b"\0\0\x08\x01"),
        ];
        for (name, content) in files {
            std::fs::write(root.join(name), content).expect("written");
        }
        let listed = |source| names(root, &list(source, &[root.to_owned()]).expect("files").files);
        assert_eq!(listed(DataSource::Parquet), ["a.parquet"]);
        assert_eq!(listed(DataSource::Idx), ["b.gz", "bad.jsonl.gz", "c.idx", "d.csv.gz"]);
        let json = list(DataSource::JsonLines, &[root.to_owned()]).expect("files");
        let expected = ["b.gz", "bad.jsonl", "bad.jsonl.gz", "e.txt"];
        assert_eq!(names(root, &json.files), expected, "what is no JSON in bad.jsonl is an error with its line");
        let others: Vec<String> =
            json.left_out.iter().filter(|left| left.reason == Reason::OtherKind).map(|left| left.to_string()).collect();
        assert!(others.len() == 3 && others[0].ends_with("README.md (of another kind)"), "{others:?}");
        for (source, name, kind) in [
            (DataSource::JsonLines, "README.md", "JSON Lines"),
            (DataSource::JsonLines, "a.parquet", "JSON Lines"),
            (DataSource::Parquet, "f.csv", "Parquet"),
        ] {
            let error = list(source, &[root.join(name)]).expect_err("of another kind");
            assert!(error.to_string().ends_with(&format!("{name} is no {kind}, which this run reads")), "{error}");
            assert!(error.remedy().starts_with("data.source"), "{}", error.remedy());
        }
    }

    #[test]
    fn what_lies_among_images_is_named_and_counts_in_the_digest_as_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::create_dir_all(root.join("cat/old")).expect("folders");
        for name in ["cat/1.PNG", "cat/2.jpeg", "cat/readme.txt", "cat/old/3.png", "4.png"] {
            std::fs::write(root.join(name), "content").expect("written");
        }
        let roots = [root.to_owned()];
        let listing = list(DataSource::ImageFolders, &roots).expect("files");
        assert_eq!(names(root, &listing.files), ["cat/1.PNG", "cat/2.jpeg"]);
        let expected = ["4.png", "cat/old/3.png", "cat/readme.txt"].map(|name| (name.to_owned(), Reason::OtherKind));
        assert_eq!(left_out(root, &listing), expected);
        assert_eq!(list_files(DataSource::ImageFolders, &roots).expect("files").len(), 5);
    }

    /// The digest of the data must not depend on whether a node has its own directory among them.
    #[test]
    fn data_directories_of_murmur_are_never_trained_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::write(root.join("book.txt"), "a book").expect("written");
        let before = list(DataSource::Files, &[root.to_owned()]).expect("files").files;
        for (directory, file) in [("node", "identity.key"), ("swarm/node-0", "log"), ("swarm", "run.toml")] {
            std::fs::create_dir_all(root.join(directory)).expect("a folder");
            std::fs::write(root.join(directory).join(file), "text").expect("written");
        }
        let listing = list(DataSource::Files, &[root.to_owned()]).expect("files");
        assert_eq!(listing.files, before);
        let expected = ["node", "swarm"].map(|name| (name.to_owned(), Reason::DataDirectory));
        assert_eq!(left_out(root, &listing), expected);
        let error = list(DataSource::Files, &[root.join("node")]).expect_err("a data directory").to_string();
        assert!(error.contains("is a data directory of murmur"), "{error}");
    }
}
