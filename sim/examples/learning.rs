//! The learning study: gossip against exact averaging, DiLoCo and training alone, on one core.
//! `RAYON_NUM_THREADS=1 cargo run --release -p murmur-sim --example learning -- --output learning.jsonl --data FILE`
//!
//! Every finished run is appended to the output as one JSON line; a run that is there already is skipped, so a study
//! that was broken off goes on where it stood. `--table` prints the tables instead of running anything.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use murmur_sim::Text;
use murmur_sim::study::plan::{Question, runs};
use murmur_sim::study::{Outcome, table};

/// As in the daemon: a step allocates and frees the same large buffers, which the system's allocator gives back each
/// time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The learning study.
#[derive(Parser)]
struct Arguments {
    /// Where outcomes are kept, one JSON line each.
    #[arg(long)]
    output: PathBuf,
    /// A text to train on; without one the built-in stories.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Which questions; without this bars, asynchrony and traffic.
    #[arg(long, value_parser = question)]
    question: Vec<Question>,
    /// Print the tables of the output as Markdown.
    #[arg(long)]
    table: bool,
}

fn question(text: &str) -> Result<Question, serde_json::Error> {
    serde_json::from_value(text.into())
}

/// Folder and file: many texts are called input.txt.
fn name_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts[parts.len().saturating_sub(2)..].join("/")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // candle's own threads spin while they wait. SAFETY: the first statement; nothing else reads the environment.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    let arguments = Arguments::parse();
    if arguments.table {
        print!("{}", table::tables(&finished(&arguments.output)?));
        return Ok(());
    }
    let text = arguments.data.as_deref().map_or(Ok(Text::Grammar), Text::read)?;
    let name = arguments.data.as_deref().map_or("grammar".to_owned(), name_of);
    let questions = match &arguments.question[..] {
        [] => &[Question::Bars, Question::Asynchrony, Question::Traffic],
        questions => questions,
    };
    let mut output = std::fs::OpenOptions::new().create(true).append(true).open(&arguments.output)?;
    for setting in questions.iter().flat_map(|question| runs(*question, &name)) {
        // Read anew each time: several processes may share the work, a question each.
        if finished(&arguments.output)?.iter().any(|outcome| outcome.setting == setting) {
            continue;
        }
        let begin = Instant::now();
        let mut outcome = setting.run(&text);
        outcome.seconds = begin.elapsed().as_secs_f64();
        // One write, so that lines of two processes do not mix.
        output.write_all(format!("{}\n", serde_json::to_string(&outcome)?).as_bytes())?;
        let (rate, seed, name) = (setting.learning_rate, setting.seed, table::name(&setting.method));
        let optimizer = table::treatment(&setting.treatment);
        println!(
            "{name}, {optimizer}, learning rate {rate}, seed {seed}: {:.4} in {:.0} s",
            outcome.loss, outcome.seconds
        );
    }
    Ok(())
}

/// The outcomes that are there already.
fn finished(path: &Path) -> Result<Vec<Outcome>, Box<dyn std::error::Error>> {
    let lines = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}
