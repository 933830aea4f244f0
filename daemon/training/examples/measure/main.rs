//! What training costs on the CPU: time of steps, memory, losses. `measure` alone tells how it is called.
//!
//! On two threads, or on as many as `RAYON_NUM_THREADS` says.

mod boundary;
mod images;
mod losses;
mod process;
mod turns;
mod way;

use murmur_training::ops::Kernels;
use murmur_training::{MemoryEstimate, median, parameter_count};
use way::{Way, corpus, sized};

/// The daemon's allocator: glibc's hands large blocks back to the system after every operation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
measure turns SIZE WAY [WAY…]               time of steps of several ways, in turns
measure alone SIZE WAY [STEPS]              time of steps and memory of a process that trains one way, ten steps
measure losses TEXT STEPS SEEDS WAY [WAY…]  how far losses of gpt-s are apart
measure images                              images a second, for scripts/bench_pytorch_images.py
measure boundary                            what a correction costs at a step boundary
SIZE: gpt-s, gpt-m, 35M, 100M, 1B, mlp or cnn; also SIZE:SEQUENCES or SIZE:SEQUENCESxCONTEXT
WAY: words joined by `+` of plain, muon, matched, moments-8, bf16, recompute, adapters, base-16, base-8, pipeline, private";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let threads = if std::env::var_os("RAYON_NUM_THREADS").is_some() { 0 } else { 2 };
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    eprintln!("{}", process::processor());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["turns", size, ways @ ..] if !ways.is_empty() => turns::compare(size, ways),
        ["alone", size, way] => alone(size, way, 10),
        ["alone", size, way, steps] => alone(size, way, steps.parse()?),
        ["losses", text, steps, seeds, ways @ ..] if !ways.is_empty() => {
            losses::compare(text.as_ref(), steps.parse()?, seeds.parse()?, ways)
        }
        ["images"] => images::measure(),
        ["boundary"] => boundary::measure(),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2)
        }
    }
}

fn alone(size: &str, way: &str, steps: usize) -> Result<(), Failure> {
    let way = Way::of(way, &sized(size)?)?;
    let before = process::peak();
    let mut engine = way.engine(corpus(&way.manifest)?, None)?;
    let mut measured = Vec::new();
    // The first step makes buffers.
    for step in 0..=steps {
        let spent = turns::spent(&mut engine, 1)?;
        if step > 0 {
            measured.push(spent);
        }
    }
    let [wall, processors] = [0, 1].map(|which| median(measured.iter().map(|spent| spent[which])).unwrap_or_default());
    let (count, peak) = (parameter_count(&way.manifest.model), process::peak());
    let estimate = MemoryEstimate::of(&way.manifest, &way.options, Kernels::Fused, rayon::current_num_threads());
    println!("{size} {}: {wall:.1} ms a step, {processors:.0} ms of processors; {count} parameters", way.name);
    println!(
        "at most {} MB, {} before, {:.2} bytes a parameter; {} MB estimated for one device ({estimate})",
        peak / 1_000_000,
        before / 1_000_000,
        peak as f64 / count as f64,
        (estimate.on_device() + estimate.process) / 1_000_000,
    );
    Ok(())
}
