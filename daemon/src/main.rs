//! The `murmur` command.

use std::process::ExitCode;

use clap::Parser;
use murmur::cli::Cli;

/// Training allocates and frees the same large buffers at every step; the system's allocator gives them back to the
/// kernel each time, which costs up to half of the speed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_new(&cli.log).unwrap_or_else(|error| {
        eprintln!("warning: --log {}: {error}; using warn", cli.log);
        tracing_subscriber::EnvFilter::new("warn")
    });
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match murmur::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(murmur::failure::report(&error)),
    }
}
