//! The part of a manifest about remote places: where members find the data or the base that a digest names. A manifest is told
//! to everybody who asks, so nothing in it may be a key.

use super::{DataSource, DataSpec, ManifestError, check};

/// Places of one run.
const PLACES_MAX: usize = 8;

/// The longest place, in bytes: eight of them have room in a manifest beside the most shards.
const PLACE_BYTES_MAX: usize = 512;

/// Checks the places of a run's data.
pub(super) fn validate(data: &DataSpec) -> Result<(), ManifestError> {
    let schemes = ["https://", "s3://", "hf://"];
    let holds = data.remote.len() <= PLACES_MAX && data.remote.iter().all(|place| is_place(place, &schemes));
    let rule = "up to 8 addresses that begin with https://, s3:// or hf://, each at most 512 bytes, without a user name, ? or #, \
                which could be keys";
    check("data.remote", format!("{:?}", data.remote), holds, rule)?;
    let reads_files = data.source != DataSource::Grammar || data.remote.is_empty();
    check("data.remote", format!("{:?}", data.remote), reads_files, "empty where data.source = \"grammar\"")
}

/// Whether a text is a place of one of these schemes in which nothing is a key: no user or password, no query, no fragment.
pub(super) fn is_place(text: &str, schemes: &[&str]) -> bool {
    let Some(rest) = schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    // The hub's addresses name a revision behind an @.
    let has_user = !text.starts_with("hf://") && host.contains('@');
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\' | b'"');
    text.len() <= PLACE_BYTES_MAX && !host.is_empty() && !has_user && rest.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunManifest;

    fn with(places: &[&str]) -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.remote = places.iter().map(|place| (*place).to_owned()).collect();
        manifest
    }

    #[test]
    fn runs_without_remote_places_keep_their_id() {
        let text = with(&[]).canonical_text();
        assert!(!text.contains("remote"), "{text}");
        let mut manifest = with(&["https://example.org/a.txt", "hf://datasets/a/b@v1/data", "s3://bucket/a"]);
        manifest.base.remote = "hf://a/b".to_owned();
        let text = manifest.canonical_text();
        assert!(
            text.contains("base.remote = \"hf://a/b\"\n") && text.contains("data.remote = [\"https://example"),
            "{text}"
        );
        assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
        assert_ne!(manifest.run_id(), with(&[]).run_id());
    }

    #[test]
    fn what_could_be_a_key_is_in_no_manifest() {
        for place in [
            "https://name:secret@example.org/a",
            "https://example.org/a?sig=1",
            "https://example.org/a#b",
            "http://example.org/a",
            "/etc/passwd",
            "file:///a",
            "https://",
            "s3://key@bucket/a",
            "hf://a b",
            "https://ex\u{e4}mple.org/a",
            "",
            &format!("https://example.org/{}", "a".repeat(500)),
        ] {
            let error = with(&[place]).validate().expect_err(place).to_string();
            assert!(error.starts_with("data.remote = "), "{error}");
        }
        let mut grammar = with(&["hf://datasets/a/b"]);
        grammar.data.source = DataSource::Grammar;
        assert!(grammar.validate().is_err());
        let mut base = RunManifest::default();
        base.base.remote = "https://example.org/model".to_owned();
        assert!(base.validate().expect_err("a file").to_string().starts_with("base.remote = "));
    }
}
