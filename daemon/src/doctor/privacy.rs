//! Private training: how much the noise leaves of the signal, and what the planned steps would tell.

use murmur_protocol::RunManifest;
use murmur_training::Corpus;
use murmur_training::privacy::{Mechanism, NotPrivate, records_in};

use super::Finding;
use crate::console::counted;
use crate::console::figures::count;
use crate::settings::NodeSettings;
use crate::setup::privacy::{check_run, refusal};

/// Looks at what the settings ask of this run and its records; nothing where training is not private.
pub fn check_privacy(
    manifest: &RunManifest,
    settings: &NodeSettings,
    corpus: &Corpus,
    parameters: usize,
) -> Option<Finding> {
    if !settings.privacy.is_on() {
        return None;
    }
    let batch = u64::from(manifest.optimizer.batch_sequences);
    let noise = settings.privacy.noise;
    let possible = check_run(manifest, settings).and_then(|()| match records_in(manifest, corpus) {
        Ok(records) if records >= batch => Ok(Mechanism { records, batch, noise }),
        Ok(records) => Err(refusal(&NotPrivate::TooFewRecords { records, batch })),
        Err(reason) => Err(refusal(&reason)),
    });
    Some(match possible {
        Ok(mechanism) => judge(manifest, settings, mechanism, parameters),
        Err(failure) => Finding::of_failure("privacy", &failure),
    })
}

/// The gradients of a step have a mean of at most the clip norm; its noise has a norm of σ · clip · √parameters / batch.
fn judge(manifest: &RunManifest, settings: &NodeSettings, mechanism: Mechanism, parameters: usize) -> Finding {
    let privacy = &settings.privacy;
    let ratio = privacy.noise * (parameters as f64).sqrt() / mechanism.batch as f64;
    let text =
        format!("{}; noise of {ratio:.1} times the largest signal in each step", counted(mechanism.records, "record"));
    let steps_left = murmur_training::privacy::Spending::default().steps_left(mechanism, privacy.budget());
    let lasts = count(steps_left);
    let planned = match (settings.training.steps, manifest.schedule.total_steps) {
        (0, 0) => None,
        (0, steps) | (steps, _) => Some(steps),
    };
    let told = match planned {
        Some(steps) => {
            let epsilon = mechanism.epsilon(steps, privacy.delta);
            format!(
                "epsilon {epsilon:.2} after the planned {}; {} last for {lasts}",
                counted(steps, "own step"),
                privacy.epsilon
            )
        }
        None => format!("epsilon {} lasts for {}", privacy.epsilon, counted(steps_left, "own step")),
    };
    let text = format!("{told} at delta {:e}; {text}", privacy.delta);
    let mut fixes = Vec::new();
    if planned.unwrap_or(1) > steps_left {
        let enough = Some(planned.unwrap_or(1)).and_then(|steps| mechanism.noise_for(steps, privacy.budget()));
        fixes.push(match enough {
            Some(noise) if planned.is_some() => format!("--noise {noise} lasts for all planned steps"),
            Some(noise) => format!("--noise {noise} lasts for a step, and more for more"),
            None => "plan fewer steps, or gather more records".to_owned(),
        });
    }
    if ratio > 1.0 {
        fixes.push(
            "noise drowns what is learned: train adapters or a smaller model, with a larger batch; many members average it away"
                .to_owned(),
        );
    }
    if mechanism.records as f64 * privacy.delta > 1.0 {
        fixes.push(format!("--delta below one in {} records", mechanism.records));
    }
    match (fixes.is_empty(), steps_left) {
        (true, _) => Finding::good("privacy", text),
        (false, 0) => Finding::problem("privacy", text, fixes.join("; ")),
        (false, _) => Finding::warning("privacy", text, fixes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::manifest::{DataSource, Topology};

    use super::*;
    use crate::doctor::Health;
    use crate::settings::PrivacySettings;

    #[test]
    fn too_much_noise_and_too_many_steps_are_warned_of() {
        let mut settings =
            NodeSettings { privacy: PrivacySettings { epsilon: 3.0, ..Default::default() }, ..Default::default() };
        let mut manifest = RunManifest::default();
        manifest.schedule.total_steps = 1200;
        let mechanism = Mechanism { records: 10_000, batch: 256, noise: 1.0 };
        let finding = judge(&manifest, &settings, mechanism, 1_000_000);
        assert_eq!(finding.health, Health::Warning);
        assert!(
            finding.text.starts_with("epsilon 6.21 after the planned 1,200 own steps; 3 last for "),
            "{}",
            finding.text
        );
        assert!(finding.text.ends_with("noise of 3.9 times the largest signal in each step"), "{}", finding.text);
        assert!(finding.fix.contains("--noise 1.5") && finding.fix.contains("adapters"), "{}", finding.fix);
        settings.training.steps = 100;
        let finding = judge(&manifest, &settings, mechanism, 10_000);
        assert_eq!((finding.health, finding.fix.as_str()), (Health::Good, ""), "{}", finding.text);
        settings.privacy.noise = 0.1;
        let weak = Mechanism { noise: 0.1, ..mechanism };
        assert_eq!(judge(&manifest, &settings, weak, 10_000).health, Health::Problem, "it lasts for no step");
        settings.privacy.noise = 1.0;
        settings.privacy.delta = 0.001;
        assert!(judge(&manifest, &settings, mechanism, 10_000).fix.contains("--delta below one in 10000"));
    }

    #[test]
    fn the_built_in_stories_are_nothing_to_protect() {
        let on = NodeSettings { privacy: PrivacySettings { epsilon: 3.0, ..Default::default() }, ..Default::default() };
        let check =
            |settings: &NodeSettings| check_privacy(&RunManifest::default(), settings, &Corpus::grammar(), 1000);
        assert_eq!(check(&on).expect("asked for").health, Health::Problem);
        assert!(check(&NodeSettings::default()).is_none());
    }

    #[test]
    fn nothing_is_advised_for_a_run_that_refuses_to_be_private() {
        let on = NodeSettings { privacy: PrivacySettings { epsilon: 3.0, ..Default::default() }, ..Default::default() };
        let mut manifest = RunManifest::default();
        manifest.data.source = DataSource::Files;
        let bytes = (0..100_000).map(|index| (index * 7 % 251) as u8).collect();
        let corpus = Corpus::from_bytes(bytes, &manifest.data, manifest.model.context() as usize).expect("text");
        let finding = |manifest: &RunManifest| check_privacy(manifest, &on, &corpus, 1000).expect("asked for");
        assert!(finding(&manifest).text.starts_with("epsilon "), "{:?}", finding(&manifest));
        manifest.synchronous.topology = Topology::Ring;
        let Finding { health, text, fix, .. } = finding(&manifest);
        assert!(health == Health::Problem && text.contains("this run is synchronous"), "{text}");
        assert!(fix.contains("without --epsilon") && !fix.contains("--noise"), "{fix}");
    }
}
