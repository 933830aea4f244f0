//! Private training, attacked: an audit in one run (Steinke, Nasr and Jagielski, arXiv 2305.08846).
//!
//! A coin decides for each of many canaries whether it is trained on. Afterwards somebody who sees the model guesses the coins that
//! they are surest of. Under (ε, δ) no guess is right more often than e^ε / (1 + e^ε), so many right ones bound ε from below.
//! A canary is an image with one bright pixel of its own, seen by a linear model: its weights move for this canary alone, which
//! makes guessing as easy as clipping allows.

use candle_core::Device;
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, MlpModel};
use murmur_protocol::random::{RngExt, stream};

use super::{Budget, Mechanism, PrivateSteps, SecretKey};
use crate::data::images::ImageSet;
use crate::data::{Corpus, Image, ImageShape};
use crate::engine::Engine;

const SHAPE: ImageShape = ImageShape { channels: 1, height: 25, width: 40 };

/// One for each pixel.
const CANARIES: usize = 1000;

/// Of these, how many are guessed: the more, the better one attack tells missing noise, and the worse it tells weak noise. A guess.
const GUESSES: usize = 200;

const STEPS: u64 = 20;

/// What is promised.
const BUDGET: Budget = Budget { epsilon: 2.0, delta: 1e-6 };

/// Each canary is taken every second step, with the noise that the accountant asks for.
fn mechanism() -> Mechanism {
    let mechanism = Mechanism { records: CANARIES as u64, batch: CANARIES as u64 / 2, noise: 1.0 };
    Mechanism { noise: mechanism.noise_for(STEPS, BUDGET).expect("some noise is enough"), ..mechanism }
}

fn manifest() -> RunManifest {
    let (image_height, image_width) = (SHAPE.height as u32, SHAPE.width as u32);
    let model = MlpModel { image_height, image_width, classes: 2, hidden: Vec::new(), ..MlpModel::default() };
    let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
    (manifest.data.source, manifest.data.shift_pixels) = (DataSource::Idx, 0);
    manifest.optimizer.batch_sequences = CANARIES as u32 / 2;
    manifest.optimizer.weight_decay = 0.0;
    manifest
}

/// The lower bound of ε, with 95 % confidence, from an attack on private training with so much of the noise that it should have.
fn audited(noise_share: f64) -> f64 {
    let mut coins = stream(11, "canaries", &[]);
    let canaries: Vec<(bool, u32)> =
        (0..CANARIES).map(|_| (coins.random(), u32::from(coins.random::<bool>()))).collect();
    let image = |(pixel, (is_in, label)): (usize, &(bool, u32))| {
        let mut pixels = vec![0; CANARIES];
        pixels[pixel] = if *is_in { 255 } else { 0 };
        Image { pixels, label: *label }
    };
    let images: Vec<Image> = canaries.iter().enumerate().map(image).collect();
    let corpus = Corpus::of_images(ImageSet::of(SHAPE, &images));
    let mut engine = Engine::new(&manifest(), corpus, [1; 32], Device::Cpu).expect("an engine");
    let weights = engine.layout().tensor("dense.0.weight").expect("a linear model").range();
    let steps = PrivateSteps { clip: 0.3, noise: noise_share * mechanism().noise };
    engine.begin_private(steps, SecretKey::new([5; 32])).expect("images");
    // How much more the canary's own weights speak for its class.
    let opinions = |engine: &Engine| -> Vec<f64> {
        let parameters = engine.parameters().expect("parameters");
        let (first, second) = parameters[weights.clone()].split_at(CANARIES);
        let differences = second.iter().zip(first).map(|(second, first)| f64::from(second - first));
        differences.zip(&canaries).map(|(more, (_, label))| if *label == 1 { more } else { -more }).collect()
    };
    let before = opinions(&engine);
    engine.permit(STEPS);
    for _ in 0..STEPS {
        engine.step_at_rate(0.01).expect("a step");
    }
    let gains = opinions(&engine).into_iter().zip(before).map(|(after, before)| after - before);
    let mut sorted: Vec<(f64, bool)> = gains.zip(&canaries).map(|(gain, (is_in, _))| (gain, *is_in)).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let out = sorted[..GUESSES / 2].iter().filter(|(_, is_in)| !is_in).count();
    let within = sorted[CANARIES - GUESSES / 2..].iter().filter(|(_, is_in)| *is_in).count();
    lower_bound(out + within)
}

/// The largest ε below which so many right guesses would come about in less than 5 of 100 runs.
fn lower_bound(right: usize) -> f64 {
    let hundredths = (0..1000).take_while(|hundredths| chance(right, f64::from(*hundredths) / 100.0) < 0.05).last();
    hundredths.map_or(0.0, |hundredths| f64::from(hundredths) / 100.0)
}

/// With which probability at least so many guesses are right at most, under (ε, δ): theorem 5.2 of the paper.
fn chance(right: usize, epsilon: f64) -> f64 {
    let rate = 1.0 / (1.0 + (-epsilon).exp());
    let ln_factorial = |number: usize| (1..=number).map(|factor| (factor as f64).ln()).sum::<f64>();
    let probability = |count: usize| {
        let ln_ways = ln_factorial(GUESSES) - ln_factorial(count) - ln_factorial(GUESSES - count);
        (ln_ways + count as f64 * rate.ln() + (GUESSES - count) as f64 * (1.0 - rate).ln()).exp()
    };
    let probabilities: Vec<f64> = (0..=GUESSES).map(probability).collect();
    let at_least: f64 = probabilities[right..].iter().sum();
    let (mut sum, mut steepest) = (0.0, 0.0_f64);
    for below in 1..=right {
        sum += probabilities[right - below];
        steepest = steepest.max(sum / below as f64);
    }
    at_least + 2.0 * CANARIES as f64 * BUDGET.delta * steepest
}

#[test]
fn an_attack_stays_below_the_promise_and_finds_noise_that_is_missing_or_too_small() {
    let (with_noise, with_a_tenth, without) = (audited(1.0), audited(0.1), audited(0.0));
    println!("promised {}, audited {with_noise}; a tenth of the noise {with_a_tenth}; none {without}", BUDGET.epsilon);
    assert!(with_noise < BUDGET.epsilon, "{with_noise}");
    assert!(with_a_tenth > BUDGET.epsilon, "{with_a_tenth}");
    assert!(without > 2.0 * BUDGET.epsilon, "{without}");
}
