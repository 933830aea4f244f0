//! Who knows whom in swarms of a hundred to ten thousand: the overlay is a random graph whoever bootstrapped whom, its
//! cost does not depend on its size, and what dies is forgotten.

mod overlay;

use std::time::Duration;

use overlay::{Overlay, second_eigenvalue, spread};

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
    let mut handling = overlay.handling.clone();
    handling.sort_unstable();
    format!(
        "{} nodes at {:?}: degrees {:?}, views {:?}, in-degrees {:?}, second eigenvalue {:.3}; a minute: {:.0} bytes, {:.2} messages, {:.2} dials, {:.2} wakes, at most {} bytes; handling {} ns median, {} ns 99 %",
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
        handling.get(handling.len() / 2).unwrap_or(&0),
        handling.get(handling.len() * 99 / 100).unwrap_or(&0),
    )
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let sizes: Vec<usize> = std::env::var("SIZES")
        .map_or(vec![100, 1000], |text| text.split(',').map(|size| size.parse().expect("a number")).collect());
    let rounds: u32 = std::env::var("ROUNDS").map_or(6, |text| text.parse().expect("a number"));
    for count in sizes {
        for (name, chain) in [("star", false), ("chain", true)] {
            let mut overlay = Overlay::of(count, 1, |index| if chain { index - 1 } else { 0 });
            for _ in 0..rounds {
                overlay.clear_traffic();
                overlay.run_for(minutes(5));
                println!("{name} {}", describe(&overlay, minutes(5)));
            }
        }
    }
}
