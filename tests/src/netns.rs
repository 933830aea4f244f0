//! Hosts on one machine: each a network namespace with an address of its own, joined by a bridge whose links can be
//! slowed, cut in halves and put behind a router that translates addresses. Real sockets and real packets, so that what
//! loopback hides (dead hosts that answer nothing, links of unlike speed, addresses that lead nowhere) is met in tests.
//!
//! It takes Linux, root and iproute2. Where one is missing, [`Lan::new`] says so in a line and gives nothing, and the
//! test that asked for it ends without having tested.

mod lan;
mod router;
mod tools;

pub use lan::{Family, HOSTS_MAX, Host, Lan};
pub use router::PortForwarding;
