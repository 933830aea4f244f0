//! Remote places under the names that people know. What is loaded lies in a cache: its paths tell nobody anything, and the cache may
//! be deleted.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What has been loaded.
struct Named {
    /// The file or folder in the cache.
    copy: PathBuf,
    /// The place as it is shown: without keys.
    shown: String,
    /// As the owner has typed it, where it may be told to anybody.
    typed: Option<String>,
}

/// All that this process has loaded: no more than what its settings and its run name. Locked for a moment.
static ALL: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// Keeps what a copy is called. `typed`: `None` where it has keys in it, or its owner has not typed it.
pub(crate) fn keep(copy: &Path, shown: &str, typed: Option<&str>) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let typed = typed.map(str::to_owned);
    match all.iter_mut().find(|known| known.copy == copy) {
        Some(known) => known.typed = typed,
        None => {
            all.push(Named { copy: copy.to_owned(), shown: shown.trim_end_matches('/').to_owned(), typed });
            // A file in a folder comes before that folder.
            all.sort_by_key(|known| std::cmp::Reverse(known.copy.as_os_str().len()));
        }
    }
}

/// A message with places in it, and not their copies.
pub(crate) fn shown(message: &str) -> String {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().fold(message.to_owned(), |message, known| message.replace(&*known.copy.to_string_lossy(), &known.shown))
}

/// A path as its owner would type it once more: a copy of a place that has no keys in it, or a file in one, is that place.
pub(crate) fn typed(path: &Path) -> PathBuf {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let place = all.iter().find_map(|known| {
        let (typed, inside) = (known.typed.as_ref()?, path.strip_prefix(&known.copy).ok()?);
        let is_all = inside.as_os_str().is_empty();
        Some(if is_all { typed.into() } else { format!("{}/{}", known.shown, inside.display()).into() })
    });
    place.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_shown_as_places_and_typed_again_where_no_key_is_in_them() {
        let [base, texts, signed] =
            ["/cache/test-base", "/cache/test-texts", "/cache/test-signed/a.txt"].map(Path::new);
        keep(base, "hf://me/tiny", Some("hf://models/me/tiny"));
        keep(texts, "s3://bucket/texts/", Some("s3://bucket/texts/*"));
        keep(signed, "https://host/a.txt", None);
        let told = shown("/cache/test-texts/a.jsonl:202: bad, /cache/test-signed/a.txt: bad, /cache/test-other: fine");
        assert_eq!(told, "s3://bucket/texts/a.jsonl:202: bad, https://host/a.txt: bad, /cache/test-other: fine");
        let again = |path: &str| typed(Path::new(path)).display().to_string();
        assert_eq!(again("/cache/test-base"), "hf://models/me/tiny");
        assert_eq!(again("/cache/test-base/tokenizer.json"), "hf://me/tiny/tokenizer.json");
        assert_eq!(again("/cache/test-signed/a.txt"), "/cache/test-signed/a.txt", "its address may have a key");
        assert_eq!(again("/data/a.txt"), "/data/a.txt");
        keep(texts, "s3://bucket/texts", Some("s3://bucket/texts"));
        assert_eq!(again("/cache/test-texts"), "s3://bucket/texts");
    }
}
