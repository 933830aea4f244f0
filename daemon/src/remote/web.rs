//! Files by HTTPS: one address is one file.

use std::path::PathBuf;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use ureq::http::StatusCode;

use super::Remote;
use super::address::{Address, WebAddress};
use super::cache::{Entry, Listing, Repository, unwritten};
use super::download::{Known, Wanted, load};
use super::http::{Answer, Reach, Request, server};
use super::progress::Progress;
use super::trouble::Trouble;
use crate::console::note;
use crate::store::write_atomically;

/// The snapshot that is used.
const NEWEST: &str = "main";

/// The name of what is still coming.
const COMING: &str = "coming";

/// What tells whether the file has changed on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Validators {
    etag: Option<String>,
    last_modified: Option<String>,
}

/// The file at an address, in the cache.
///
/// # Errors
/// When it does not come and is not in the cache, or is another one than its hash says.
pub(super) fn bring(remote: &Remote, web: &WebAddress, reach: Reach) -> Result<PathBuf, Trouble> {
    let place = Address::Web(web.clone()).to_string();
    let repository = Repository::own("web", &folder_of(web));
    repository.prepare()?;
    let _lock = repository.lock(COMING, || remote.say_waiting(&place))?;
    let ask = |headers: &[(&'static str, String)]| {
        let headers = headers.to_vec();
        remote.client.get(&Request { url: &web.url, headers, keys: Vec::new(), reach, follows: true, is_plain: false })
    };
    let judge = |answer| judge(answer, web, &place);
    if let Some(path) = cached(&repository, web) {
        let is_newest = || is_newest(&repository, web, &ask, &judge);
        match remote.may_ask(&place).and_then(|()| remote.shown(&Progress::new(1, 0), &place, is_newest)) {
            Ok(true) => return Ok(path),
            Ok(false) => {}
            Err(trouble) if trouble.is_offline() => {
                note(&format!("warning: {trouble}; what was loaded of {place} before is used"));
                return Ok(path);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    let (incomplete, tag) = (repository.incomplete(COMING), repository.root().join("coming.etag"));
    let told = Mutex::new(Validators::default());
    let wanted = Wanted {
        place: &place,
        ask: &ask,
        judge: &|answer| {
            let answer = judge(answer)?;
            *told.lock().expect("no thread panics") = Validators::of(&answer);
            Ok(answer)
        },
        incomplete: incomplete.clone(),
        known: Known::Kept(&tag, web.sha256.as_deref()),
        bytes: None,
    };
    let progress = Progress::new(1, 0);
    let loaded = remote.shown(&progress, &place, || load(&wanted, &remote.allowance, &progress))?;
    let (id, blob) = (&loaded.sha256, repository.blob(&loaded.sha256));
    std::fs::rename(&incomplete, &blob).map_err(|error| unwritten(&blob, error))?;
    let _ = std::fs::remove_file(&tag);
    repository.put(id, &web.file_name, id)?;
    repository.keep_listing(id, &listing(web, id, loaded.bytes))?;
    let text = serde_json::to_vec(&*told.lock().expect("no thread panics")).expect("strings are serialisable");
    let path = validators_path(&repository);
    // By these the server is asked whether the newest file has changed, so that file is named before.
    repository.refer(NEWEST, id)?;
    write_atomically(&path, &text).map_err(|error| unwritten(&path, error))?;
    Ok(repository.snapshot(id).join(&web.file_name))
}

/// One file alone.
fn listing(web: &WebAddress, id: &str, bytes: u64) -> Listing {
    Listing::from([(web.file_name.clone(), Entry { blob: id.to_owned(), bytes, tag: String::new() })])
}

fn validators_path(repository: &Repository) -> PathBuf {
    repository.root().join("validators.json")
}

/// The newest file that is here, where it is whole and of the hash that is wanted.
fn cached(repository: &Repository, web: &WebAddress) -> Option<PathBuf> {
    let id = repository.reference(NEWEST)?;
    let entry = repository.listing(&id)?.remove(&web.file_name)?;
    let is_wanted = web.sha256.as_ref().is_none_or(|hash| *hash == entry.blob);
    (is_wanted && repository.has(&id, &web.file_name, &entry)).then(|| repository.snapshot(&id).join(&web.file_name))
}

/// Whether the file that is here is the server's still. A hash has nobody to ask, and so has a server that tells nothing by
/// which a change could be seen.
fn is_newest(
    repository: &Repository,
    web: &WebAddress,
    ask: &super::download::Ask<'_>,
    judge: &dyn Fn(Answer) -> Result<Answer, Trouble>,
) -> Result<bool, Trouble> {
    if web.sha256.is_some() {
        return Ok(true);
    }
    let known = std::fs::read(validators_path(repository)).ok();
    let known: Validators = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let condition = match known {
        Validators { etag: Some(etag), .. } => ("If-None-Match", etag),
        Validators { last_modified: Some(time), .. } => ("If-Modified-Since", time),
        _ => return Ok(true),
    };
    let answer = ask(&[condition])?;
    if answer.status == StatusCode::NOT_MODIFIED {
        return Ok(true);
    }
    judge(answer).map(|_| false)
}

impl Validators {
    fn of(answer: &Answer) -> Validators {
        let text = |name| answer.header(name).map(str::to_owned);
        Validators { etag: text("etag"), last_modified: text("last-modified") }
    }
}

/// Whether an answer has the file.
fn judge(answer: Answer, web: &WebAddress, place: &str) -> Result<Answer, Trouble> {
    let status = answer.status;
    let place = place.to_owned();
    match status {
        status if status.is_success() => {
            let is_page = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
            let name = web.file_name.to_ascii_lowercase();
            let is_meant = name.ends_with(".html") || name.ends_with(".htm");
            if is_page && !is_meant { Err(Trouble::Page { place }) } else { Ok(answer) }
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            let hint = "is the address right? `curl -I` shows what the server says".to_owned();
            Err(Trouble::NotFound { place, words: String::new(), hint })
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let hint = "a signed address ends after a while: ask for a new one; a name and a password are written \
                        https://NAME:PASSWORD@HOST/PATH";
            Err(Trouble::Denied { place, words: status.to_string(), hint: hint.to_owned() })
        }
        status => Err(server(&place, format!("it answers {status}"), super::http::is_passing(status))),
    }
}

/// A folder of its own for each address. What signs an address changes from time to time, and is no part of it.
fn folder_of(web: &WebAddress) -> String {
    let (bare, query) = web.url.split_once('?').unwrap_or((&web.url, ""));
    let is_signature = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default().to_ascii_lowercase();
        name.starts_with("x-amz-")
            || name.starts_with("x-goog-")
            || matches!(name.as_str(), "signature" | "expires" | "sig" | "se")
    };
    let kept: Vec<&str> = query.split('&').filter(|part| !is_signature(part)).collect();
    let hash = blake3::hash(format!("{bare}?{}", kept.join("&")).as_bytes()).to_hex();
    let shown = super::address::without_keys(bare);
    let host: String =
        shown.split('/').nth(2).unwrap_or_default().replace([':', '[', ']'], "-").chars().take(64).collect();
    format!("{host}-{}", &hash[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_signature_is_no_new_file_and_a_password_is_in_no_name() {
        let folder = |url: &str| match Address::parse(url) {
            Some(Ok(Address::Web(web))) => folder_of(&web),
            other => panic!("{other:?}"),
        };
        let signed = |signature| folder(&format!("https://a.example/f?v=1&X-Amz-Signature={signature}&X-Amz-Date=1"));
        assert_eq!(signed("01"), signed("02"));
        assert_ne!(signed("01"), folder("https://a.example/f?v=2"));
        let named = folder("https://name:secret@a.example:8443/f");
        assert!(named.starts_with("a.example-8443-"), "{named}");
    }
}
