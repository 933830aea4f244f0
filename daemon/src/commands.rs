//! One file per command: from options to work.

mod bench;
mod block;
mod checkpoints;
mod chosen;
mod client;
mod compare;
mod doctor;
mod finish;
mod id;
mod init;
mod join;
mod journals;
mod lend;
mod list;
mod logs;
mod manual;
mod membership;
mod node;
mod remove;
mod replay;
mod report;
mod service;
mod sim;
mod start;
mod status;
mod stop;
mod tables;
mod ticket;
mod watch;

use crate::cli::{Command, JoinOptions, StartOptions};
use crate::console::{output, settle};
use crate::process::service_manager::ServiceManager;
use crate::process::{memory, signal};
pub use report::page_of as report_page;

/// Carries out a command.
///
/// # Errors
/// What went wrong, with its remedy and exit code where it is a [`Failure`](crate::failure::Failure).
pub fn run(command: Command) -> anyhow::Result<()> {
    if !matches!(command, Command::Start(_) | Command::Join(_)) {
        memory::set_huge_pages(true); // a node chooses once it knows its model
    }
    if matches!(command, Command::Start(_) | Command::Join(_) | Command::Local(_) | Command::Lend(_)) {
        output::go_on_without_output("training");
    }
    if let Command::Start(StartOptions { node, .. }) | Command::Join(JoinOptions { node, .. }) = &command {
        if node.daemon.in_background {
            crate::process::background::begin()?;
        } else if node.daemon.detach {
            let from_input =
                matches!(&command, Command::Join(JoinOptions { ticket: Some(ticket), .. }) if ticket == "-");
            let ticket = from_input.then(join::ticket_from_input).transpose()?;
            return crate::process::background::launch(ticket.as_deref());
        }
    }
    if matches!(command, Command::Start(_) | Command::Join(_) | Command::Local(_) | Command::Lend(_)) {
        ServiceManager::from_environment().into_iter().for_each(ServiceManager::wait_until_ready);
        signal::end_before_the_beginning();
        signal::tell_of_shortened_files();
    }
    let done = match command {
        Command::Init(options) => init::run(&options),
        Command::Start(options) => start::run(options),
        Command::Join(options) => join::run(options),
        Command::Local(options) => crate::local::run(options),
        Command::Lend(options) => lend::run(&options),
        Command::Sim(command) => sim::run(command),
        Command::Compare(options) => compare::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(mut options) => bench::run(&mut options),
        Command::Status(options) => status::run(&options),
        Command::Watch(options) => watch::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Finish(options) => finish::run(&options),
        Command::Block(options) => block::block(&options),
        Command::Unblock(options) => block::unblock(&options),
        Command::Id(options) => id::run(&options),
        Command::Ticket(options) => ticket::run(&options),
        Command::Stop(options) => stop::run(&options),
        Command::Logs(options) => logs::run(&options),
        Command::List(options) => list::run(&options),
        Command::Remove(options) => remove::run(&options),
        Command::Sample(mut options) => checkpoints::sample(&mut options),
        Command::Eval(mut options) => checkpoints::evaluate(&mut options),
        Command::Predict(mut options) => tables::predict(&mut options),
        Command::Statistics(mut options) => tables::statistics(&mut options),
        Command::Export(mut options) => checkpoints::export(&mut options),
        Command::Service(options) => service::run(&options),
        Command::Completions(options) => manual::completions(&options),
        Command::Man(options) => Ok(manual::pages(&options)?),
    };
    // Only then it is known whether all could be written.
    settle();
    done.and_then(|()| output::lost_output().map_or(Ok(()), |lost| Err(lost.into())))
}
