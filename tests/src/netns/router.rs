//! A router that translates addresses, as those at home do: masquerading and nothing let in that was not asked for.

use std::process::Command;

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
