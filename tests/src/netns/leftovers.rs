//! Names of namespaces, which tell whose they are, so that those of a test that was killed can be removed by the next.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::tools::call;

/// What every name begins with.
const PREFIX: &str = "murmur-test";

/// A name that no other process and no other network of this process has: `murmur-test-PID-NUMBER`.
pub(super) fn fresh_name() -> String {
    static NETWORKS: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}-{}-{}", std::process::id(), NETWORKS.fetch_add(1, Ordering::Relaxed))
}

/// Removes the namespaces of processes that are no more. Their daemons have ended with their standard input.
pub(super) fn remove_those_of_the_dead() {
    for namespace in listed().iter().filter(|name| owner(name).is_some_and(is_dead)) {
        let _ = call("ip", &format!("netns del {namespace}"));
    }
}

/// Removes every namespace of one network.
pub(super) fn remove(network: &str) {
    let prefix = format!("{network}-");
    for namespace in listed().iter().filter(|name| name.starts_with(&prefix)) {
        let _ = call("ip", &format!("netns del {namespace}"));
    }
}

/// All namespaces of this machine that have a name.
pub(super) fn listed() -> Vec<String> {
    let lines = call("ip", "netns list").unwrap_or_default();
    lines.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The process that made a namespace of ours.
fn owner(namespace: &str) -> Option<u32> {
    namespace.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
}

fn is_dead(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_process() {
        let name = fresh_name();
        assert_ne!(name, fresh_name());
        assert_eq!(owner(&format!("{name}-host0")), Some(std::process::id()));
        assert_eq!(owner("somebody-else"), None);
        assert!(!is_dead(std::process::id()));
    }
}
