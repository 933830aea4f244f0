//! What the system says about this process and its processor: memory, processor time, a name. Linux tells all; other systems
//! nothing.

use std::time::Duration;

use super::memory_limit;

/// Ticks of `/proc` a second, on every Linux since 2.6.
const TICKS: u64 = 100;

/// The most memory that this process has held, in bytes.
pub(crate) fn peak_memory() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The memory that this process holds now, in bytes.
pub(crate) fn memory() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Memory that is free for new programs, in bytes, also by the limits of the container or the unit that this runs in.
pub(crate) fn available_memory() -> Option<u64> {
    let machine = kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(memory_limit::left().map_or(machine, |left| machine.min(left)))
}

/// Processor time of all threads so far, to a hundredth of a second.
pub(crate) fn processor_time() -> Option<Duration> {
    ticks(&std::fs::read_to_string("/proc/self/stat").ok()?).map(|ticks| Duration::from_millis(1000 * ticks / TICKS))
}

/// The processor's name and who made it, such as `Intel(R) Xeon(R) Processor` and `GenuineIntel`.
pub(crate) fn processor() -> Option<(String, String)> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    Some((cpu_line(&text, "model name")?, cpu_line(&text, "vendor_id")?))
}

/// The first value of this name.
fn cpu_line(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(1024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
}

/// In user and in system mode: fields 14 and 15. The second one, a name, may hold anything but is in parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_tables_are_read() {
        assert_eq!(kibibytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"), Some(2048 * 1024));
        assert_eq!(kibibytes("MemTotal: 9 kB\n", "MemAvailable:"), None);
        assert_eq!(kibibytes("VmHWM:\tmany\n", "VmHWM:"), None);
        assert_eq!(ticks("7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 120 34 0 0 20"), Some(154));
        assert_eq!(ticks("nothing"), None);
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!((cpu_line(text, "model name"), cpu_line(text, "flags")), (Some("A: B".to_owned()), None));
    }
}
