//! How much memory the control groups of this process leave to it: the limit of a container, or `MemoryMax` of a systemd unit.

use std::path::Path;

/// A version of control groups: the files of a group, and the names in `memory.stat` of what the system gives up when programs
/// want memory.
struct Version {
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static [&'static str],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

const V2: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

/// The least that a group of this process, or one around it, may still take, in bytes. `None` without a limit.
pub(super) fn left() -> Option<u64> {
    left_in(Path::new("/sys/fs/cgroup"), &std::fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// With control groups mounted at `root`. `groups` is `/proc/self/cgroup`, a line for each hierarchy: `ID:CONTROLLERS:PATH`, where
/// version 2 has no controllers.
fn left_in(root: &Path, groups: &str) -> Option<u64> {
    let of_hierarchy = |line: &str| {
        let (_, named) = line.split_once(':')?;
        let (controllers, path) = named.split_once(':')?;
        let is_memory = controllers.split(',').any(|controller| controller == "memory");
        match (controllers.is_empty(), is_memory) {
            (true, _) => least(root, path, &V2),
            (false, true) => least(&root.join("memory"), path, &V1),
            (false, false) => None,
        }
    };
    groups.lines().filter_map(of_hierarchy).min()
}

/// Of a group and all around it. A container may see its own group as the root, whatever its path is outside.
fn least(root: &Path, path: &str, version: &Version) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|folder| folder.starts_with(root));
    around.filter_map(|folder| of_group(folder, version)).min()
}

/// What this group may still take. What it uses counts files that the system keeps in memory and gives up.
fn of_group(folder: &Path, version: &Version) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let (limit, used) = number(version.limit).zip(number(version.used))?;
    let stat = text("memory.stat").unwrap_or_default();
    let value =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let kept = version.reclaimable.iter().filter_map(|name| value(name));
    Some(limit.saturating_sub(used.saturating_sub(kept.sum())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a group's files.
    fn group(folder: &Path, version: &Version, [limit, used, stat]: [&str; 3]) {
        std::fs::create_dir_all(folder).expect("made");
        for (name, text) in [(version.limit, limit), (version.used, used), ("memory.stat", stat)] {
            std::fs::write(folder.join(name), text).expect("written");
        }
    }

    #[test]
    fn the_least_of_nested_groups_counts() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let left = |groups: &str| left_in(root.path(), groups);
        assert_eq!(left("0::/user.slice/murmur.service\n"), None, "there is no limit anywhere");
        group(&root.path().join("user.slice"), &V2, ["1000\n", "900\n", "anon 5\ninactive_file 200\n"]);
        assert_eq!(left("0::/user.slice/murmur.service\n"), Some(300), "the group around it has one");
        let own = root.path().join("user.slice/murmur.service");
        group(&own, &V2, ["max\n", "100\n", ""]);
        assert_eq!(left("0::/user.slice/murmur.service\n"), Some(300), "its own has none");
        group(&own, &V2, ["250\n", "100\n", "active_file 10\nslab_reclaimable 5\n"]);
        assert_eq!(left("0::/user.slice/murmur.service\n"), Some(165));
        assert_eq!((left("0::/user.slice\n"), left("0::/other\n"), left("")), (Some(300), None, None));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let root = tempfile::tempdir().expect("a temporary directory");
        group(root.path(), &V2, ["1000", "1200", ""]);
        assert_eq!(left_in(root.path(), "0::/\n"), Some(0), "it is over its limit for a moment");
        assert_eq!(left_in(root.path(), "0::/../../docker/0a1b\n"), Some(0));
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let groups = "5:cpu,cpuacct:/docker/0a1b\n4:memory:/docker/0a1b\n0::/docker/0a1b\n";
        let memory = root.path().join("memory");
        group(&memory, &V1, ["9223372036854771712", "5000", ""]);
        group(&memory.join("docker/0a1b"), &V1, ["1000", "900", "inactive_file 1\ntotal_inactive_file 300\n"]);
        assert_eq!(left_in(root.path(), groups), Some(400));
        group(&memory, &V1, ["700", "600", "total_active_file 50"]);
        assert_eq!(left_in(root.path(), groups), Some(150), "the one around it leaves less");
    }
}
