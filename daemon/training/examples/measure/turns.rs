//! Time of steps of several ways, in turns: what else the machine does weighs on all of them.
//!
//! The time that processors spent is the second witness: the clock on the wall counts what others took.

use std::time::Instant;

use murmur_training::{Engine, median};

use crate::Failure;
use crate::process::processor_seconds;
use crate::way::{Way, corpus, sized};

const ROUNDS: usize = 9;

/// Of the first way: processor time is told in hundredths of a second.
const ROUND_SECONDS: f64 = 0.5;

/// Milliseconds of one of some steps: by the clock, of processors, and of the optimizer by the clock (0 of private steps).
pub(crate) fn spent(engine: &mut Engine, steps: usize) -> Result<[f64; 3], Failure> {
    let (begin, processors, mut optimizer) = (Instant::now(), processor_seconds(), 0.0);
    for _ in 0..steps {
        match engine.permits() {
            Some(_) => drop(engine.step(10.0)?),
            None => optimizer += engine.timed_step(10.0)?.optimizer.as_secs_f64(),
        }
    }
    let seconds = [begin.elapsed().as_secs_f64(), processor_seconds() - processors, optimizer];
    Ok(seconds.map(|seconds| 1e3 * seconds / steps as f64))
}

pub(crate) fn compare(size: &str, ways: &[&str]) -> Result<(), Failure> {
    let run = sized(size)?;
    let ways = ways.iter().map(|way| Way::of(way, &run)).collect::<Result<Vec<Way>, _>>()?;
    let engine = |way: &Way| way.engine(corpus(&way.manifest)?, None);
    let mut engines = ways.iter().map(engine).collect::<Result<Vec<Engine>, _>>()?;
    // These steps make buffers, too.
    for engine in &mut engines {
        spent(engine, 1)?;
    }
    let steps = (1e3 * ROUND_SECONDS / spent(&mut engines[0], 1)?[0]).ceil() as usize;
    let mut rounds = vec![Vec::new(); engines.len()];
    for _ in 0..ROUNDS {
        for (engine, rounds) in engines.iter_mut().zip(&mut rounds) {
            rounds.push(spent(engine, steps)?);
        }
    }
    for ((way, engine), of_way) in ways.iter().zip(&engines).zip(&rounds) {
        let [wall, processors, optimizer] = [0, 1, 2].map(|which| middle(of_way.iter().map(|round| round[which])));
        println!(
            "{size} {}: {wall:.1} ms a step, {optimizer:.1} of them the optimizer; {processors:.1} ms of processors",
            way.name
        );
        let pairs = || of_way.iter().zip(&rounds[0]);
        let [wall, processors] = [0, 1].map(|which| middle(pairs().map(|(own, first)| own[which] / first[which])));
        let more = middle(pairs().map(|(own, first)| own[1] - first[1]));
        let nanoseconds = 1e6 * more / engine.layout().parameters() as f64;
        println!(
            "  of the first {wall:.3} by the clock, {processors:.3} of processors ({nanoseconds:+.2} ns a parameter)"
        );
    }
    Ok(())
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(values).expect("there were rounds")
}
