//! A router that translates addresses, as those at home do: masquerading and nothing let in that was not asked for.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use murmur::process::namespace::Namespace;

use super::tools::call;

/// Turns a namespace into one: what comes from its link `inside` leaves by `eth0` with the router's own address.
///
/// # Errors
/// What the kernel or `nft` lacks.
pub(super) fn translate(router: &Namespace) -> Result<(), String> {
    // Through the file: sysctl is not on every machine.
    let mut forward = Command::new("sh");
    router.place(forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]));
    if !forward.status().is_ok_and(|done| done.success()) {
        return Err("forwarding cannot be turned on".to_owned());
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
    rules.iter().try_for_each(|rule| call(router, "nft", rule).map(drop))
}

/// Lets nothing pass from behind a router to `elsewhere`.
pub(super) fn bar(router: &Namespace, elsewhere: &str) {
    let rules = [
        "add chain ip home barred { type filter hook forward priority -1 ; }".to_owned(),
        format!("add rule ip home barred ip daddr {elsewhere} drop"),
    ];
    for rule in &rules {
        call(router, "nft", rule).expect("nft has made rules before");
    }
}

/// Takes back what [`bar`] has done.
pub(super) fn unbar(router: &Namespace) {
    call(router, "nft", "flush chain ip home barred").expect("nft has made rules before");
}

/// The router's UPnP service. It ends with the value.
pub struct PortForwarding {
    process: Child,
    /// The outside address that it tells.
    pub outside: String,
}

impl PortForwarding {
    pub(super) fn start(router: &Namespace, inside: &str, outside: &str) -> PortForwarding {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/upnp_router.py");
        let mut command = Command::new("python3");
        router.place(command.args([script, inside, outside]).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut process = command.spawn().expect("python3 is there");
        let mut line = String::new();
        let answers = process.stdout.take().expect("a pipe");
        BufReader::new(answers).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "the router's service");
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
