//! How remote places are written: `https://…`, `s3://BUCKET/PREFIX`, `hf://MODEL`, `hf://datasets/NAME/PATH`.
//!
//! What is shown of them never holds a key: user names, passwords and queries of addresses are left out (a query may be a
//! signature). `#sha256=HEX` at the end of a web address is the hash of its file, as pip writes it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ureq::http::Uri;

use super::names;

/// The hub's branch that is meant where none is named.
const MAIN: &str = "main";

/// The longest address that is read, in bytes: browsers take as much.
const ADDRESS_BYTES_MAX: usize = 2048;

/// A place that is not on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A file by HTTP.
    Web(WebAddress),
    /// Objects of an S3-compatible store.
    Bucket(BucketAddress),
    /// A repository of the Hugging Face hub, or a part of one.
    Hub(HubAddress),
}

/// A file by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebAddress {
    /// Without a fragment; may hold a password or a signature.
    pub(crate) url: String,
    /// The last part of the path.
    pub(crate) file_name: String,
    /// SHA-256 of the file in lower-case hexadecimal, where the address names it.
    pub(crate) sha256: Option<String>,
}

/// Objects of an S3-compatible store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketAddress {
    /// The bucket's name.
    pub(crate) bucket: String,
    /// One object's key, or with what the keys of several begin; may be empty.
    pub(crate) prefix: String,
}

/// A repository of the hub, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubAddress {
    /// Models or datasets.
    pub(crate) kind: HubKind,
    /// `OWNER/NAME`, or the bare name of an old model.
    pub(crate) repository: String,
    /// A branch, a tag or a commit.
    pub(crate) revision: String,
    /// A file, a folder, or a pattern with `*` in its last part; empty: everything.
    pub(crate) path: String,
}

/// What a repository of the hub holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HubKind {
    /// A model.
    Model,
    /// A dataset.
    Dataset,
}

/// Why an address names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is no remote place: {reason}")]
pub(crate) struct NoPlace {
    address: String,
    reason: &'static str,
    /// How it would be written.
    pub(crate) hint: &'static str,
}

const WEB_HINT: &str =
    "a file by HTTP is written https://HOST/PATH/FILE, with #sha256=HEX behind it where its hash is known";
const HTTP_HINT: &str = "write https:// instead, where the host answers to it; else load the file yourself (`curl -O ADDRESS`) and give its \
     path; a store of your own is s3:// with AWS_ENDPOINT_URL";
const BUCKET_HINT: &str = "objects of a bucket are written s3://BUCKET/PREFIX";
const HUB_HINT: &str = "a model of the Hugging Face hub is written hf://OWNER/NAME, files of a dataset \
     hf://datasets/OWNER/NAME/PATH, each with @REVISION behind the name where one is meant";

impl Address {
    /// Reads an address; `None` where the text is a path of this machine.
    ///
    /// # Errors
    /// When it begins like an address and names no place.
    pub(crate) fn parse(text: &str) -> Option<Result<Address, NoPlace>> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_scheme {
            return None;
        }
        let refused = |(reason, hint)| NoPlace { address: without_keys(text), reason, hint };
        let parsed = if text.len() > ADDRESS_BYTES_MAX || text.contains(char::is_control) {
            Err((
                "it is too long, or has a character that cannot be seen",
                "an address takes one line of 2048 bytes at most",
            ))
        } else {
            match scheme.to_ascii_lowercase().as_str() {
                "https" => WebAddress::parse(text).map(Address::Web),
                "http" => Err(("http:// is not encrypted, and anybody on the way could change it", HTTP_HINT)),
                "s3" => BucketAddress::parse(rest).map(Address::Bucket),
                "hf" => HubAddress::parse(rest).map(Address::Hub),
                _ => Err(("only https, s3 and hf are known", WEB_HINT)),
            }
        };
        Some(parsed.map_err(refused))
    }
}

impl Address {
    /// As it is shown with the paths of its files behind it.
    pub(crate) fn of_files(&self) -> String {
        match self {
            Address::Hub(hub) if hub.path.contains('*') => {
                let path = hub.path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
                Address::Hub(HubAddress { path, ..hub.clone() }).to_string()
            }
            other => other.to_string(),
        }
    }
}

type Refusal = (&'static str, &'static str);

impl WebAddress {
    fn parse(text: &str) -> Result<WebAddress, Refusal> {
        if text.contains(' ') {
            return Err(("it has a space in it", "write a space as %20"));
        }
        let (url, fragment) = text.split_once('#').map_or((text, None), |(url, fragment)| (url, Some(fragment)));
        let uri: Uri = url.parse().map_err(|_| ("it is malformed", WEB_HINT))?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(("it names no host", WEB_HINT));
        }
        if without_keys(url).ends_with(NO_PORT) {
            return Err((
                "its port is no number",
                "in a password, / ? # @ and % are written %2F, %3F, %23, %40 and %25",
            ));
        }
        let host = uri.host().unwrap_or_default();
        if matches!(host, "huggingface.co" | "www.huggingface.co") && uri.path().contains("/blob/") {
            return Err(("it is the page about a file, not the file", HUB_HINT));
        }
        let file_name = decoded(uri.path().rsplit('/').next().unwrap_or_default());
        if file_name.is_empty() {
            return Err(("it ends with a slash, so it names no file", WEB_HINT));
        }
        if !names::is_safe(&file_name) {
            return Err(("its file has a name that no file may have", WEB_HINT));
        }
        let sha256 = match fragment.map(|fragment| fragment.strip_prefix("sha256=")) {
            None => None,
            Some(Some(hash)) if is_sha256(hash) => Some(hash.to_ascii_lowercase()),
            Some(_) => return Err(("behind # it takes sha256= and 64 hexadecimal digits", WEB_HINT)),
        };
        Ok(WebAddress { url: url.to_owned(), file_name, sha256 })
    }
}

impl BucketAddress {
    fn parse(rest: &str) -> Result<BucketAddress, Refusal> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_');
        // Amazon's rule, and the letters that old buckets and other stores have.
        let is_bucket = (3..=63).contains(&bucket.len())
            && bucket.bytes().map(|byte| byte.to_ascii_lowercase()).all(is_plain)
            && bucket.as_bytes()[0].is_ascii_alphanumeric()
            && !bucket.contains("..");
        if !is_bucket {
            return Err(("its bucket takes 3 to 63 letters, digits, dots and hyphens", BUCKET_HINT));
        }
        Ok(BucketAddress { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl HubAddress {
    fn parse(rest: &str) -> Result<HubAddress, Refusal> {
        let (kind, rest) = match (rest.strip_prefix("datasets/"), rest.strip_prefix("spaces/")) {
            (Some(rest), _) => (HubKind::Dataset, rest),
            (None, Some(_)) => return Err(("a space holds no data", HUB_HINT)),
            (None, None) => (HubKind::Model, rest.strip_prefix("models/").unwrap_or(rest)),
        };
        let mut parts = rest.trim_end_matches('/').split('/');
        let owner = parts.next().unwrap_or_default();
        // The bare names of old models have no owner; a path needs one in front.
        let (repository, path) = match parts.next() {
            None => (owner.to_owned(), String::new()),
            Some(name) => (format!("{owner}/{name}"), parts.collect::<Vec<_>>().join("/")),
        };
        let (repository, revision) = match repository.rsplit_once('@') {
            Some((repository, revision)) => (repository.to_owned(), decoded(revision)),
            None => (repository, MAIN.to_owned()),
        };
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_part = |part: &str| {
            (1..=96).contains(&part.len())
                && part.bytes().all(is_letter)
                && names::is_safe(part)
                && !part.contains("--")
        };
        if !repository.split('/').all(is_part) {
            return Err(("it names no repository", HUB_HINT));
        }
        let is_revision = !revision.is_empty() && names::is_safe_path(&revision);
        if !is_revision {
            return Err(("its revision takes a branch, a tag or a commit", HUB_HINT));
        }
        if !path.is_empty() && !names::is_safe_path(&path.replace('*', "x")) {
            return Err(("its path is not one within a repository", HUB_HINT));
        }
        if path.rsplit_once('/').is_some_and(|(folder, _)| folder.contains('*')) {
            return Err(("only the last part of its path may have a *", HUB_HINT));
        }
        Ok(HubAddress { kind, repository, revision, path })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Web(web) => formatter.write_str(&without_keys(&web.url)),
            Address::Bucket(BucketAddress { bucket, prefix }) => write!(formatter, "s3://{bucket}/{prefix}"),
            Address::Hub(HubAddress { kind, repository, revision, path }) => {
                let kind = if *kind == HubKind::Dataset { "datasets/" } else { "" };
                let revision = if revision == MAIN { String::new() } else { format!("@{revision}") };
                let path = if path.is_empty() { String::new() } else { format!("/{path}") };
                write!(formatter, "hf://{kind}{repository}{revision}{path}")
            }
        }
    }
}

/// The model of the hub that a place names, `OWNER/NAME`, and its revision where one is named; `None` where it names something else.
pub(crate) fn hub_model(place: &str) -> Option<(String, Option<String>)> {
    match Address::parse(place)?.ok()? {
        Address::Hub(HubAddress { kind: HubKind::Model, repository, revision, path }) if path.is_empty() => {
            Some((repository, Some(revision).filter(|revision| revision != MAIN)))
        }
        _ => None,
    }
}

/// What is shown of what stands in the place of a port and is none.
const NO_PORT: &str = ":…";

/// An address without what may be a key: user and password, query and fragment.
pub(crate) fn without_keys(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = bare.split_once("://") else { return bare.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    // In `hf://` an @ is in the path, or in the name: nothing there is a key.
    let host = if scheme == "hf" { authority } else { authority.rsplit('@').next().unwrap_or_default() };
    // A password that should have been encoded may have a `/`, `?` or `#` in it: what stands there then is no port.
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let host = match host.split_once(':') {
        Some((name, rest)) if scheme != "hf" && !host.starts_with('[') && !is_port(rest) => {
            return format!("{scheme}://{name}{NO_PORT}");
        }
        _ => host,
    };
    format!("{scheme}://{host}{path}")
}

/// An address without its user name and password, and these as `Authorization` has them (RFC 7617), where there are any. In an address
/// they are percent-encoded, in the header they are not.
pub(crate) fn split_login(url: &str) -> (String, Option<String>) {
    let split = || {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |end| rest.split_at(end));
        let (login, host) = authority.rsplit_once('@')?;
        let (name, password) = login.split_once(':').unwrap_or((login, ""));
        let login = STANDARD.encode(format!("{}:{}", decoded(name), decoded(password)));
        Some((format!("{scheme}://{host}{path}"), Some(format!("Basic {login}"))))
    };
    split().unwrap_or_else(|| (url.to_owned(), None))
}

/// Whether a text is a SHA-256 in hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Percent-encoding as signatures of S3 want it, of all but letters, digits and `-._~`; slashes stay in a path.
pub(crate) fn encoded(text: &str, is_path: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let stays =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') || (is_path && byte == b'/');
        if stays { encoded.push(char::from(byte)) } else { encoded.push_str(&format!("%{byte:02X}")) }
    }
    encoded
}

/// Percent-encoding taken away (RFC 3986, 2.1); what is not UTF-8 afterwards stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .flatten();
        plain.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(plain).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Address::parse(text).expect("remote").expect("a place").to_string()
    }

    fn refused(text: &str) -> String {
        Address::parse(text).expect("remote").expect_err("no place").to_string()
    }

    #[test]
    fn paths_are_no_remote_places() {
        for path in ["book.txt", "/data/a", "C:\\data", "data://", "", "a/b://c", "./s3:/x"] {
            assert!(Address::parse(path).is_none_or(|parsed| parsed.is_err()), "{path}");
        }
        assert_eq!(Address::parse("a/b://c"), None);
    }

    #[test]
    fn places_are_shown_without_keys() {
        for (text, expected) in [
            ("https://example.org/a/b.txt?X-Amz-Signature=0123", "https://example.org/a/b.txt"),
            ("https://name:secret@example.org/b.txt", "https://example.org/b.txt"),
            ("s3://bucket/a/b", "s3://bucket/a/b"),
            ("s3://bucket", "s3://bucket/"),
            ("s3://bucket/a b+ü", "s3://bucket/a b+ü"),
            ("hf://gpt2", "hf://gpt2"),
            ("hf://models/a/b@v1.0", "hf://a/b@v1.0"),
            ("hf://datasets/a/b/data/train-*.parquet", "hf://datasets/a/b/data/train-*.parquet"),
            ("hf://datasets/a/b@refs%2Fconvert%2Fparquet/x", "hf://datasets/a/b@refs/convert/parquet/x"),
        ] {
            assert_eq!(shown(text), expected);
        }
        let Some(Ok(pattern)) = Address::parse("hf://datasets/a/b/data/train-*.parquet") else { panic!("a place") };
        assert_eq!(pattern.of_files(), "hf://datasets/a/b/data");
        for odd in
            ["https://name:sec/ret@example.org/a", "https://name:sec#ret@example.org/a", "https://n:sec?ret@e.org/a"]
        {
            assert!(!refused(odd).contains("sec") && !refused(odd).contains("ret"), "{}", refused(odd));
        }
        let told = refused("https://name:secret@example.org/?key=1");
        assert!(!told.contains("secret") && !told.contains("key="), "{told}");
    }

    #[test]
    fn a_password_is_sent_as_it_is_and_not_as_an_address_writes_it() {
        let split = |url: &str| {
            let (bare, login) = split_login(url);
            let decode = |login: String| STANDARD.decode(login.strip_prefix("Basic ").expect("its scheme"));
            (bare, login.map(|login| String::from_utf8(decode(login).expect("Base64")).expect("UTF-8")))
        };
        for (url, bare, login) in [
            ("https://me:a%2Fb@host/f", "https://host/f", Some("me:a/b")),
            ("https://m%40e:a%3A%25%23b@host:8443", "https://host:8443", Some("m@e:a:%#b")),
            ("https://me:a:b@host/f@g?k=h@i", "https://host/f@g?k=h@i", Some("me:a:b")),
            ("https://me@host/f", "https://host/f", Some("me:")),
            ("https://host/f@g", "https://host/f@g", None),
            ("https://host?k=h@i", "https://host?k=h@i", None),
            ("host", "host", None),
        ] {
            assert_eq!(split(url), (bare.to_owned(), login.map(str::to_owned)), "{url}");
        }
        // RFC 7617's own example.
        assert_eq!(
            split_login("http://Aladdin:open%20sesame@a").1.as_deref(),
            Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
        );
    }

    #[test]
    fn a_model_of_the_hub_is_known_by_its_name_and_revision() {
        assert_eq!(hub_model("hf://a/b"), Some(("a/b".to_owned(), None)));
        assert_eq!(hub_model("hf://a/b@v1"), Some(("a/b".to_owned(), Some("v1".to_owned()))));
        for other in ["", "a/b", "/a/b", "s3://bucket/a", "hf://datasets/a/b", "hf://a/b/config.json"] {
            assert_eq!(hub_model(other), None, "{other}");
        }
    }

    #[test]
    fn a_hash_may_stand_behind_a_web_address() {
        let hash = "Ab".repeat(32);
        let Some(Ok(Address::Web(web))) = Address::parse(&format!("https://example.org/a%20b.txt#sha256={hash}"))
        else {
            panic!("a place")
        };
        assert_eq!((web.file_name.as_str(), web.sha256), ("a b.txt", Some(hash.to_ascii_lowercase())));
        assert_eq!(web.url, "https://example.org/a%20b.txt");
    }

    #[test]
    fn what_names_no_place_is_refused_with_the_reason() {
        for (text, reason) in [
            ("ftp://example.org/a", "only https, s3 and hf"),
            ("http://example.org/a", "not encrypted"),
            ("https://example.org/", "names no file"),
            ("https:///a", "malformed"),
            ("https://example.org/%2e%2e", "no file may have"),
            ("https://example.org/a b", "a space in it"),
            ("https://example.org/a#sha256=12", "64 hexadecimal"),
            ("https://huggingface.co/a/b/blob/main/c.txt", "the page about a file"),
            ("s3://b/x", "3 to 63"),
            ("s3://../x", "3 to 63"),
            ("hf://", "no repository"),
            ("hf://a/../b", "no repository"),
            ("hf://datasets/a/b/../../c", "not one within"),
            ("hf://datasets/a/b/x*/y", "only the last part"),
            ("hf://spaces/a/b", "holds no data"),
            ("hf://a/b@", "a branch, a tag"),
        ] {
            let told = refused(text);
            assert!(told.contains(reason), "{text}: {told}");
        }
    }

    #[test]
    fn keys_are_encoded_byte_by_byte() {
        assert_eq!(encoded("dir/a b+ü.jsonl", true), "dir/a%20b%2B%C3%BC.jsonl");
        assert_eq!(encoded("a/b~c", false), "a%2Fb~c");
    }
}
