//! Streams of 8 bits beside exact ones.

use super::*;

/// Of one seed on each push, of three with `MURMUR_TEST_SCALE=nightly`.
#[test]
fn streams_of_8_bits_train_as_exact_ones_do() {
    let ratio = |seed: u64| {
        let model =
            TransformerModel { layers: 4, width: 64, heads: 2, feed_forward: 96, context: 32, ..Default::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        // Paths of rounded and exact streams part as those of two seeds do, the sooner the larger the steps.
        (manifest.run.seed, manifest.optimizer.batch_sequences, manifest.optimizer.learning_rate) = (seed, 8, 1e-3);
        manifest.schedule.warmup_steps = 20;
        let losses = [Wire::F32, Wire::Codes8].map(|wire| {
            let memory = room_for_ends(&manifest, &TrainingOptions::default());
            let (mut engine, _team) = Team::begin(&manifest, None, Setting { wire, memory, ..setting(2) });
            let reports = stepped(&mut engine, 300);
            reports[100..].iter().map(|report| report.loss).sum::<f64>() / 200.0
        });
        let [exact, coded] = losses;
        assert!(exact < 5.0 && coded != exact, "it learns, and streams were rounded: {exact} {coded}");
        coded / exact - 1.0
    };
    let seeds = if is_nightly() { 0..3 } else { 0..1 };
    let ratios: Vec<f64> = seeds.map(ratio).collect();
    assert!(ratios.iter().all(|ratio| ratio.abs() < 0.003), "{ratios:?}");
}
