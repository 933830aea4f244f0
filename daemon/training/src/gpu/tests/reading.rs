//! Texts that are read on a GPU.

use super::*;
use crate::gpu::GpuReader;
use crate::model::transformer::Decoder;

#[test]
fn texts_are_read_as_on_the_cpu() -> Result<()> {
    for (device, spec) in on_all_devices(specs()) {
        // Longer than what is read at once.
        let spec = TransformerModel { context: 150, ..spec };
        let model = Transformer::new(&spec);
        let mut parameters = model.initial_parameters(1);
        let noise = random_values(parameters.len(), 5);
        parameters.iter_mut().zip(noise).for_each(|(value, noise)| *value += 0.02 * noise);
        let text = random_tokens(150, spec.vocabulary, 3);
        let reader = GpuReader::new(device, &spec, &parameters)?;
        let (mut of_gpu, mut decoder, mut read) = (reader.begin()?, Decoder::new(150), 0);
        for end in [5, 6, 140, 141, 150] {
            let found = of_gpu(&text[read..end])?;
            let expected = model.read(&parameters, &text[read..end], &mut decoder)?;
            let pairs = found.iter().zip(&expected);
            let error = pairs.fold(0.0_f32, |largest, (left, right)| largest.max((left - right).abs()));
            assert!(found.len() == expected.len() && error < 1e-5, "{spec:?} {end}: {error}");
            read = end;
        }
        assert!(of_gpu(&text[..1]).is_err(), "more than the context");
        let batches = [batch(&spec, 1, 1), batch(&spec, 2, 5)];
        let found = reader.evaluate(batches.iter().cloned())?;
        let expected = batches.iter().try_fold(Evaluation::default(), |sum, batch| {
            Ok::<_, candle_core::Error>(sum.with(model.evaluate(&parameters, batch)?))
        })?;
        assert!((found.loss() - expected.loss()).abs() < 1e-5, "{found:?} {expected:?}");
        assert_eq!((found.predictions, found.correct), (expected.predictions, expected.correct));
    }
    Ok(())
}
