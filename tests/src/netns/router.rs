//! A router that translates addresses, as those at home do: masquerading and nothing let in that was not asked for.

use super::tools::call_inside;

/// Turns namespace `router` into one: what comes from its link `inside` leaves by `eth0` with the router's own address.
///
/// # Errors
/// What the kernel or `nft` lacks.
pub(super) fn translate(router: &str) -> Result<(), String> {
    call_inside(router, "sysctl", "-qw net.ipv4.ip_forward=1")?;
    let rules = [
        "add table ip home",
        "add chain ip home leaving { type nat hook postrouting priority 100 ; }",
        "add rule ip home leaving oifname eth0 masquerade",
        "add chain ip home passing { type filter hook forward priority 0 ; policy drop ; }",
        "add rule ip home passing iifname inside accept",
        "add rule ip home passing ct state established,related accept",
    ];
    rules.iter().try_for_each(|rule| call_inside(router, "nft", rule).map(drop))
}
