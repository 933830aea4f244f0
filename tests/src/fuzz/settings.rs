//! Files that people write: of a run, of a node, of a scenario.

use std::path::Path;

use murmur::settings::{NodeSettings, load_node_settings, load_run_manifest};
use murmur_sim::file::{MEMORY_BYTES_MAX, ScenarioFile};

use super::{configs, folder};

/// Nodes of a scenario that is drawn: more only take longer.
const NODES_MAX: usize = 1_000;

pub(super) fn read(bytes: &[u8]) -> bool {
    let path = folder().join("settings.toml");
    std::fs::write(&path, bytes).expect("written");
    let run = load_run_manifest(&path);
    if let Ok(manifest) = &run {
        assert_eq!(manifest.validate(), Ok(()));
    }
    let node = load_node_settings(&path);
    if let Ok(settings) = &node {
        check_node(settings, &path);
    }
    let scenario = toml::from_str::<ScenarioFile>(&String::from_utf8_lossy(bytes)).ok();
    let scenario = scenario.filter(|scenario| scenario.validate().is_ok());
    if let Some(scenario) = &scenario
        && scenario.memory_bytes() <= MEMORY_BYTES_MAX
        && scenario.swarm.nodes.to <= NODES_MAX
    {
        scenario.draw(7);
    }
    run.is_ok() || node.is_ok() || scenario.is_some()
}

/// What was read can be used, and written and read again.
fn check_node(settings: &NodeSettings, path: &Path) {
    assert!(settings.validate().is_ok());
    settings.limits.caps();
    settings.training.options();
    settings.network.admission();
    std::fs::write(path, toml::to_string(settings).expect("settings are TOML")).expect("written");
    load_node_settings(path).expect("what was read is read again");
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    ["runs", "nodes", "sim"].into_iter().flat_map(configs).collect()
}
