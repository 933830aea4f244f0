//! What is not shipped for models that are cut into stages, on the loss alone: machines that hold one stage each and pass every
//! batch to another machine of the next stage, drawn anew each time (as SWARM wires them, Ryabinin et al., arXiv 2301.11913), and
//! gradients of the model of one update ago, which fill a pipeline's bubble (PipeDream-2BW, Narayanan et al., arXiv 2006.09503).

use murmur_protocol::random::{Generator, RngExt, stream};
use murmur_training::Engine;
use murmur_training::engine::{BatchGradient, EngineState};

use super::baselines::{engines, gradient, mean_gradient, models, without_momentum};
use super::{Method, Outcome, Setting};
use crate::Text;
use crate::trainer::mean;

/// Gradients of all nodes averaged in every step, each of the model of one update ago.
pub(super) fn delayed(setting: &Setting, text: &Text) -> Outcome {
    let trainer = setting.trainer(text, setting.steps);
    let mut engines = engines(setting, &trainer, &without_momentum());
    let mut last: Option<BatchGradient> = None;
    // The first gradient has no update before it, so that as many are computed as are stepped with.
    for step in 0..=setting.steps {
        let next = (step < setting.steps).then(|| mean_gradient(&mut engines));
        if let Some(before) = last {
            for engine in &mut engines {
                // A step that is not finite is left out, as by the daemon.
                let _ = engine.step_with(&before, (step - 1) as f64);
            }
        }
        last = next;
    }
    setting.outcome(&trainer, &models(&engines[..1]))
}

/// Every node is two machines, one with the embedding and the first half of the layers, one with the rest; models are averaged by
/// random pairs every `interval` steps, exactly. Where the wiring is random, each machine averages with others of its stage, and
/// hands each batch to a drawn machine of the next stage; else the two are one node.
///
/// # Panics
/// When the setting is of another method.
pub(super) fn two_stages(setting: &Setting, text: &Text) -> Outcome {
    let Method::TwoStages { interval, is_wiring_random } = setting.method else {
        panic!("a setting of two stages");
    };
    let trainer = setting.trainer(text, setting.steps);
    let mut engines = engines(setting, &trainer, &without_momentum());
    engines.iter_mut().for_each(|engine| engine.set_members(setting.nodes as f64));
    let cut = cut(&engines[0], setting);
    let mut dice = stream(setting.seed, "study of stages", &[]);
    for step in 0..setting.steps {
        let wiring = if is_wiring_random { order(&mut dice, setting.nodes) } else { (0..setting.nodes).collect() };
        let gradients = gradients(&mut engines, &wiring, cut);
        for (engine, gradient) in engines.iter_mut().zip(&gradients) {
            let _ = engine.step_with(gradient, step as f64);
        }
        if (step + 1).is_multiple_of(u64::from(interval)) {
            let first = order(&mut dice, setting.nodes);
            let second = if is_wiring_random { order(&mut dice, setting.nodes) } else { first.clone() };
            average_pairs(&mut engines, &first, 0..cut);
            average_pairs(&mut engines, &second, cut..setting.parameters);
        }
    }
    setting.outcome(&trainer, &models(&engines))
}

/// Where the second stage begins in the vector of parameters.
fn cut(engine: &Engine, setting: &Setting) -> usize {
    let layer = format!("layers.{}.", setting.trainer(&Text::Grammar, 1).model.layers / 2);
    let tensors = engine.layout().tensors();
    tensors.iter().find(|tensor| tensor.name.contains(&layer)).expect("a model of several layers").offset
}

/// Each engine's gradient: of its first stage from its own batch, of its second stage from the batch of the node that is wired to
/// it, and both of the two stages together that the batch went through. `wiring[node]`: whose second stage the node's batch takes.
fn gradients(engines: &mut [Engine], wiring: &[usize], cut: usize) -> Vec<BatchGradient> {
    let states: Vec<EngineState> = engines.iter_mut().map(state).collect();
    let mut made: Vec<BatchGradient> = Vec::with_capacity(engines.len());
    for (node, engine) in engines.iter_mut().enumerate() {
        let mut mixed = states[node].clone();
        mixed.parameters[cut..].copy_from_slice(&states[wiring[node]].parameters[cut..]);
        engine.restore(mixed).expect("the same model");
        made.push(gradient(engine));
        let mut own = state(engine);
        own.parameters.clone_from(&states[node].parameters);
        engine.restore(own).expect("the same model");
    }
    let mut sorted = made.clone();
    for (node, other) in wiring.iter().enumerate() {
        sorted[*other].values[cut..].copy_from_slice(&made[node].values[cut..]);
    }
    sorted
}

/// Two by two in this order, parameters of `range` become their mean.
fn average_pairs(engines: &mut [Engine], order: &[usize], range: std::ops::Range<usize>) {
    for pair in order.chunks_exact(2) {
        let mut states = [pair[0], pair[1]].map(|node| state(&mut engines[node]));
        let middle = mean(&[&states[0].parameters[range.clone()], &states[1].parameters[range.clone()]], range.len());
        for (node, state) in pair.iter().zip(&mut states) {
            state.parameters[range.clone()].copy_from_slice(&middle);
            engines[*node].restore(state.clone()).expect("the same model");
        }
    }
}

fn order(dice: &mut Generator, nodes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes).collect();
    order.sort_by_cached_key(|_| dice.random::<u64>());
    order
}

fn state(engine: &mut Engine) -> EngineState {
    engine.save().expect("the CPU's memory can be read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plan::{Question, runs};

    fn setting(method: Method) -> Setting {
        let any = runs(Question::Stages, "text").swap_remove(0);
        Setting { method, nodes: 4, steps: 6, ..any }
    }

    fn trained(method: Method) -> f64 {
        setting(method).run(&Text::Grammar).loss
    }

    /// Stages whose machines are one node are that node; wired anew they are not.
    #[test]
    fn fixed_wiring_is_no_wiring_and_random_wiring_is() {
        let setting = setting(Method::TwoStages { interval: 2, is_wiring_random: false });
        let trainer = setting.trainer(&Text::Grammar, setting.steps);
        let mut twice = [0, 1].map(|_| engines(&setting, &trainer, &without_momentum()));
        let cut = cut(&twice[0][0], &setting);
        let same = gradients(&mut twice[0], &[0, 1, 2, 3], cut);
        let plain: Vec<BatchGradient> = twice[1].iter_mut().map(gradient).collect();
        assert_eq!(same, plain);
        // All begin with one model, so only whose batch a second stage saw is different.
        let mut again = engines(&setting, &trainer, &without_momentum());
        let wired = gradients(&mut again, &[1, 2, 3, 0], cut);
        for node in 0..4 {
            assert_eq!(wired[node].values[..cut], plain[node].values[..cut]);
            assert_eq!(wired[(node + 1) % 4].values[cut..], plain[node].values[cut..]);
        }
        assert_ne!(
            trained(Method::TwoStages { interval: 2, is_wiring_random: true }),
            trained(Method::TwoStages { interval: 2, is_wiring_random: false })
        );
    }

    #[test]
    fn a_delayed_gradient_is_that_of_the_model_before() {
        let one = Setting { steps: 1, ..setting(Method::Delayed) };
        let of = |setting: &Setting| setting.run(&Text::Grammar).loss;
        // Of the first update both know all; after it a delayed one is behind.
        assert_eq!(of(&one), of(&Setting { method: Method::DataParallel, ..one.clone() }));
        let two = Setting { steps: 2, ..one };
        assert_ne!(of(&two), of(&Setting { method: Method::DataParallel, ..two.clone() }));
    }
}
