//! A router that translates addresses, as those at home do: masquerading and nothing let in that was not asked for.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::tools::call_inside;

/// Turns namespace `router` into one: what comes from its link `inside` leaves by `eth0` with the router's own address.
///
/// # Errors
/// What the kernel or `nft` lacks.
pub(super) fn translate(router: &str) -> Result<(), String> {
    // Through the file: sysctl is not on every machine.
    let forward = ["netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
    let done = Command::new("ip").args(forward).status().map_err(|error| format!("ip cannot be run: {error}"))?;
    if !done.success() {
        return Err(format!("forwarding cannot be turned on in {router}"));
    }
    let rules = [
        "add table ip home",
        "add chain ip home leaving { type nat hook postrouting priority 100 ; }",
        "add rule ip home leaving oifname eth0 masquerade",
        // What nobody asked for is answered with nothing, not even that the port is closed.
        "add chain ip home arriving { type filter hook input priority 0 ; policy drop ; }",
        "add rule ip home arriving iifname inside accept",
        "add rule ip home arriving ct state established,related accept",
        "add chain ip home passing { type filter hook forward priority 0 ; policy drop ; }",
        "add rule ip home passing iifname inside accept",
        "add rule ip home passing ct state established,related accept",
    ];
    rules.iter().try_for_each(|rule| call_inside(router, "nft", rule).map(drop))
}

/// Lets nothing pass from behind namespace `router` to `elsewhere`.
pub(super) fn bar(router: &str, elsewhere: &str) {
    let rules = [
        "add chain ip home barred { type filter hook forward priority -1 ; }".to_owned(),
        format!("add rule ip home barred ip daddr {elsewhere} drop"),
    ];
    for rule in &rules {
        call_inside(router, "nft", rule).expect("nft has made rules before");
    }
}

/// Takes back what [`bar`] has done.
pub(super) fn unbar(router: &str) {
    call_inside(router, "nft", "flush chain ip home barred").expect("nft has made rules before");
}

/// The router's UPnP service. It ends with the value.
pub struct PortForwarding {
    process: Child,
    /// The outside address that it tells.
    pub outside: String,
}

impl PortForwarding {
    pub(super) fn start(router: &str, inside: &str, outside: &str) -> PortForwarding {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/upnp_router.py");
        let mut process = Command::new("ip")
            .args(["netns", "exec", router, "python3", script, inside, outside])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("ip is there");
        let mut line = String::new();
        let answers = process.stdout.take().expect("a pipe");
        BufReader::new(answers).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "the service of {router}");
        PortForwarding { process, outside: outside.to_owned() }
    }
}

impl Drop for PortForwarding {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
