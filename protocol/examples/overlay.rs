//! How a swarm's overlay settles, in figures: a star of bootstraps and a chain of them, at three sizes. Takes minutes.
//! `cargo run --release -p murmur-protocol --example overlay`

#[path = "../tests/membership/overlay.rs"]
#[allow(dead_code, unreachable_pub)]
mod overlay;

use std::time::Duration;

use overlay::{Overlay, second_eigenvalue, spread};

fn main() {
    for count in [100, 1000, 10_000] {
        for (name, is_chain) in [("star", false), ("chain", true)] {
            let mut overlay = Overlay::of(count, 1, |index| if is_chain { index - 1 } else { 0 });
            for _ in 0..12 {
                overlay.clear_traffic();
                overlay.run_for(minutes(5));
                println!("{name} {}", describe(&overlay, minutes(5)));
            }
        }
    }
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// Figures of a settled swarm, for people.
fn describe(overlay: &Overlay, measured: Duration) -> String {
    let living: Vec<usize> = overlay.living().collect();
    let edges: Vec<Vec<usize>> = living.iter().map(|index| overlay.connected(*index)).collect();
    let known: Vec<Vec<usize>> = living.iter().map(|index| overlay.known(*index)).collect();
    let mut in_degrees = vec![0; living.len()];
    known.iter().flatten().for_each(|index| in_degrees[*index] += 1);
    let per_minute = |total: u64| total as f64 / living.len() as f64 / (measured.as_secs_f64() / 60.0);
    format!(
        "{} nodes at {:?}: degrees {:?}, views {:?}, in-degrees {:?}, second eigenvalue {:.3}; \
         a minute: {:.0} bytes, {:.2} messages, {:.2} dials, {:.2} wakes, at most {} bytes",
        living.len(),
        overlay.now,
        spread(edges.iter().map(Vec::len).collect()),
        spread(known.iter().map(Vec::len).collect()),
        spread(in_degrees),
        second_eigenvalue(&edges),
        per_minute(overlay.traffic.iter().map(|traffic| traffic.bytes).sum()),
        per_minute(overlay.traffic.iter().map(|traffic| traffic.messages).sum()),
        per_minute(overlay.traffic.iter().map(|traffic| traffic.dials).sum()),
        per_minute(overlay.traffic.iter().map(|traffic| traffic.wakes).sum()),
        overlay.traffic.iter().map(|traffic| traffic.bytes).max().unwrap_or(0) / (measured.as_secs() / 60),
    )
}
