//! Manifests, as peers tell them.

use murmur_protocol::manifest::{MANIFEST_BYTES_MAX, RunManifest};

use super::{assert_harmless, configs};

pub(super) fn read(bytes: &[u8]) -> bool {
    let Ok(manifest) = RunManifest::from_text(&String::from_utf8_lossy(bytes)) else { return false };
    let canonical = manifest.canonical_text();
    // It may be longer than what was read.
    if canonical.len() <= MANIFEST_BYTES_MAX {
        let again = RunManifest::from_text(&canonical);
        assert_eq!(again.as_ref().map(RunManifest::run_id), Ok(manifest.run_id()), "{canonical}");
    }
    assert_harmless(&manifest.run.name);
    RunManifest::built_in().differences(&manifest).iter().for_each(|line| assert_harmless(line));
    let parameters = murmur_training::parameter_count(&manifest.model);
    manifest.prediction();
    let _ = manifest.gossip.sized(parameters);
    true
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let canonical = RunManifest::built_in().canonical_text().into_bytes();
    configs("runs").into_iter().filter(|text| text.len() <= MANIFEST_BYTES_MAX).chain([canonical]).collect()
}
