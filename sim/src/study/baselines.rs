//! What gossip is measured against: the same engines, averaged exactly and all at once, or not at all.

use murmur_protocol::manifest::GossipSpec;
use murmur_training::engine::BatchGradient;
use murmur_training::{Engine, OuterMomentum};

use super::{Method, Outcome, Setting};
use crate::trainer::mean;
use crate::{Text, TransformerSpec};

/// Bytes that a node sends for each parameter in a ring all-reduce of bfloat16 gradients (two passes of 2 bytes).
const RING_BYTES_OF_GRADIENTS: f64 = 4.0;

/// The same of 8-bit models.
const RING_BYTES_OF_MODELS: f64 = 2.0;

/// Gradients of all nodes averaged in every step: one model everywhere.
pub fn data_parallel(setting: &Setting, text: &Text) -> Outcome {
    let trainer = setting.trainer(text, setting.steps);
    let mut engines = engines(setting, &trainer, &without_momentum());
    for step in 0..setting.steps {
        let averaged = mean_gradient(&mut engines);
        for engine in &mut engines {
            // A step that is not finite is left out, as by the daemon.
            let _ = engine.step_with(&averaged, step as f64);
        }
    }
    let outcome = setting.outcome(&trainer, &models(&engines[..1]));
    Outcome { bytes_per_parameter: setting.steps as f64 * RING_BYTES_OF_GRADIENTS, ..outcome }
}

/// Synchronous DiLoCo; the optimizer's moments stay with the nodes.
///
/// # Panics
/// When the setting is of another method.
pub fn diloco(setting: &Setting, text: &Text) -> Outcome {
    let Method::Diloco { interval, outer_learning_rate, outer_momentum } = setting.method else {
        panic!("a setting of DiLoCo");
    };
    let trainer = setting.trainer(text, setting.steps);
    let gossip = GossipSpec { outer_learning_rate, outer_momentum, ..GossipSpec::default() };
    let mut engines = engines(setting, &trainer, &without_momentum());
    let mut outer = OuterMomentum::new(&gossip, parameters(&engines[0]));
    let mut rounds = 0;
    for step in 0..setting.steps {
        engines.iter_mut().for_each(|engine| train(engine, step));
        if (step + 1).is_multiple_of(u64::from(interval)) || step + 1 == setting.steps {
            average_all(&mut engines, &mut outer);
            rounds += 1;
        }
    }
    let outcome = setting.outcome(&trainer, &models(&engines));
    let exchanges = f64::from(rounds);
    Outcome { bytes_per_parameter: exchanges * RING_BYTES_OF_MODELS, exchanges, ..outcome }
}

/// Every node for itself.
pub fn local_only(setting: &Setting, text: &Text) -> Outcome {
    let trainer = setting.trainer(text, setting.steps);
    let mut engines = engines(setting, &trainer, &without_momentum());
    for engine in &mut engines {
        (0..setting.steps).for_each(|step| train(engine, step));
    }
    setting.outcome(&trainer, &models(&engines))
}

/// The end of a DiLoCo round: the outer step towards the mean of all models, which all nodes then take over.
///
/// # Panics
/// When the machine has no memory left.
pub fn average_all(engines: &mut [Engine], outer: &mut OuterMomentum) {
    let models = models(engines);
    let views: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
    let next = outer.advance(&mean(&views, views[0].len())).to_vec();
    for engine in engines {
        let mut state = engine.save().expect("the CPU's memory can be read");
        state.parameters.clone_from(&next);
        engine.restore(state).expect("the same model");
    }
}

pub(super) fn engines(setting: &Setting, trainer: &TransformerSpec, gossip: &GossipSpec) -> Vec<Engine> {
    (0..setting.nodes).map(|host| trainer.engine(gossip, (host, setting.nodes), setting.seed)).collect()
}

pub(super) fn without_momentum() -> GossipSpec {
    GossipSpec { outer_learning_rate: 0.0, ..GossipSpec::default() }
}

fn train(engine: &mut Engine, step: u64) {
    // A step that is not finite is left out, as by the daemon.
    let _ = engine.step(step as f64);
}

pub(super) fn gradient(engine: &mut Engine) -> BatchGradient {
    engine.gradient_of_next_batch().expect("the CPU has memory for a step")
}

/// Of the next batches of all.
pub(super) fn mean_gradient(engines: &mut [Engine]) -> BatchGradient {
    let gradients: Vec<BatchGradient> = engines.iter_mut().map(gradient).collect();
    let views: Vec<&[f32]> = gradients.iter().map(|gradient| gradient.values.as_slice()).collect();
    let values = mean(&views, views[0].len());
    let loss = gradients.iter().map(|gradient| gradient.loss).sum::<f64>() / gradients.len() as f64;
    BatchGradient { values, loss, tokens: gradients.iter().map(|gradient| gradient.tokens).sum() }
}

fn parameters(engine: &Engine) -> Vec<f32> {
    engine.parameters().expect("the CPU's memory can be read")
}

pub(super) fn models(engines: &[Engine]) -> Vec<Vec<f32>> {
    engines.iter().map(parameters).collect()
}
