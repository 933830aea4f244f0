//! What a correction costs a step boundary on the CPU, with all of θ copied around it and with a sample of it, in turns.
//!
//! Local progress needs what the correction changed in 16,384 values. A copy of all of θ for that reads and writes the
//! model once more. Medians of the rounds are printed, with the ratio within each round.

use std::hint::black_box;
use std::time::Instant;

use murmur_protocol::Correction;
use murmur_protocol::bulk::{BLOCK, Codes};
use murmur_training::{LocalProgress, median};

use crate::Failure;

/// Of both ways.
const ROUNDS: usize = 15;

pub(crate) fn measure() -> Result<(), Failure> {
    println!("parameters   whole copy        sample      ratio (medians of {ROUNDS} rounds in turn)");
    for parameters in [10_000_000_usize, 100_000_000] {
        let mut model: Vec<f32> = (0..parameters).map(|index| (index % 1013) as f32 * 1e-3).collect();
        let codes = (0..parameters).map(|index| (index % 5) as i8 - 2).collect();
        let correction = Correction::new(Codes::Narrow(codes), vec![1e-6; parameters.div_ceil(BLOCK)]);
        let mut progress = LocalProgress::new(&model);
        let mut rounds: Vec<[f64; 2]> = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let before = black_box(model.clone());
            correction.add_to(&mut model);
            let sample = progress.sample(&before);
            progress.leave_out(&sample, &model);
            drop(before);
            let whole = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let sample = progress.sample(&model);
            correction.add_to(&mut model);
            progress.leave_out(&sample, &model);
            rounds.push([whole, begin.elapsed().as_secs_f64()]);
        }
        let middle = |values: &mut dyn Iterator<Item = f64>| median(values).expect("there were rounds");
        let [whole, sampled] = [0, 1].map(|way| middle(&mut rounds.iter().map(|round| round[way])));
        let ratio = middle(&mut rounds.iter().map(|round| round[0] / round[1]));
        println!("{parameters:>10} {:>9.2} ms {:>10.2} ms {ratio:>10.2}", 1e3 * whole, 1e3 * sampled);
    }
    Ok(())
}
