//! Images a second of whole training steps (data, forward, backward, AdamW) of the small image models, batch 64: what
//! `scripts/bench_pytorch_images.py` compares with PyTorch.

use std::time::{Duration, Instant};

use murmur_training::median;

use crate::Failure;
use crate::way::{Way, corpus, sized};

/// How long each model is measured.
const MEASURING: Duration = Duration::from_secs(2);

pub(crate) fn measure() -> Result<(), Failure> {
    for name in ["mlp", "cnn"] {
        let way = Way::of("plain", &sized(name)?)?;
        let mut engine = way.engine(corpus(&way.manifest)?, None)?;
        let (mut seconds, begin) = (Vec::new(), Instant::now());
        while begin.elapsed() < MEASURING {
            let step = Instant::now();
            engine.step(10.0)?;
            seconds.push(step.elapsed().as_secs_f64());
        }
        let images = f64::from(way.manifest.optimizer.batch_sequences);
        println!("{name} {:.0}", images / median(seconds).expect("a step was taken"));
    }
    Ok(())
}
