//! One file per command: from options to work.

mod bench;
mod checkpoints;
mod client;
mod doctor;
mod id;
mod init;
mod join;
mod membership;
mod node;
mod sim;
mod start;
mod status;
mod ticket;

use crate::cli::Command;
use crate::console::output;
use crate::memory;

/// Carries out a command.
///
/// # Errors
/// What went wrong, with its remedy and exit code where it is a [`Failure`](crate::failure::Failure).
pub fn run(command: Command) -> anyhow::Result<()> {
    if !matches!(command, Command::Start(_) | Command::Join(_)) {
        memory::set_huge_pages(true); // a node chooses once it knows its model
    }
    if matches!(command, Command::Start(_) | Command::Join(_) | Command::Local(_)) {
        output::go_on_without_output();
    }
    let done = match command {
        Command::Init(options) => init::run(&options),
        Command::Start(options) => start::run(options),
        Command::Join(options) => join::run(options),
        Command::Local(options) => crate::local::run(options),
        Command::Sim(command) => sim::run(command),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Id(options) => id::run(&options),
        Command::Ticket(options) => ticket::run(&options),
        Command::Sample(options) => checkpoints::sample(&options),
        Command::Eval(options) => checkpoints::evaluate(&options),
        Command::Export(options) => checkpoints::export(&options),
    };
    done.and_then(|()| output::lost_output().map_or(Ok(()), |lost| Err(lost.into())))
}
