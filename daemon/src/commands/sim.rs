//! `murmur sim`: swarms on a virtual clock.

mod compare;
mod determinism;
mod interruption;
mod output;
mod progress;
mod run;
mod setting;
mod source;
mod sweep;

use murmur_sim::file::{ScenarioFile, built_ins};

pub(super) use interruption::on_interruption;
pub(super) use output::Output;
pub(super) use progress::Progress;

use crate::cli::SimCommand;
use crate::console::{print_fitted, print_line};
use crate::failure::{ExitCode, Failure};

pub(super) fn run(command: SimCommand) -> anyhow::Result<()> {
    match command {
        SimCommand::Run(options) => run::run(&options),
        SimCommand::Replay(options) => run::replay(&options),
        SimCommand::Compare(options) => compare::run(&options),
        SimCommand::CheckDeterminism(options) => determinism::run(&options),
        SimCommand::List => list(),
        SimCommand::Show(options) => {
            print_line(source::built_in_named(&options.scenario)?.text.trim_end());
            Ok(())
        }
    }
}

fn list() -> anyhow::Result<()> {
    for scenario in built_ins() {
        let file: ScenarioFile = crate::settings::parse(scenario.name.as_ref(), scenario.text, setting::EXAMPLE)?;
        print_fitted(&format!("{:<12} {}", scenario.name, file.scenario.about), 13);
    }
    Ok(())
}

/// How a command ends that Ctrl-C has ended.
pub(super) fn interrupted(message: String) -> Failure {
    Failure::new(ExitCode::Interrupted, message)
}
