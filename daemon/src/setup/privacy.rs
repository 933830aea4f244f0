//! Private training as a node's settings ask for it, or one clear line on why it is not possible.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::DataSource;
use murmur_training::Engine;
use murmur_training::privacy::{NotPrivate, SecretKey};

use crate::console::{counted, note};
use crate::drivers::PrivacyReport;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;
use crate::store::{PRIVACY_FILE, PrivacyLedger};

/// Makes the steps of `engine` private where the settings say so, and says what that means. Returns the ledger.
///
/// # Errors
/// When the run, the machine or the data directory does not allow it, or the directory's node was private before and is not to be now.
pub(crate) fn begin(
    engine: &mut Engine,
    manifest: &RunManifest,
    settings: &NodeSettings,
    root: &Path,
) -> Result<Option<PrivacyLedger>, Failure> {
    let shown = root.join(PRIVACY_FILE);
    if !settings.privacy.is_on() {
        if !PrivacyLedger::exists(root) {
            return Ok(None);
        }
        let message = "this node has trained privately so far, and would now train without privacy";
        return Err(Failure::new(ExitCode::Settings, message).hint(format!(
            "give --epsilon as before; or end the promise to your records by deleting {}",
            shown.display()
        )));
    }
    check_run(manifest, settings)?;
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        Failure::new(ExitCode::Failure, format!("the system gives no randomness for private training: {error}"))
    })?;
    let private = engine.train_privately(settings.privacy.steps(), SecretKey::new(key));
    let mechanism = private.map_err(|reason| refusal(&reason))?;
    if engine.steps() > 0 && !PrivacyLedger::exists(root) {
        let message = format!("{} is missing: this node has taken steps that no ledger counts", shown.display());
        return Err(Failure::new(ExitCode::Files, message).hint(
            "restore it from a backup; or, where those steps were not private, begin anew in another --data-dir",
        ));
    }
    let budget = settings.privacy.budget();
    if murmur_training::privacy::Spending::default().steps_left(mechanism, budget) == 0 {
        let message = format!(
            "--epsilon {} and --noise {} last for no step: the first one would tell more than that of a record",
            settings.privacy.epsilon, settings.privacy.noise
        );
        let steps = manifest.schedule.total_steps.max(1);
        let remedy = match mechanism.noise_for(steps, budget) {
            Some(noise) => format!("--noise {noise} lasts for {}", counted(steps, "step")),
            None => "give a larger --epsilon, or gather more records".to_owned(),
        };
        return Err(Failure::new(ExitCode::Settings, message).hint(remedy));
    }
    let ledger = PrivacyLedger::open(root, mechanism, budget).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot read {}: {error}", shown.display()))
            .hint("what was told of the records is not known without it: restore it from a backup")
    })?;
    note(&format!("privacy     {}; a record is {}", PrivacyReport::new(&ledger, 0), record(manifest)));
    if mechanism.records as f64 * settings.privacy.delta > 1.0 {
        note(&format!(
            "warning: delta is above one in {} records: a whole record may come out; give a smaller --delta",
            mechanism.records
        ));
    }
    Ok(Some(ledger))
}

/// What of the run and the settings stands in the way, whatever the records.
pub(crate) fn check_run(manifest: &RunManifest, settings: &NodeSettings) -> Result<(), Failure> {
    check_places(settings)?;
    if manifest.synchronous.is_on() {
        let message = "private training averages by gossip, and this run is synchronous";
        return Err(Failure::new(ExitCode::Settings, message)
            .hint("take part without --epsilon, or train privately in a run without synchronous.topology"));
    }
    Ok(())
}

/// Losses are computed from records without noise, and must not leave the machine.
fn check_places(settings: &NodeSettings) -> Result<(), Failure> {
    let url = settings.mlflow.url.trim();
    let host = url.parse::<hyper::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    let is_here = host.is_some_and(|host| matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]"));
    if url.is_empty() || is_here {
        return Ok(());
    }
    let message = "private training does not tell an MLflow server elsewhere of losses, which have no noise";
    Err(Failure::new(ExitCode::Settings, message).hint("leave mlflow.url empty, or run the server on this machine"))
}

/// Why private training is not possible, with what to do.
pub(crate) fn refusal(reason: &NotPrivate) -> Failure {
    let hint = match reason {
        NotPrivate::MadeUp => "private training is for data of your own: --data FILE…",
        NotPrivate::Shared => "a run for private data has data.share = false",
        NotPrivate::Digest => "a run for private data has no data.digest",
        NotPrivate::LabelSkew => "a run for private data has data.label_skew = 0",
        NotPrivate::TooFewRecords { .. } => "give more data, or found a run with a smaller batch",
        NotPrivate::Device => "give --device cpu",
        NotPrivate::NoNoise => "--clip and --noise are above 0",
    };
    Failure::new(ExitCode::Settings, format!("training cannot be private: {reason}")).hint(hint)
}

/// What is protected.
pub(crate) fn record(manifest: &RunManifest) -> String {
    let unit = manifest.prediction();
    match manifest.data.source {
        DataSource::Table => "a row of a table".to_owned(),
        _ if !manifest.model.reads_text() => "an image".to_owned(),
        DataSource::JsonLines | DataSource::Parquet => {
            format!("a text, cut to {} {unit}s", manifest.model.context() + 1)
        }
        _ => format!(
            "a window of {} {unit}s: what somebody wrote may fill several, and is told several times as much of",
            manifest.model.context() + 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{Topology, TransformerModel};
    use murmur_training::{Corpus, Device};

    use super::*;
    use crate::settings::PrivacySettings;

    fn manifest() -> RunManifest {
        let model =
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.data.source = DataSource::Files;
        manifest
    }

    fn engine() -> Engine {
        let bytes = (0..2000).map(|index| (index * 7 % 251) as u8).collect();
        let corpus = Corpus::from_bytes(bytes, &manifest().data, 16).expect("text");
        Engine::new(&manifest(), corpus, [1; 32], Device::Cpu).expect("an engine")
    }

    fn on() -> NodeSettings {
        NodeSettings { privacy: PrivacySettings { epsilon: 3.0, ..Default::default() }, ..Default::default() }
    }

    #[test]
    fn a_promise_once_made_is_not_dropped_and_not_made_for_steps_that_were_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let begin = |engine: &mut Engine, settings: &NodeSettings| begin(engine, &manifest(), settings, folder.path());
        let mut engine = engine();
        assert!(begin(&mut engine, &NodeSettings::default()).expect("not private").is_none());
        engine.step(0.0).expect("an open step");
        let failure = begin(&mut engine, &on()).expect_err("an open step was taken");
        assert!(failure.to_string().contains("privacy.json is missing"), "{failure}");
        let mut engine = self::engine();
        let mut ledger = begin(&mut engine, &on()).expect("private").expect("a ledger");
        assert_eq!((engine.permits(), ledger.epsilon()), (Some(0), 0.0));
        ledger.spend(1).expect("written");
        let failure = begin(&mut engine, &NodeSettings::default()).expect_err("it was private");
        assert!(failure.to_string().contains("has trained privately so far"), "{failure}");
        let ledger = begin(&mut engine, &on()).expect("private").expect("a ledger");
        assert_eq!(ledger.steps(), 1);
    }

    #[test]
    fn what_does_not_go_together_is_refused_in_a_line_with_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |manifest: &RunManifest, settings: &NodeSettings| {
            let failure = begin(&mut engine(), manifest, settings, folder.path()).expect_err("refused");
            assert!(!failure.to_string().contains('\n') && !failure.remedy().is_empty());
            failure.to_string()
        };
        let mut told = on();
        told.mlflow.url = "http://192.0.2.7:5000".to_owned();
        assert!(refused(&manifest(), &told).contains("MLflow server elsewhere"));
        assert!(!PrivacyLedger::exists(folder.path()));
        told.mlflow.url = "http://127.0.0.1:5000".to_owned();
        begin(&mut engine(), &manifest(), &told, folder.path()).expect("on this machine");
        let mut synchronous = manifest();
        synchronous.synchronous.topology = Topology::Ring;
        assert!(refused(&synchronous, &on()).contains("this run is synchronous"));
        for reason in [NotPrivate::MadeUp, NotPrivate::Device, NotPrivate::TooFewRecords { records: 3, batch: 8 }] {
            let failure = refusal(&reason);
            assert!(failure.to_string().starts_with("training cannot be private: ") && !failure.remedy().is_empty());
        }
        std::fs::write(folder.path().join(PRIVACY_FILE), "{").expect("written");
        assert!(refused(&manifest(), &on()).contains("it is damaged"));
    }
}
