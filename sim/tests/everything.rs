//! Seeds of the scenario of everything: swarms of 16 to 64 nodes with every kind of fault, all drawn from the seed. First
//! faults, in which every safety check must hold; then calm, which must bring everybody back together.

use std::sync::atomic::AtomicBool;

use murmur_sim::file::{ScenarioFile, built_in};
use murmur_sim::runner::{Trace, run_seeds};

/// The command line runs thousands: `murmur sim run everything --seeds 0..20000`.
const SEEDS: u64 = 400;

#[test]
fn the_first_seeds_hold() {
    let text = built_in("everything").expect("a built-in scenario").text;
    let file: ScenarioFile = toml::from_str(text).expect("it parses");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let reports = run_seeds(&file, 0..SEEDS, jobs, Trace::Off, &AtomicBool::new(false), |_| ());
    assert_eq!(reports.len() as u64, SEEDS);
    let failures: Vec<String> = reports
        .iter()
        .filter_map(|report| {
            let found = report.verdicts.iter().find_map(|verdict| verdict.finding.as_ref())?;
            Some(format!("{found}\n    replay: murmur sim replay everything --seed {}", report.seed))
        })
        .collect();
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n"));
}
