//! Repositories of the Hugging Face hub, by its HTTP interface (huggingface.co/docs/hub/api) and through its own cache, so
//! that what Python has loaded is here, and the other way round.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use ureq::http::StatusCode;

use super::Purpose;
use super::address::{Address, HubAddress, HubKind, encoded, is_sha256};
use super::cache::{Entry, Listing, Repository, hub_home, own_root, unwritten};
use super::download::Known;
use super::http::{Answer, Reach, Request, is_passing, server};
use super::loading::{Origin, load_all};
use super::names;
use super::trouble::Trouble;
use super::{PAGES_MAX, Remote};
use crate::console::note;

/// The hub itself.
const HUB: &str = "https://huggingface.co";

/// Files of one place at most.
const FILES_MAX: usize = 1_000_000;

/// What is needed of a model besides its weights: its architecture, its tokenizer, how to generate.
const MODEL_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// A repository and how to ask for its files.
struct Hub<'a> {
    remote: &'a Remote,
    address: &'a HubAddress,
    place: String,
    endpoint: String,
    /// Whether the owner has named another hub.
    is_own_endpoint: bool,
    token: Option<String>,
    reach: Reach,
    /// The commit.
    commit: String,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// What a folder of a repository holds.
#[derive(Clone, Debug, Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LargeFile>,
}

#[derive(Clone, Debug, Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

/// The file or folder that an address means.
///
/// # Errors
/// When nothing can be listed or loaded, and it is not in the cache.
pub(super) fn bring(remote: &Remote, address: &HubAddress, purpose: Purpose, reach: Reach) -> Result<PathBuf, Trouble> {
    let folder = folder_of(address);
    let repository = Repository::hub(&folder);
    let mut hub = Hub::new(remote, address, reach);
    let scope = blake3::hash(format!("{purpose:?}\0{}", address.path).as_bytes()).to_hex()[..16].to_owned();
    let is_offline = is_set("HF_HUB_OFFLINE");
    let found = if is_offline { Err(hub.offline()) } else { hub.find(&repository, &scope, purpose) };
    let (listing, is_listed) = match found {
        Ok(listing) => (listing, true),
        Err(trouble) if is_offline || trouble.is_offline() => {
            let Some((commit, listing)) = cached(&repository, address, &scope, purpose) else { return Err(trouble) };
            if !is_offline {
                note(&format!("warning: {trouble}; what was loaded of {} before is used", hub.place));
            }
            hub.commit = commit;
            (listing, false)
        }
        Err(trouble) => return Err(trouble),
    };
    if listing.is_empty() {
        return Err(hub.nothing(purpose));
    }
    if is_listed {
        repository.prepare()?;
        load_all(remote, &hub.place, (&repository, &hub.commit), &listing, &hub)?;
        repository.keep_listing(&format!("{}-{scope}", hub.commit), &listing)?;
        if !is_commit(&address.revision) {
            repository.refer(&address.revision, &hub.commit)?;
        }
    }
    let snapshot = repository.snapshot(&hub.commit);
    match purpose {
        Purpose::Base => Ok(snapshot),
        _ if listing.contains_key(&address.path) => Ok(snapshot.join(&address.path)),
        _ => view(&repository, &folder, (&hub.commit, &scope), &listing, &address.path),
    }
}

/// `models--OWNER--NAME`, as the hub's libraries have it.
fn folder_of(address: &HubAddress) -> String {
    let kind = if address.kind == HubKind::Dataset { "datasets" } else { "models" };
    format!("{kind}--{}", address.repository.replace('/', "--"))
}

/// A folder with the files of a listing alone: a snapshot may hold others, which somebody has loaded for something else.
fn view(
    repository: &Repository,
    folder: &str,
    (commit, scope): (&str, &str),
    listing: &Listing,
    path: &str,
) -> Result<PathBuf, Trouble> {
    let root = own_root().join("hub").join(folder).join("views").join(format!("{commit}-{scope}"));
    // What the folder's own files are called within it; those of a pattern lie beside each other.
    let inside = if path.contains('*') { path.rsplit_once('/').map_or("", |(folder, _)| folder) } else { path };
    for name in listing.keys() {
        let below = name.strip_prefix(inside).unwrap_or(name).trim_start_matches('/');
        let (to, content) = (root.join(below), repository.snapshot(commit).join(name));
        if to.exists() {
            continue;
        }
        let linked = std::fs::create_dir_all(to.parent().unwrap_or(&root)).and_then(|()| {
            let _ = std::fs::remove_file(&to);
            link(&content, &to).or_else(|_| if to.exists() { Ok(()) } else { std::fs::copy(&content, &to).map(drop) })
        });
        linked.map_err(|error| unwritten(&to, error))?;
    }
    Ok(root)
}

#[cfg(unix)]
fn link(content: &Path, to: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(std::path::absolute(content)?, to)
}

#[cfg(not(unix))]
fn link(content: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(content, to)
}

/// The newest of this that is here whole: a snapshot of ours by its listing, one of Python's by its files.
fn cached(repository: &Repository, address: &HubAddress, scope: &str, purpose: Purpose) -> Option<(String, Listing)> {
    let commit = if is_commit(&address.revision) {
        address.revision.clone()
    } else {
        repository.reference(&address.revision)?
    };
    if let Some(listing) = repository.listing(&format!("{commit}-{scope}")) {
        let is_whole = listing.iter().all(|(path, entry)| repository.has(&commit, path, entry));
        return is_whole.then_some((commit, listing));
    }
    // Without a listing nobody knows whether a folder of data is whole; what is missing of a model its reader names.
    let snapshot = repository.snapshot(&commit);
    let entry =
        |path: &Path| Some(Entry { blob: String::new(), bytes: path.metadata().ok()?.len(), tag: String::new() });
    let single = snapshot.join(&address.path);
    if !address.path.is_empty() && single.is_file() {
        return Some((commit, Listing::from([(address.path.clone(), entry(&single)?)])));
    }
    let config = snapshot.join("config.json");
    (purpose == Purpose::Base && config.is_file())
        .then(|| Some((commit, Listing::from([("config.json".to_owned(), entry(&config)?)]))))?
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// As the hub's libraries read such a variable.
fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
}

/// The owner's token, as the hub's libraries find it.
fn token() -> Option<String> {
    let of = |name: &str| std::env::var(name).ok();
    let path = of("HF_TOKEN_PATH").map_or_else(|| hub_home().join("token"), PathBuf::from);
    token_among([of("HF_TOKEN"), of("HUGGING_FACE_HUB_TOKEN"), std::fs::read_to_string(path).ok()])
}

/// The first that is one: an empty variable names none, as containers often have it.
fn token_among(found: [Option<String>; 3]) -> Option<String> {
    let trimmed = found.into_iter().flatten().map(|token| token.trim().to_owned());
    trimmed.filter(|token| !token.contains(char::is_control)).find(|token| !token.is_empty())
}

impl<'a> Hub<'a> {
    fn new(remote: &'a Remote, address: &'a HubAddress, reach: Reach) -> Hub<'a> {
        let own = std::env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.trim().is_empty());
        let is_own_endpoint = own.is_some();
        let endpoint = own.map_or_else(|| HUB.to_owned(), |own| own.trim().trim_end_matches('/').to_owned());
        // What a stranger names is not asked for in the owner's name.
        let token = if reach == Reach::Public { None } else { token() };
        // An endpoint is the owner's own word: it may be in a private network.
        let reach = if is_own_endpoint { Reach::Anywhere } else { reach };
        let place = Address::Hub(address.clone()).to_string();
        Hub { remote, address, place, endpoint, is_own_endpoint, token, reach, commit: String::new() }
    }

    /// The files that are meant, of the revision's newest commit.
    fn find(&mut self, repository: &Repository, scope: &str, purpose: Purpose) -> Result<Listing, Trouble> {
        let (kind, name) = (self.kind(), &self.address.repository);
        if is_commit(&self.address.revision) {
            self.commit = self.address.revision.to_ascii_lowercase();
            // A commit never changes.
            if let Some(listing) = repository.listing(&format!("{}-{scope}", self.commit)) {
                return Ok(listing);
            }
        } else {
            let revision = encoded(&self.address.revision, false);
            let url = format!("{}/api/{kind}/{name}/revision/{revision}", self.endpoint);
            let text = self.ask_for(&url)?.text(&self.place)?;
            let Revision { sha } = serde_json::from_str(&text).map_err(|_| self.no_hub())?;
            if !is_commit(&sha) {
                return Err(self.no_hub());
            }
            self.commit = sha;
        }
        let path = &self.address.path;
        if purpose == Purpose::Base {
            let items = self.tree("", false)?;
            let has_whole = items.iter().any(|item| item.path == "model.safetensors");
            let is_weights = |name: &str| match has_whole {
                true => name == "model.safetensors",
                false => name.starts_with("model-") && name.ends_with(".safetensors"),
            };
            let chosen: Vec<Item> = items
                .into_iter()
                .filter(|item| MODEL_FILES.contains(&item.path.as_str()) || is_weights(&item.path))
                .collect();
            let has_weights = chosen.iter().any(|item| item.path.ends_with(".safetensors"));
            return if has_weights { self.listing(chosen) } else { Err(self.nothing(purpose)) };
        }
        if path.is_empty() {
            return self.listing(self.tree("", true)?);
        }
        let parent = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let items = self.tree(parent, false)?;
        if items.iter().any(|item| item.path == *path && item.kind == "directory") {
            return self.listing(self.tree(path, true)?);
        }
        self.listing(items.into_iter().filter(|item| fits(path, &item.path)).collect())
    }

    /// What lies in a folder of the repository; in folders below as well, if asked for. Pages follow one another by the
    /// header `Link` (RFC 8288).
    fn tree(&self, path: &str, is_deep: bool) -> Result<Vec<Item>, Trouble> {
        let (kind, name, commit) = (self.kind(), &self.address.repository, &self.commit);
        let path = if path.is_empty() { String::new() } else { format!("/{}", encoded(path, true)) };
        let mut url =
            format!("{}/api/{kind}/{name}/tree/{commit}{path}?recursive={is_deep}&expand=false", self.endpoint);
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let answer = self.ask_for(&url)?;
            let next = answer.header("link").and_then(next_page);
            let text = answer.text(&self.place)?;
            items.extend(serde_json::from_str::<Vec<Item>>(&text).map_err(|_| self.no_hub())?);
            if items.len() > FILES_MAX {
                return Err(server(&self.place, format!("it has more than {FILES_MAX} files"), false));
            }
            match next {
                // A token goes where the first page was asked for, and nowhere else.
                Some(next) if next.starts_with(&format!("{}/", self.endpoint)) => url = next,
                Some(_) => return Err(server(&self.place, "its list goes on at another host", false)),
                None => return Ok(items),
            }
        }
        Err(server(&self.place, "its list has no end", false))
    }

    fn listing(&self, items: Vec<Item>) -> Result<Listing, Trouble> {
        let mut listing = Listing::new();
        for Item { path, oid, size, lfs, .. } in items.into_iter().filter(|item| item.kind == "file") {
            if !names::is_safe_path(&path) {
                return Err(Trouble::Name { place: self.place.clone(), name: path });
            }
            let (blob, bytes, tag) = match lfs {
                Some(large) => (large.oid, large.size, "sha256"),
                None => (oid, size, "git"),
            };
            if !(is_sha256(&blob) || is_commit(&blob)) {
                return Err(self.no_hub());
            }
            // At the root of a dataset these tell of it, and are none of it.
            let is_about = !path.contains('/') && (path.starts_with('.') || path.eq_ignore_ascii_case("readme.md"));
            if !is_about || self.address.path == path {
                listing.insert(path, Entry { blob, bytes, tag: tag.to_owned() });
            }
        }
        Ok(listing)
    }

    /// An answer of the hub's interface.
    fn ask_for(&self, url: &str) -> Result<Answer, Trouble> {
        self.remote.patiently(&self.place, || {
            let answer = self.get(url, &[])?;
            if answer.status.is_success() { Ok(answer) } else { Err(self.refused(answer)) }
        })
    }

    fn get(&self, url: &str, headers: &[(&'static str, String)]) -> Result<Answer, Trouble> {
        let keys = self.token.iter().map(|token| ("authorization", format!("Bearer {token}"))).collect();
        let (headers, is_plain) = (headers.to_vec(), self.is_own_endpoint);
        self.remote.client.get(&Request { url, headers, keys, reach: self.reach, follows: true, is_plain })
    }

    fn kind(&self) -> &'static str {
        if self.address.kind == HubKind::Dataset { "datasets" } else { "models" }
    }

    /// What the hub says, with a way out. Its own words are in headers (huggingface.co/docs/hub/api).
    fn refused(&self, answer: Answer) -> Trouble {
        let (status, place) = (answer.status, self.place.clone());
        let code = answer.header("x-error-code").unwrap_or_default().to_owned();
        let message = answer.header("x-error-message").map(str::to_owned).unwrap_or_default();
        let words: String = message.chars().filter(|letter| !letter.is_control()).take(200).collect();
        let hint = match (code.as_str(), self.token.is_some()) {
            ("GatedRepo", _) => {
                format!("accept its terms at {HUB}/{} and set HF_TOKEN, or `hf auth login`", self.address.repository)
            }
            ("RevisionNotFound", _) => "is the revision behind @ a branch, a tag or a commit of it?".to_owned(),
            ("EntryNotFound", _) => "is the path right? the hub shows it under \"Files\"".to_owned(),
            (_, true) => "is the name right, and may the owner of HF_TOKEN read it?".to_owned(),
            (_, false) if self.reach == Reach::Public => {
                "what a run names is read without your token; give it yourself with --data or --base to use it"
                    .to_owned()
            }
            (_, false) => "is the name right? private and gated ones need HF_TOKEN, or `hf auth login`".to_owned(),
        };
        match status {
            StatusCode::NOT_FOUND => Trouble::NotFound { place, words, hint },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Denied { place, words, hint },
            status => server(&place, format!("the hub answers {status}"), is_passing(status)),
        }
    }

    fn no_hub(&self) -> Trouble {
        server(&self.place, format!("{} answers as no hub does", self.endpoint), false)
    }

    fn offline(&self) -> Trouble {
        Trouble::NotCached { place: self.place.clone(), reason: "HF_HUB_OFFLINE says not to load it".to_owned() }
    }

    fn nothing(&self, purpose: Purpose) -> Trouble {
        let place = self.place.clone();
        match purpose {
            Purpose::Base => Trouble::Unfit {
                place,
                reason: "has no model.safetensors",
                hint: "a base is a model in safetensors, no GGUF file and no adapter; GUIDE.md lists those accepted"
                    .to_owned(),
            },
            _ => Trouble::NotFound {
                place,
                words: String::new(),
                hint: "no file is called so; the hub shows them under \"Files\"".to_owned(),
            },
        }
    }
}

impl Origin for Hub<'_> {
    fn ask(&self, path: &str, headers: &[(&'static str, String)]) -> Result<Answer, Trouble> {
        let kind = if self.address.kind == HubKind::Dataset { "datasets/" } else { "" };
        let (name, commit, path) = (&self.address.repository, &self.commit, encoded(path, true));
        self.get(&format!("{}/{kind}{name}/resolve/{commit}/{path}", self.endpoint), headers)
    }

    fn judge(&self, _: &str, answer: Answer) -> Result<Answer, Trouble> {
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(answer)) }
    }

    fn known<'b>(&'b self, _: &str, entry: &'b Entry) -> Known<'b> {
        if is_sha256(&entry.blob) { Known::Sha256(&entry.blob, "the hub") } else { Known::Git(&entry.blob) }
    }
}

/// Whether a path is the one that is meant, where `*` stands for any letters of its last part.
fn fits(pattern: &str, path: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == path };
    let Some(rest) = path.strip_prefix(before) else { return false };
    if rest.is_empty() && !after.is_empty() {
        return false;
    }
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.take_while(|end| !rest[..*end].contains('/')).any(|end| fits(after, &rest[end..]))
}

/// The address of the next page in a header such as `<https://…>; rel="next"`.
fn next_page(header: &str) -> Option<String> {
    let link = header.split(',').find(|link| link.contains("rel=\"next\""))?;
    Some(link.split_once('<')?.1.split_once('>')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_letters_of_one_part() {
        for (pattern, path, expected) in [
            ("data/train-*.parquet", "data/train-00000-of-00002.parquet", true),
            ("data/train-*.parquet", "data/test-0.parquet", false),
            ("data/*", "data/a.txt", true),
            ("data/*", "data/a/b.txt", false),
            ("*-*.txt", "a-b.txt", true),
            ("*-*.txt", "ab.txt", false),
            ("a.txt", "a.txt", true),
            ("a*", "ä", false),
            ("*b", "äb", true),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_next_page_is_in_a_header() {
        let header = "<https://hub/api?cursor=a%3D>; rel=\"next\"";
        assert_eq!(next_page(header).as_deref(), Some("https://hub/api?cursor=a%3D"));
        assert_eq!(next_page("<https://hub/>; rel=\"prev\""), None);
    }

    #[test]
    fn an_empty_token_hides_none_that_comes_after_it() {
        let among = |found: [&str; 3]| token_among(found.map(|token| Some(token.to_owned())));
        assert_eq!(among(["", " \n", "hf_x\n"]).as_deref(), Some("hf_x"));
        assert_eq!(among(["a", "b", "c"]).as_deref(), Some("a"));
        assert_eq!(among(["", "", "two\nlines"]), None);
    }

    #[test]
    fn the_folder_is_that_of_pythons_library() {
        let folder = |text: &str| match Address::parse(text) {
            Some(Ok(Address::Hub(hub))) => folder_of(&hub),
            other => panic!("{other:?}"),
        };
        assert_eq!(folder("hf://a/b@v1/c"), "models--a--b");
        assert_eq!(folder("hf://gpt2"), "models--gpt2");
        assert_eq!(folder("hf://datasets/a/b/c"), "datasets--a--b");
    }
}
