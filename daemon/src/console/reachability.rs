//! Whether others reach this node, in words; where something can be done about it, with what.

use murmur_network::{Multiaddr, Reachability, ReachabilityState};
use serde::{Deserialize, Serialize};

use super::words::Words;

/// Reachability as `murmur status` and its JSON show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReachabilityReport {
    /// unknown, reachable, local, hole-punching, relayed, unreachable or isolated.
    pub state: String,
    /// The same as a sentence, with the addresses.
    pub text: String,
    /// What to do about it, where there is something.
    pub hint: Option<String>,
    /// Addresses at which others have reached this node.
    pub confirmed: Vec<String>,
    /// Addresses through relays.
    pub relayed: Vec<String>,
}

impl ReachabilityReport {
    pub(crate) fn new(reachability: &Reachability) -> ReachabilityReport {
        let Words { text, hint } = describe(reachability);
        let texts = |addresses: &[Multiaddr]| addresses.iter().map(ToString::to_string).collect();
        ReachabilityReport {
            state: reachability.state.name().to_owned(),
            text,
            hint: hint.map(str::to_owned),
            confirmed: texts(&reachability.confirmed),
            relayed: texts(&reachability.relayed),
        }
    }
}

/// What people are told; the hint makes it a warning.
pub(super) fn describe(reachability: &Reachability) -> Words {
    let list = |addresses: &[Multiaddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let forward = "forward the port that it listens on, TCP and UDP (4711 unless --port or --listen say another), to this machine \
                   on the router; or, where it has a public IPv6 address, give it these four addresses in the place of --port: \
                   --listen /ip4/0.0.0.0/tcp/4711,/ip4/0.0.0.0/udp/4711/quic-v1,/ip6/::/tcp/4711,/ip6/::/udp/4711/quic-v1";
    let (text, hint) = match reachability.state {
        ReachabilityState::Unknown => {
            ("not known yet: no peer has tried to reach this node from outside".to_owned(), None)
        }
        ReachabilityState::Reachable => (format!("others reach this node at {}", list(&reachability.confirmed)), None),
        ReachabilityState::ReachableLocally => (
            format!("reachable from its own network, at {}; not tried from outside", list(&reachability.confirmed)),
            None,
        ),
        ReachabilityState::HolePunching => {
            ("behind a NAT; direct connections come about by hole punching".to_owned(), None)
        }
        ReachabilityState::Relayed => {
            let text = format!(
                "behind a NAT: messages come through {}; models only where this node, or a punched hole, leads",
                list(&reachability.relayed)
            );
            (text, Some(forward))
        }
        ReachabilityState::Unreachable => {
            let text = "behind a NAT or firewall, and no connected member relays: connected are only those whom this \
                        node dials";
            (text.to_owned(), Some(forward))
        }
        ReachabilityState::Isolated => {
            let reasons = reachability.dial_errors.join("; ");
            let hint = "is this machine online? else another member's address after --bootstrap, or a fresh ticket";
            (format!("isolated: no member has been connected for a minute ({reasons})"), Some(hint))
        }
    };
    Words { text, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isolated_node_says_why_and_what_to_do() {
        let reachability = Reachability {
            state: ReachabilityState::Isolated,
            dial_errors: vec!["nobody listens there (connection refused)".to_owned()],
            ..Reachability::default()
        };
        let report = ReachabilityReport::new(&reachability);
        assert_eq!(report.state, "isolated");
        assert!(report.text.contains("connection refused"), "{report:?}");
        assert!(report.hint.is_some_and(|hint| hint.contains("--bootstrap")));
    }

    #[test]
    fn a_node_behind_a_nat_is_told_how_to_be_reached() {
        for state in [ReachabilityState::Relayed, ReachabilityState::Unreachable] {
            let report = ReachabilityReport::new(&Reachability { state, ..Reachability::default() });
            assert!(report.hint.is_some_and(|hint| hint.contains("forward the port")));
        }
    }
}
