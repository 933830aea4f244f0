//! What Linux tells of this process and its machine.

/// The processor's name.
pub(crate) fn processor() -> String {
    entry("/proc/cpuinfo", "model name").unwrap_or_else(|| "a processor without a name".to_owned())
}

/// The most memory that this process has held, in bytes.
pub(crate) fn peak() -> u64 {
    let kibibytes = entry("/proc/self/status", "VmHWM");
    kibibytes.and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or_default() * 1024
}

/// Of processors that all threads had so far, in user and in system mode. Linux tells hundredths.
pub(crate) fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn entry(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
    line.map(|(_, value)| value.trim().to_owned())
}
