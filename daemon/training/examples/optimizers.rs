//! What each optimizer costs by the clock: whole training steps of gpt-s (0.82M parameters) and gpt-m (10.8M), in turns,
//! medians over rounds. `cargo run --release -p murmur-training --example optimizers -- [THREADS]`

use candle_core::Device;
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{OptimizerKind, TransformerModel};
use murmur_training::{Corpus, Engine, median};

/// As in the daemon: a step allocates and frees the same large buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;

/// Layers, width, heads, feed-forward and context of the models of `configs/bench`.
const SMALL: [u32; 5] = [4, 128, 4, 320, 128];
const MEDIUM: [u32; 5] = [6, 384, 6, 1024, 256];

/// (name, model, sequences in a batch, steps in a round).
const RUNS: [(&str, [u32; 5], u32, usize); 3] = [
    ("gpt-s, 512 tokens a step", SMALL, 4, 8),
    ("gpt-s, 2,048 tokens a step", SMALL, 16, 4),
    ("gpt-m, 2,048 tokens a step", MEDIUM, 8, 1),
];

fn main() {
    let threads = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1);
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().expect("the first pool");
    for (name, [layers, width, heads, feed_forward, context], sequences, steps) in RUNS {
        let model = TransformerModel { layers, width, heads, feed_forward, context, ..TransformerModel::default() };
        let mut manifest = RunManifest { model: model.into(), ..RunManifest::default() };
        manifest.optimizer.batch_sequences = sequences;
        let kinds = [(OptimizerKind::AdamW, false), (OptimizerKind::AdamW, true), (OptimizerKind::Muon, true)];
        let engine = |(kind, match_batch)| {
            (manifest.optimizer.kind, manifest.optimizer.match_batch) = (kind, match_batch);
            Engine::new(&manifest, Corpus::grammar(), [0; 32], Device::Cpu).expect("memory for the model")
        };
        let mut engines = kinds.map(engine);
        let mut whole = vec![Vec::new(); kinds.len()];
        let mut optimizer = whole.clone();
        for round in 0..=ROUNDS {
            for (index, engine) in engines.iter_mut().enumerate() {
                let timed: Vec<_> = (0..steps).map(|step| engine.timed_step(step as f64).expect("a step")).collect();
                if round > 0 {
                    let mean = |part: f64| 1e3 * part / steps as f64;
                    whole[index].push(mean(timed.iter().map(|step| step.total().as_secs_f64()).sum()));
                    optimizer[index].push(mean(timed.iter().map(|step| step.optimizer.as_secs_f64()).sum()));
                }
            }
        }
        println!("{name}");
        for (index, (kind, match_batch)) in kinds.iter().enumerate() {
            let ratios = whole[index].iter().zip(&whole[0]).map(|(ours, first)| ours / first).collect::<Vec<f64>>();
            let middle = |values: Vec<f64>| median(values).expect("several rounds");
            println!(
                "  {kind:?}{}: {:.2} ms a step, {:.2} of them the optimizer; {:.3} of the first",
                if *match_batch { ", matched" } else { "" },
                middle(whole[index].clone()),
                middle(optimizer[index].clone()),
                middle(ratios),
            );
        }
    }
}
