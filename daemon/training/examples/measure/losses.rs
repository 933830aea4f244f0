//! How far losses of gpt-s over a text are apart between ways to train, in several orders of the text.
//!
//! Where the ways train adapters, their base is gpt-s trained for as many steps on the first half of the text, and they train on
//! the second half.

use std::path::Path;

use murmur_protocol::RunManifest;
use murmur_training::{Corpus, DataPlace, Engine};

use crate::Failure;
use crate::way::{Way, sized};

/// Steps whose mean losses are compared: a batch's own loss differs by more than ways do.
const WINDOW: usize = 50;

pub(crate) fn compare(text: &Path, steps: usize, seeds: u64, ways: &[&str]) -> Result<(), Failure> {
    let (text, folder) = (std::fs::read(text)?, tempfile::tempdir()?);
    let run = |name: &str, bytes: &[u8]| -> Result<(RunManifest, DataPlace), Failure> {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes)?;
        let place = DataPlace::of_files(&[path]);
        Ok((place.complete(sized("gpt-s:4")?)?, place))
    };
    let mut base = None;
    let (mut manifest, mut place) = run("text", &text)?;
    if ways.iter().any(|way| way.contains("adapters")) {
        let (first, second) = text.split_at(text.len() / 2);
        let (of_base, its_place) = run("first", first)?;
        let mut engine = Way::of("plain", &of_base)?.engine(Corpus::open(&of_base, &its_place)?, None)?;
        (0..steps).try_for_each(|step| engine.step(step as f64).map(drop))?;
        println!("base: {:.5} held out", engine.validation_loss()?);
        base = Some(engine.parameters()?);
        (manifest, place) = run("second", second)?;
    }
    // Percent from the first way, seed by seed.
    let mut held_out = vec![Vec::new(); ways.len()];
    for seed in 0..seeds {
        manifest.run.seed = seed;
        println!("seed {seed}");
        let engine = |way: &&str| Way::of(way, &manifest)?.engine(Corpus::open(&manifest, &place)?, base.as_deref());
        let mut engines = ways.iter().map(engine).collect::<Result<Vec<Engine>, _>>()?;
        compare_with("held out, before", ways, &mut engines, |engine| Ok(engine.validation_loss()?))?;
        for first in (0..steps).step_by(WINDOW) {
            let mean = |engine: &mut Engine| {
                let losses = (first..first + WINDOW).map(|step| Ok(engine.step(step as f64)?.loss));
                Ok(losses.sum::<Result<f64, Failure>>()? / WINDOW as f64)
            };
            compare_with(&format!("steps to {}", first + WINDOW), ways, &mut engines, mean)?;
        }
        let apart = compare_with("held out", ways, &mut engines, |engine| Ok(engine.validation_loss()?))?;
        held_out.iter_mut().zip(apart).for_each(|(of_way, apart)| of_way.push(apart));
    }
    for (way, apart) in ways.iter().zip(&held_out).skip(1) {
        let mean = apart.iter().sum::<f64>() / seeds as f64;
        let squares = apart.iter().map(|apart| (apart - mean).powi(2)).sum::<f64>();
        let deviation = (squares / (seeds as f64 - 1.0).max(1.0)).sqrt();
        println!("{way}: {apart:+.3?} %, {mean:+.3} ± {deviation:.3} % of one");
    }
    Ok(())
}

/// Prints the loss of each way, and returns how much higher it is than the first's, in percent.
fn compare_with(
    what: &str,
    ways: &[&str],
    engines: &mut [Engine],
    loss: impl Fn(&mut Engine) -> Result<f64, Failure>,
) -> Result<Vec<f64>, Failure> {
    let losses = engines.iter_mut().map(loss).collect::<Result<Vec<f64>, _>>()?;
    let apart: Vec<f64> = losses.iter().map(|loss| 100.0 * (loss / losses[0] - 1.0)).collect();
    let told =
        ways.iter().zip(&losses).zip(&apart).map(|((way, loss), apart)| format!("{way} {loss:.5} ({apart:+.3} %)"));
    println!("{what}: {}", told.collect::<Vec<_>>().join(", "));
    Ok(apart)
}
