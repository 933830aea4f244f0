//! The `murmur` command.

use std::process::ExitCode;

use murmur::console::{LogLine, has_colours, settle};
use murmur::process::background::IN_BACKGROUND;
use tracing_subscriber::EnvFilter;

/// Training allocates and frees the same large buffers at every step; the system's allocator gives them back to the
/// kernel each time, which costs up to half of the speed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// candle keeps threads of its own for small operations, and they spin while they wait: with more daemons than cores
/// each step took four times as long (BENCHMARKS.md). The operations that matter run on rayon's pool, which sleeps.
const CANDLE_THREADS: &str = "CANDLE_NUM_THREADS";

fn main() -> ExitCode {
    murmur::process::memory::set_huge_pages(false); // before the first ones are filled
    if std::env::var_os(CANDLE_THREADS).is_none() {
        // SAFETY: there is no other thread yet that could be reading the environment.
        unsafe { std::env::set_var(CANDLE_THREADS, "1") };
    }
    for empty in murmur::environment::empty_among(std::env::vars_os()) {
        // SAFETY: as above.
        unsafe { std::env::remove_var(empty) };
    }
    let cli = murmur::cli::parse();
    // What goes on in the background writes to a file soon.
    let is_coloured = has_colours() && std::env::var_os(IN_BACKGROUND).is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter(&cli.log)).with_ansi(is_coloured);
    log.with_writer(LogLine::default).init();
    murmur::environment::tell_unknown_variables(&murmur::cli::command());
    let code = match murmur::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(murmur::failure::report(&error)),
    };
    settle();
    code
}

/// What is logged. Never the HTTP library's own records: at debug and trace they hold addresses and headers, and so keys.
fn filter(asked: &str) -> EnvFilter {
    let is_own = |part: &&str| !part.trim().trim_start_matches('[').starts_with("ureq");
    let asked: Vec<&str> = asked.split(',').filter(is_own).collect();
    let silent = ["ureq=off", "ureq_proto=off"].map(|directive| directive.parse().expect("a directive"));
    let filter = silent.into_iter().fold(EnvFilter::new(asked.join(",")), EnvFilter::add_directive);
    // Two nodes that dial each other at once are a fault to this library, and none to people.
    let names_tls = asked.iter().any(|directive| directive.contains("rustls"));
    if names_tls { filter } else { filter.add_directive("rustls=error".parse().expect("a directive")) }
}
