//! Besieges a swarm of real daemons with random faults: `cargo run -p murmur-tests --example siege -- MINUTES SEED [DAEMONS]`,
//! as root on Linux. The seed repeats the faults; what must hold, and how it is looked at, is in `tests/src/siege.rs`.

use std::time::Duration;

use murmur_tests::siege::besiege;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let minutes: Option<f64> = arguments.next().and_then(|minutes| minutes.parse().ok());
    let seed: Option<u64> = arguments.next().and_then(|seed| seed.parse().ok());
    let daemons = arguments.next().map_or(Some(5), |daemons| daemons.parse().ok());
    let (Some(minutes), Some(seed), Some(daemons @ 2..)) = (minutes, seed, daemons) else {
        eprintln!("usage: siege MINUTES SEED [DAEMONS]");
        std::process::exit(2);
    };
    let program = std::env::var("MURMUR").unwrap_or_else(|_| "target/release/murmur".to_owned());
    match besiege(&program, daemons, Duration::from_secs_f64(60.0 * minutes), seed) {
        Some(faults) => println!("it holds: {faults} faults"),
        None => std::process::exit(1),
    }
}
