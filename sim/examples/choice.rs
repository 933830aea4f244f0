//! Whether members that choose how they average (`synchronous.auto`) end where the better fixed choice does: gossip, a ring and
//! the choice between them, in the simulator, with the daemon's engine, for the same time.
//! `RAYON_NUM_THREADS=1 cargo run --release -p murmur-sim --example choice -- --seeds 3 --data FILE`
//!
//! The loss of each is the one at the end of the time that a node of speed 1 takes for its steps alone; the learning rate stays
//! where it is after its warm-up, so that nothing depends on how many steps a method comes to.

use std::path::PathBuf;

use clap::Parser;
use murmur_protocol::manifest::{OptimizerSpec, ScheduleSpec, TransformerModel};
use murmur_sim::compare::{Counted, Fault, Links, Method, Outcome, Setting};
use murmur_sim::{Sharing, Text, TransformerSpec};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The study of the choice.
#[derive(Parser)]
struct Arguments {
    /// Steps that a node of speed 1 has time for.
    #[arg(long, default_value_t = 400)]
    steps: u64,
    /// Seeds, from the first one on.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// A text to train on; without one the built-in stories.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Only this case, by its name.
    #[arg(long)]
    case: Option<String>,
}

/// What the methods are compared in.
struct Case {
    name: &'static str,
    links: &'static str,
    speeds: &'static [f64],
    fault: Fault,
    sharing: Sharing,
    learning_rate: f64,
}

const ALIKE: Case = Case {
    name: "lan",
    links: "lan",
    speeds: &[1.0],
    fault: Fault::None,
    sharing: Sharing::Whole,
    learning_rate: 8e-3,
};

const CASES: [Case; 8] = [
    ALIKE,
    Case { name: "home", links: "home", ..ALIKE },
    Case { name: "world", links: "world", ..ALIKE },
    Case { name: "unlike speeds", speeds: &[1.0, 1.0, 0.5, 0.25], ..ALIKE },
    Case { name: "straggler", fault: Fault::Straggler, ..ALIKE },
    Case { name: "kill, home", links: "home", fault: Fault::Kill, ..ALIKE },
    Case { name: "unlike data", sharing: Sharing::ByNode, ..ALIKE },
    Case { name: "high rate", learning_rate: 2.5e-2, ..ALIKE },
];

fn setting(case: &Case, method: &str, seed: u64, arguments: &Arguments, text: &Text) -> Setting {
    let steps = arguments.steps;
    Setting {
        method: Method::named(method).expect("a method"),
        trainer: TransformerSpec {
            model: TransformerModel {
                layers: 2,
                width: 64,
                heads: 4,
                feed_forward: 128,
                context: 64,
                ..Default::default()
            },
            optimizer: OptimizerSpec {
                batch_sequences: 4,
                learning_rate: case.learning_rate,
                ..OptimizerSpec::default()
            },
            schedule: ScheduleSpec {
                total_steps: 4 * steps,
                warmup_steps: steps / 10,
                final_fraction: 1.0,
                ..ScheduleSpec::default()
            },
            text: text.clone(),
            sharing: case.sharing,
            validation_sequences: 64,
            ..TransformerSpec::default()
        },
        nodes: 8,
        steps,
        step_time: std::time::Duration::from_secs(1),
        speeds: case.speeds.to_vec(),
        links: Links::named(case.links).expect("links"),
        fault: case.fault,
        seed,
        sabotage: None,
    }
}

/// The loss after so many seconds, between two points in proportion.
fn loss_at(outcome: &Outcome, seconds: f64) -> f64 {
    let after = outcome.points.iter().position(|point| point.seconds >= seconds);
    let Some(after) = after else { return outcome.points.last().map_or(f64::NAN, |point| point.loss) };
    let (last, next) = (&outcome.points[after.saturating_sub(1)], &outcome.points[after]);
    let share = (seconds - last.seconds) / (next.seconds - last.seconds).max(1e-9);
    last.loss + share * (next.loss - last.loss)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // candle's own threads spin while they wait. SAFETY: the first statement; nothing else reads the environment.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
    let arguments = Arguments::parse();
    let text = arguments.data.as_deref().map_or(Ok(Text::Grammar), Text::read)?;
    println!("| | seed | gossip | ring | chosen | against the better | seconds all at once | changes |");
    println!("|---|---|---|---|---|---|---|---|");
    for case in CASES.iter().filter(|case| arguments.case.as_ref().is_none_or(|name| name == case.name)) {
        for seed in arguments.first..arguments.first + arguments.seeds {
            let mut counted = Counted::default();
            let losses = ["gossip", "ring", "auto"].map(|method| {
                let setting = setting(case, method, seed, &arguments, &text);
                let outcome = setting.run(&|| false).expect("nobody interrupts it");
                assert_eq!(outcome.violations, Vec::<String>::new(), "{}, {method}, seed {seed}", case.name);
                counted = outcome.counted;
                loss_at(&outcome, arguments.steps as f64)
            });
            let [gossip, ring, chosen] = losses;
            let difference = 100.0 * (chosen / gossip.min(ring) - 1.0);
            let (name, Counted { together, changes, .. }) = (case.name, counted);
            println!(
                "| {name} | {seed} | {gossip:.4} | {ring:.4} | {chosen:.4} | {difference:+.1} % | {together:.0} | {changes:.1} |"
            );
        }
    }
    Ok(())
}
