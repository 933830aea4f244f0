//! What the kernel's books say about a process.

use std::collections::BTreeMap;
use std::process::Command;

/// The kernel counts processor time in hundredths of a second (USER_HZ, the same on every Linux that runs today).
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory that a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All of it, in MB.
    pub resident: f64,
    /// Without pages of the program's own file, which the kernel may drop, in MB.
    pub anonymous: f64,
}

/// What a process holds now.
///
/// # Panics
/// When it is gone, or the system is not Linux.
pub fn memory(process: u32) -> Memory {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let of = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux tells");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0 / 1e6
    };
    Memory { resident: of("VmRSS:"), anonymous: of("RssAnon:") }
}

/// Seconds of processor time of each thread so far, by its id, with its name.
///
/// # Panics
/// As [`memory`].
pub fn processor_seconds(process: u32) -> BTreeMap<u32, (String, f64)> {
    let mut seconds = BTreeMap::new();
    for thread in threads(process) {
        let Ok(line) = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")) else { continue };
        let (head, fields) = line.rsplit_once(')').expect("a name in brackets");
        let name = head.split_once('(').expect("a name in brackets").1.to_owned();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |index: usize| fields[index].parse::<f64>().expect("ticks");
        // utime and stime are the 14th and 15th fields; the first two went with the name.
        seconds.insert(thread, (name, (ticks(11) + ticks(12)) / TICKS_PER_SECOND));
    }
    seconds
}

/// Puts every thread of a process on these cores, with this niceness.
///
/// # Panics
/// As [`memory`], or without `taskset`.
pub fn place(process: u32, cores: &str, niceness: i32) {
    let placed =
        Command::new("taskset").args(["-acp", cores, &process.to_string()]).output().expect("taskset is there");
    assert!(placed.status.success(), "{placed:?}");
    for thread in threads(process) {
        let thread = thread.to_string();
        let _ = Command::new("renice").args(["-n", &niceness.to_string(), "-p", &thread]).output();
    }
}

fn threads(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    tasks.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
