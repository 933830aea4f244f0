//! Runs `ip`, `tc` and `nft`, and knows whether they would work here.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs a program of the system to its end.
///
/// # Errors
/// What it wrote to standard error, with its command line.
pub(super) fn call(program: &str, arguments: &str) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The same, for what cannot fail where [`missing`] found nothing missing.
///
/// # Panics
/// When it does.
pub(super) fn must(program: &str, arguments: &str) -> String {
    call(program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a program inside a namespace.
///
/// # Errors
/// As [`call`].
pub(super) fn call_inside(namespace: &str, program: &str, arguments: &str) -> Result<String, String> {
    call("ip", &format!("netns exec {namespace} {program} {arguments}"))
}

/// Says, past the test harness that keeps what passing tests print, that something was not tested.
pub(super) fn say_skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Why namespaces cannot be had here; nothing where they can.
///
/// Each tool and each right is tried, in a namespace called `probe` that is removed again.
pub(super) fn missing(probe: &str) -> Option<String> {
    let attempt = || -> Result<(), String> {
        call("ip", &format!("netns add {probe}"))?;
        call("ip", &format!("-n {probe} link add eth0 type veth peer name port0"))?;
        call("ip", &format!("-n {probe} link add near type bridge"))?;
        call("ip", &format!("-n {probe} link set eth0 up"))?;
        call("tc", &format!("-n {probe} qdisc add dev eth0 root tbf rate 1mbit burst 32kb latency 50ms"))?;
        call_inside(probe, "true", "").map(drop)
    };
    let result = attempt();
    let _ = call("ip", &format!("netns del {probe}"));
    result.err()
}
