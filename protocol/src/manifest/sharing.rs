//! The part of a manifest about shared data: its ranges, and how it is told.
//!
//! Runs that share nothing are told without these fields, so that they keep the id that they had before there was such
//! a thing.

use super::{DataSource, DataSpec, ManifestError, check};
use crate::bounds::{SHARD_BYTES_MAX, SHARDS_MAX};

/// The smallest shard, in bytes. Only tests want shards this small.
const SHARD_BYTES_LEAST: u64 = 256;

const FIELDS: [&str; 4] = ["share", "shard_bytes", "corpus_bytes", "shards"];

/// Checks the fields of shared data against each other.
pub(super) fn validate(data: &DataSpec, context: u32) -> Result<(), ManifestError> {
    let DataSpec { share, shard_bytes, corpus_bytes, shards, .. } = data;
    if !share {
        check("data.shard_bytes", shard_bytes, *shard_bytes == 0, "0 unless data.share = true")?;
        check("data.corpus_bytes", corpus_bytes, *corpus_bytes == 0, "0 unless data.share = true")?;
        return check("data.shards", shards.len(), shards.is_empty(), "empty unless data.share = true");
    }
    let files = data.source == DataSource::Files;
    check("data.share", share, files, "false unless data.source = \"files\"")?;
    let fits = (SHARD_BYTES_LEAST..=SHARD_BYTES_MAX).contains(shard_bytes) && shard_bytes.is_power_of_two();
    let chosen = fits && *shard_bytes > u64::from(context);
    let rule = "0 (the founder chooses) or a power of two, 256 to 1073741824, above model.context";
    check("data.shard_bytes", shard_bytes, *shard_bytes == 0 || chosen, rule)?;
    let count = shards.len();
    check(
        "data.shards",
        format!("{count} hashes"),
        count <= SHARDS_MAX,
        "at most 128: a larger data.shard_bytes helps",
    )?;
    if count == 0 {
        return check("data.corpus_bytes", corpus_bytes, *corpus_bytes == 0, "0 until the founder lists the shards");
    }
    let expected = corpus_bytes.checked_div(*shard_bytes).map(|_| corpus_bytes.div_ceil(*shard_bytes));
    let agrees = expected == Some(count as u64);
    check("data.shards", format!("{count} hashes"), agrees, "one for each data.shard_bytes of data.corpus_bytes")?;
    let training = data.training_bytes(*corpus_bytes);
    let both = training.min(corpus_bytes - training) > u64::from(context);
    check("data.corpus_bytes", corpus_bytes, both, "enough for a window of model.context + 1 in both parts")
}

/// Whether a field has no line in the canonical text.
pub(super) fn is_left_out(data: &DataSpec, section: &str, field: &str) -> bool {
    !data.share && section == "data" && FIELDS.contains(&field)
}

/// A value for people: a list of a hundred hashes helps nobody.
pub(super) fn shortened(value: &str) -> String {
    const SHOWN_MAX: usize = 160;
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}… ({} characters)", &value[..end], value.chars().count()),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunManifest;
    use crate::manifest::MANIFEST_BYTES_MAX;
    use crate::shards::{ShardHash, list_shards};

    fn sharing() -> RunManifest {
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        manifest.data.share = true;
        manifest
    }

    #[test]
    fn runs_that_share_nothing_keep_their_id() {
        let mut manifest = RunManifest::default();
        manifest.gossip = manifest.gossip.sized(1);
        let text = manifest.canonical_text();
        assert!(FIELDS.iter().all(|field| !text.contains(&format!("data.{field} "))), "{text}");
        assert_eq!(RunManifest::from_text(&text), Ok(manifest.clone()));
        // The built-in run's id: a change of it is another run, which nodes of the version before refuse.
        assert_eq!(manifest.run_id().to_string(), "3c767b0b899ebb05");
    }

    #[test]
    fn the_longest_list_of_shards_fits_into_a_manifest() {
        let corpus: Vec<u8> = (0..256 * SHARDS_MAX).map(|index| (index / 7) as u8).collect();
        let mut manifest = sharing();
        manifest.run.name = "\u{1f426}".repeat(64);
        manifest.data.shard_bytes = 256;
        let manifest = list_shards(&manifest, &corpus).expect("it fits");
        let text = manifest.canonical_text();
        assert!(text.len() < MANIFEST_BYTES_MAX * 3 / 4, "{} bytes", text.len());
        assert_eq!(RunManifest::from_text(&text), Ok(manifest));
    }

    #[test]
    fn lists_that_contradict_themselves_are_refused() {
        let refused = |change: fn(&mut RunManifest)| {
            let mut manifest = list_shards(&sharing(), &vec![5; 300_000]).expect("it fits");
            change(&mut manifest);
            manifest.validate().expect_err("a contradiction").to_string()
        };
        assert!(refused(|manifest| manifest.data.share = false).starts_with("data.shard_bytes"));
        assert!(refused(|manifest| manifest.data.source = DataSource::Grammar).starts_with("data.share"));
        assert!(refused(|manifest| manifest.data.shard_bytes = 65_537).starts_with("data.shard_bytes"));
        assert!(refused(|manifest| manifest.data.shard_bytes = 0).starts_with("data.shards"));
        assert!(refused(|manifest| manifest.data.corpus_bytes = u64::MAX).starts_with("data.shards"));
        assert!(refused(|manifest| manifest.data.shards.push(ShardHash::of(b""))).starts_with("data.shards"));
        assert!(refused(|manifest| manifest.data.shards.clear()).starts_with("data.corpus_bytes"));
        let tiny = list_shards(&sharing(), b"too short").expect_err("no window").to_string();
        assert!(tiny.starts_with("data.corpus_bytes = 9"), "{tiny}");
    }

    #[test]
    fn a_run_that_shares_differs_from_one_that_does_not_by_name() {
        let manifest = list_shards(&sharing(), &vec![5; 300_000]).expect("it fits");
        let differences = manifest.differences(&RunManifest::default());
        assert!(differences.contains(&"data.share: true here, nothing there".to_owned()), "{differences:?}");
        assert!(differences.iter().all(|difference| difference.len() < 300), "{differences:?}");
    }

    #[test]
    fn a_hash_that_is_none_is_named() {
        let error = RunManifest::from_text("[data]\nshards = [\"abc\"]").expect_err("no hash").to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
}
