//! Runs `ip`, `tc` and `nft`, and knows whether they would work here.

use std::io::Write;
use std::process::{Command, Stdio};

use murmur::process::namespace::Namespace;

/// Runs a program of the system to its end, in a namespace.
///
/// # Errors
/// What it wrote to standard error, with its command line.
pub(super) fn call(namespace: &Namespace, program: &str, arguments: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    namespace.place(command.args(arguments.split_whitespace()).stdin(Stdio::null()));
    let output = command.output().map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The same, for what cannot fail where [`missing`] found nothing missing.
///
/// # Panics
/// When it does.
pub(super) fn must(namespace: &Namespace, program: &str, arguments: &str) -> String {
    call(namespace, program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// A namespace with loopback.
///
/// # Panics
/// As [`must`].
pub(super) fn namespace() -> Namespace {
    let namespace = Namespace::new().expect("one could be made before");
    must(&namespace, "ip", "link set lo up");
    namespace
}

/// Says, past the test harness that keeps what passing tests print, that something was not tested.
pub(super) fn say_skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Why namespaces cannot be had here; nothing where they can. Each tool and each right is tried.
pub(super) fn missing() -> Option<String> {
    let attempt = || -> Result<(), String> {
        let probe = Namespace::new().map_err(|error| error.to_string())?;
        call(&probe, "ip", "link add eth0 type veth peer name port0")?;
        call(&probe, "ip", "link add near type bridge")?;
        call(&probe, "ip", "link set eth0 up")?;
        call(&probe, "tc", "qdisc add dev eth0 root tbf rate 1mbit burst 32kb latency 50ms").map(drop)
    };
    attempt().err()
}
