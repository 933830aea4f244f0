//! Objects of S3-compatible stores: Amazon's, or another one whose address is in `AWS_ENDPOINT_URL`. Requests are signed
//! where there are keys, and unsigned where there are none, which public buckets allow.

mod credentials;
mod signature;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use ureq::http::StatusCode;

use super::address::{Address, BucketAddress, encoded};
use super::cache::{Entry, Listing, Repository};
use super::download::Known;
use super::http::{Answer, Reach, Request, is_passing, server};
use super::loading::{Origin, load_all};
use super::names;
use super::trouble::Trouble;
use super::{PAGES_MAX, Remote};
use crate::console::note;
use crate::named;
use credentials::Setup;
use signature::{Scope, Unsigned, query, sign};

/// Where buckets lie whose region nobody has named.
const USUAL_REGION: &str = "us-east-1";

/// Objects of one place at most: more files than that no folder bears well.
const OBJECTS_MAX: usize = 1_000_000;

/// A bucket and how to ask for its objects.
struct Bucket<'a> {
    remote: &'a Remote,
    place: String,
    name: &'a str,
    setup: Setup,
    /// Learned from the store where it was wrong. Locked for a moment.
    region: Mutex<String>,
    reach: Reach,
    /// In front of the paths of a snapshot's files: their keys are these together.
    folder: String,
    /// The store's validators, by path.
    listing: Listing,
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    key: String,
    bytes: u64,
    etag: String,
}

/// The object, or the folder of objects, that an address means.
///
/// # Errors
/// When nothing can be listed or loaded, and it is not in the cache.
pub(super) fn bring(remote: &Remote, address: &BucketAddress, reach: Reach) -> Result<PathBuf, Trouble> {
    let mut setup = Setup::read();
    let has_endpoint = setup.endpoint.is_some();
    if reach == Reach::Public {
        // What a stranger names is not asked for in the owner's name.
        setup.credentials = None;
    }
    let store = setup.endpoint.clone().unwrap_or_else(|| "amazon".to_owned());
    let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let repository = Repository::own("s3", &format!("{}-{}", address.bucket, hash(&store)));
    let reference = format!("prefix-{}", hash(&address.prefix));
    repository.prepare()?;
    let region = Mutex::new(setup.region.clone().unwrap_or_else(|| USUAL_REGION.to_owned()));
    // An endpoint is the owner's own word: it may be in a private network.
    let reach = if has_endpoint { Reach::Anywhere } else { reach };
    let place = Address::Bucket(address.clone()).to_string();
    let (folder, listing) = (String::new(), Listing::new());
    let mut bucket = Bucket { remote, place, name: &address.bucket, setup, region, reach, folder, listing };
    let objects = match bucket.list(&address.prefix) {
        Ok(objects) => objects,
        Err(trouble) if trouble.is_offline() => {
            let place = &bucket.place;
            let Some(path) = cached(&repository, &reference, &address.prefix) else { return Err(trouble) };
            note(&format!("warning: {trouble}; what was loaded of {place} before is used"));
            return Ok(path);
        }
        Err(trouble) => return Err(trouble),
    };
    let (chosen, folder) = chosen(&objects, &address.prefix);
    if chosen.is_empty() {
        return Err(Trouble::NotFound {
            place: bucket.place,
            words: String::new(),
            hint: "no key begins like that; keys tell capitals from small letters, and have no slash in front"
                .to_owned(),
        });
    }
    bucket.folder = folder;
    for object in chosen {
        let path = object.key[bucket.folder.len()..].to_owned();
        if !names::is_safe_path(&path) {
            return Err(Trouble::Name { place: bucket.place, name: path });
        }
        let name = format!("{}\0{}\0{}", object.key, object.etag, object.bytes);
        let blob = blake3::hash(name.as_bytes()).to_hex()[..40].to_owned();
        bucket.listing.insert(path, Entry { blob, bytes: object.bytes, tag: object.etag.clone() });
    }
    let text = serde_json::to_vec(&bucket.listing).expect("names and numbers are serialisable");
    let id = blake3::hash(&text).to_hex()[..40].to_owned();
    load_all(remote, &bucket.place, (&repository, &id), &bucket.listing, &bucket)?;
    repository.keep_listing(&id, &bucket.listing)?;
    repository.refer(&reference, &id)?;
    let of_files = BucketAddress { prefix: bucket.folder.clone(), ..address.clone() };
    named::keep(&repository.snapshot(&id), &Address::Bucket(of_files).to_string(), None);
    Ok(path_of(&repository, &id, &bucket.listing, &address.prefix))
}

/// One object is a file, several are a folder.
fn path_of(repository: &Repository, id: &str, listing: &Listing, prefix: &str) -> PathBuf {
    let folder = repository.snapshot(id);
    match listing.keys().next() {
        Some(only) if listing.len() == 1 && prefix.ends_with(only.as_str()) => folder.join(only),
        _ => folder,
    }
}

/// What was loaded of a place before, where all of it is there.
fn cached(repository: &Repository, reference: &str, prefix: &str) -> Option<PathBuf> {
    let id = repository.reference(reference)?;
    let listing = repository.listing(&id)?;
    let is_whole = !listing.is_empty() && listing.iter().all(|(path, entry)| repository.has(&id, path, entry));
    is_whole.then(|| path_of(repository, &id, &listing, prefix))
}

/// Of the objects whose keys begin with a prefix, those that are meant, and what of their keys is a folder's: the object of
/// that very key, or all in the folder of that name, or all that begin so.
fn chosen<'a>(objects: &'a [Object], prefix: &str) -> (Vec<&'a Object>, String) {
    let parent = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]).to_owned();
    // Some tools make an empty object for each folder.
    let files = objects.iter().filter(|object| !object.key.ends_with('/'));
    if let Some(object) = files.clone().find(|object| object.key == prefix) {
        return (vec![object], parent);
    }
    let is_inside = |object: &&Object| object.key[prefix.len()..].starts_with('/');
    let inside: Vec<&Object> = files.clone().filter(is_inside).collect();
    if prefix.is_empty() || prefix.ends_with('/') || inside.is_empty() {
        (files.collect(), parent)
    } else {
        (inside, format!("{prefix}/"))
    }
}

impl Bucket<'_> {
    /// All objects whose keys begin with a prefix, in the order of the store: 1,000 a page (ListObjectsV2).
    fn list(&self, prefix: &str) -> Result<Vec<Object>, Trouble> {
        let mut objects = Vec::new();
        let mut page = None::<String>;
        for _ in 0..PAGES_MAX {
            let mut query = vec![("list-type".to_owned(), "2".to_owned()), ("prefix".to_owned(), prefix.to_owned())];
            query.extend(page.take().map(|page| ("continuation-token".to_owned(), page)));
            let answer = self.remote.patiently(&self.place, || {
                let answer = self.get("", &query, &[])?;
                if answer.status.is_success() { Ok(answer) } else { Err(self.refused(answer)) }
            })?;
            let text = answer.text(&self.place)?;
            let next = read_page(&text, &mut objects)
                .ok_or_else(|| server(&self.place, "its list is none of an S3 store", false))?;
            if objects.len() > OBJECTS_MAX {
                return Err(server(&self.place, format!("it has more than {OBJECTS_MAX} objects"), false));
            }
            match next {
                Some(next) => page = Some(next),
                None => return Ok(objects.into_iter().filter(|object| object.key.starts_with(prefix)).collect()),
            }
        }
        Err(server(&self.place, "its list has no end", false))
    }

    /// A request to the bucket; in another region once the store has named it.
    fn get(
        &self,
        key: &str,
        pairs: &[(String, String)],
        headers: &[(&'static str, String)],
    ) -> Result<Answer, Trouble> {
        let answer = self.get_in(&self.region(), key, pairs, headers)?;
        let named = answer.header("x-amz-bucket-region").map(str::to_owned);
        let is_elsewhere = matches!(answer.status, StatusCode::MOVED_PERMANENTLY | StatusCode::TEMPORARY_REDIRECT)
            || answer.status == StatusCode::BAD_REQUEST;
        match named.filter(|named| is_elsewhere && *named != self.region() && is_region(named)) {
            Some(named) => {
                self.region.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&named);
                self.get_in(&named, key, pairs, headers)
            }
            None => Ok(answer),
        }
    }

    fn get_in(
        &self,
        region: &str,
        key: &str,
        pairs: &[(String, String)],
        headers: &[(&'static str, String)],
    ) -> Result<Answer, Trouble> {
        let (base, host, path) = self.address(region, key);
        let asked = query(pairs);
        let url = if asked.is_empty() { format!("{base}{path}") } else { format!("{base}{path}?{asked}") };
        let unsigned = Unsigned { host: &host, path: &path, query: pairs, headers: &[] };
        let scope = Scope { region, service: "s3", time: SystemTime::now() };
        let keys = self.setup.credentials.as_ref().map(|keys| sign(&unsigned, &scope, keys)).unwrap_or_default();
        let (headers, is_plain) = (headers.to_vec(), self.setup.endpoint.is_some());
        self.remote.client.get(&Request { url: &url, headers, keys, reach: self.reach, follows: false, is_plain })
    }

    /// Scheme and host, the host as requests name it, and the path of a key. Names with dots have no certificate as a part of
    /// Amazon's host.
    fn address(&self, region: &str, key: &str) -> (String, String, String) {
        let key = encoded(key, true);
        let (base, prefix) = match &self.setup.endpoint {
            Some(endpoint) => (endpoint.clone(), format!("/{}", self.name)),
            None if self.name.contains('.') => {
                (format!("https://s3.{region}.amazonaws.com"), format!("/{}", self.name))
            }
            None => (format!("https://{}.s3.{region}.amazonaws.com", self.name), String::new()),
        };
        let after = base.split_once("://").map_or(base.as_str(), |(_, rest)| rest);
        let (host, folder) = after.find('/').map_or((after, ""), |slash| after.split_at(slash));
        let (base, path) = (&base[..base.len() - folder.len()], format!("{folder}{prefix}/{key}"));
        (base.to_owned(), signed_host(base, host).to_owned(), path)
    }

    fn region(&self) -> String {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the store says, in its own code and with a way out.
    fn refused(&self, answer: Answer) -> Trouble {
        let (status, place) = (answer.status, self.place.clone());
        if is_passing(status) {
            return server(&place, format!("it answers {status}"), true);
        }
        let text = answer.text(&place).unwrap_or_default();
        let of = |name: &str| {
            let document = roxmltree::Document::parse(&text).ok()?;
            let found = document.descendants().find(|node| node.has_tag_name(name))?;
            found.text().map(|text| text.chars().filter(|letter| !letter.is_control()).take(200).collect::<String>())
        };
        let code = of("Code").unwrap_or_default();
        let words = match (code.as_str(), of("Message")) {
            ("", _) => status.to_string(),
            (code, None) => code.to_owned(),
            (code, Some(message)) => format!("{code}: {message}"),
        };
        let hint = match (code.as_str(), &self.setup.credentials) {
            ("NoSuchBucket", _) => "is the name right? AWS_ENDPOINT_URL names another store than Amazon's".to_owned(),
            ("AuthorizationHeaderMalformed" | "PermanentRedirect", _) => {
                "AWS_REGION names the bucket's region".to_owned()
            }
            ("RequestTimeTooSkewed" | "RequestExpired", _) => {
                "this machine's clock is wrong: keep it by NTP, for example with `timedatectl set-ntp true`".to_owned()
            }
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken", _) => {
                "the keys are wrong, or of another store: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and \
                 AWS_SESSION_TOKEN), or a profile of ~/.aws/credentials that AWS_PROFILE names"
                    .to_owned()
            }
            (_, None) => self.without_keys(),
            (_, Some(_)) => "these keys may not list and read it: s3:ListBucket and s3:GetObject are needed".to_owned(),
        };
        match status {
            StatusCode::NOT_FOUND => Trouble::NotFound { place, words, hint },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                Trouble::Denied { place, words, hint }
            }
            _ => server(&place, words, false),
        }
    }

    fn without_keys(&self) -> String {
        if self.reach == Reach::Public {
            return "what a run names is read without your keys; give it yourself with --data to use them".to_owned();
        }
        match &self.setup.profile {
            Some(profile) => format!(
                "the profile {profile} has no keys: `eval $(aws configure export-credentials --profile {profile} --format env)` \
                 gives them"
            ),
            None if credentials::has_files() => {
                "there are no keys of a default profile: AWS_PROFILE names another, or set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY"
                    .to_owned()
            }
            None => "it is not public: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE".to_owned(),
        }
    }
}

impl Origin for Bucket<'_> {
    fn ask(&self, path: &str, headers: &[(&'static str, String)]) -> Result<Answer, Trouble> {
        self.get(&format!("{}{path}", self.folder), &[], headers)
    }

    fn judge(&self, path: &str, answer: Answer) -> Result<Answer, Trouble> {
        if !answer.status.is_success() {
            return Err(self.refused(answer));
        }
        let expected = self.listing.get(path).map(|entry| entry.tag.as_str()).unwrap_or_default();
        match answer.header("etag") {
            Some(found) if !expected.is_empty() && found != expected => Err(Trouble::Other {
                place: format!("s3://{}/{}{path}", self.name, self.folder),
                what: "ETag",
                by: "its list",
                expected: expected.to_owned(),
                found: found.to_owned(),
            }),
            _ => Ok(answer),
        }
    }

    fn known<'a>(&'a self, _: &str, entry: &'a Entry) -> Known<'a> {
        Known::Tag(&entry.tag)
    }
}

/// A host as the `Host` of a request names it, which is what a signature is of: without the port that is the scheme's usual one.
fn signed_host<'a>(base: &str, host: &'a str) -> &'a str {
    let is_plain = base.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http:"));
    host.strip_suffix(if is_plain { ":80" } else { ":443" }).unwrap_or(host)
}

/// A region becomes a part of a host's name.
fn is_region(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Reads a page of a list: its objects, and with what the next one is asked for. `None` where it is no such list.
fn read_page(text: &str, objects: &mut Vec<Object>) -> Option<Option<String>> {
    let document = roxmltree::Document::parse(text).ok()?;
    let root = document.root_element();
    if root.tag_name().name() != "ListBucketResult" {
        return None;
    }
    let of = |node: roxmltree::Node<'_, '_>, name: &str| {
        node.children()
            .find(|child| child.tag_name().name() == name)
            .map(|child| child.text().unwrap_or_default().to_owned())
    };
    for node in root.children().filter(|child| child.tag_name().name() == "Contents") {
        let bytes = of(node, "Size")?.trim().parse().ok()?;
        objects.push(Object { key: of(node, "Key")?, bytes, etag: of(node, "ETag").unwrap_or_default() });
    }
    let has_more = of(root, "IsTruncated").is_some_and(|text| text.trim() == "true");
    let next = of(root, "NextContinuationToken").filter(|_| has_more);
    // A list that says that it goes on, and not how, is none.
    if has_more && next.is_none() { None } else { Some(next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(keys: &[&str]) -> Vec<Object> {
        keys.iter().map(|key| Object { key: (*key).to_owned(), bytes: 1, etag: "\"e\"".to_owned() }).collect()
    }

    #[test]
    fn a_prefix_means_an_object_or_a_folder_or_a_beginning() {
        let all = objects(&["data/", "data/a.txt", "data/b/c.txt", "data/a.txt.old", "data2/d.txt"]);
        let chosen = |prefix: &str| {
            let matching: Vec<Object> = all.iter().filter(|object| object.key.starts_with(prefix)).cloned().collect();
            let (chosen, folder) = chosen(&matching, prefix);
            chosen.iter().map(|object| object.key[folder.len()..].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(chosen("data/a.txt"), ["a.txt"]);
        assert_eq!(chosen("data/"), ["a.txt", "b/c.txt", "a.txt.old"]);
        assert_eq!(chosen("data/a"), ["a.txt", "a.txt.old"]);
        assert_eq!(chosen("").len(), 4);
        assert_eq!(chosen("data"), ["a.txt", "b/c.txt", "a.txt.old"], "the folder alone");
    }

    /// An endpoint may have its port written out, and requests leave the usual one out.
    #[test]
    fn the_host_that_is_signed_is_the_one_that_requests_name() {
        let signed = |endpoint: &str| {
            let client = super::super::http::Client::new().expect("no certificates of the user's own");
            let remote = Remote { client, allowance: super::super::Allowance::unlimited() };
            let setup = Setup { credentials: None, region: None, endpoint: Some(endpoint.to_owned()), profile: None };
            let (region, reach, folder) = (Mutex::default(), Reach::Anywhere, String::new());
            let (place, listing) = (String::new(), Listing::new());
            let bucket = Bucket { remote: &remote, place, name: "b", setup, region, reach, folder, listing };
            bucket.address("eu-west-1", "k")
        };
        let address = |base: &str, host: &str, path: &str| (base.to_owned(), host.to_owned(), path.to_owned());
        for (endpoint, host) in [
            ("https://store.example", "store.example"),
            ("https://store.example:443", "store.example"),
            ("http://store.example:80", "store.example"),
            ("http://store.example:443", "store.example:443"),
            ("https://store.example:80", "store.example:80"),
            ("https://store.example:9000", "store.example:9000"),
            ("https://[::1]:443", "[::1]"),
        ] {
            assert_eq!(signed(endpoint), address(endpoint, host, "/b/k"));
        }
        let below = signed("https://store.example:443/below");
        assert_eq!(below, address("https://store.example:443", "store.example", "/below/b/k"));
    }

    #[test]
    fn a_page_that_is_no_list_is_none() {
        let mut found = Vec::new();
        let page = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <IsTruncated>true</IsTruncated><NextContinuationToken>n/=</NextContinuationToken><Contents><Key>a&amp;b</Key>\
            <Size>12</Size><ETag>&quot;e&quot;</ETag></Contents></ListBucketResult>";
        assert_eq!(read_page(page, &mut found), Some(Some("n/=".to_owned())));
        assert_eq!(found, [Object { key: "a&b".to_owned(), bytes: 12, etag: "\"e\"".to_owned() }]);
        assert_eq!(read_page("<html/>", &mut found), None);
        assert_eq!(read_page("", &mut found), None);
        let endless = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>";
        assert_eq!(read_page(endless, &mut found), None);
        assert!(is_region("eu-west-1") && !is_region("evil.example/") && !is_region(""));
    }
}
