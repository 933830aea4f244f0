//! Records what the daemon costs and reaches on hosts with real links: prints one JSON object a figure.
//!
//! usage: `cargo run -p murmur-tests --example figures -- FIGURE MURMUR` as root on Linux with iproute2; FIGURE is `link`,
//! `idle`, `join`, `rate`, `slow` or `crowd`, MURMUR the program to measure.

mod crowd;
mod idle;
mod join;
mod link;
mod rate;
mod slow;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [figure, murmur] = arguments.as_slice() else {
        eprintln!("usage: figures link|idle|join|rate|slow|crowd MURMUR");
        return ExitCode::from(2);
    };
    let figures = match figure.as_str() {
        "link" => link::measure(murmur),
        "idle" => idle::measure(murmur),
        "crowd" => crowd::measure(murmur),
        "join" => join::measure(murmur),
        "rate" => rate::measure(murmur),
        "slow" => slow::measure(murmur),
        _ => {
            eprintln!("error: no figure is called {figure}");
            return ExitCode::from(2);
        }
    };
    match figures {
        Some(figures) => {
            println!("{figures:#}");
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}
