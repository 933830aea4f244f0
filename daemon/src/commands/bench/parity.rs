//! The same steps here and in PyTorch, from the same weights over the same tokens: do the losses agree?

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_training::{Device, Engine, Precision};
use safetensors::tensor::{Dtype, TensorView};

use super::pytorch::{PyTorch, Workplace};

/// The losses of both, step by step, in nats.
pub(super) struct Parity {
    pub(super) ours: Vec<f64>,
    pub(super) theirs: Vec<f64>,
}

impl Parity {
    /// The largest difference of two losses.
    pub(super) fn difference(&self) -> f64 {
        let pairs = self.ours.iter().zip(&self.theirs);
        pairs.map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max)
    }
}

/// Takes `steps` steps with a fresh engine and with PyTorch.
pub(super) fn compare(
    python: &Path,
    manifest: &RunManifest,
    mut engine: Engine,
    target: (&Device, Precision),
    threads: usize,
    steps: usize,
) -> anyhow::Result<Parity> {
    let workplace = Workplace::new()?;
    workplace.remove_when_interrupted()?;
    let (weights, tokens) = (workplace.path().join("weights.safetensors"), workplace.path().join("tokens"));
    write_weights(&weights, &engine)?;
    let (mut ours, mut rates, mut windows) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..steps {
        let step = engine.timed_step(step as f64)?;
        ours.push(step.report.loss);
        rates.push(step.report.learning_rate);
        let batch = step.batch.tokens()?;
        let length = batch.length();
        for (inputs, targets) in batch.inputs.chunks(length).zip(batch.targets.chunks(length)) {
            windows.extend(inputs.iter().chain(targets.last()).flat_map(|token| token.to_le_bytes()));
        }
    }
    std::fs::write(&tokens, windows)?;
    let path = |path: &Path| path.display().to_string();
    let more = ["--weights".to_owned(), path(&weights), "--tokens".to_owned(), path(&tokens), "--rates".to_owned()];
    let more = [&more[..], &[serde_json::to_string(&rates)?]].concat();
    let theirs = PyTorch::start(python, &workplace, manifest, target, threads, &more)?.take_steps(steps)?.losses;
    Ok(Parity { ours, theirs })
}

fn write_weights(path: &Path, engine: &Engine) -> anyhow::Result<()> {
    let parameters = engine.parameters()?;
    let tensors = engine.layout().tensors().iter().map(|tensor| {
        let values = bytemuck::cast_slice(&parameters[tensor.range()]);
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), values);
        (tensor.name.clone(), view.expect("the layout's shapes fit its values"))
    });
    Ok(std::fs::write(path, safetensors::serialize(tensors.collect::<Vec<_>>(), None)?)?)
}
