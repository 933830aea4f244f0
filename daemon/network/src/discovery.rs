//! How members are found, beside by the addresses that members tell each other.
//!
//! - [`table`]: a running node asks the run's Kademlia table where it has few peers.
//!   [`announcements`]: of those who announce themselves there, whom this node remembers.
//! - [`neighbours`]: those that mDNS finds on the local network are dialed, or waited for.
//! - [`search`]: a joiner whose ticket's addresses are all dead looks in that table and on the local network (mDNS).
//! - [`manifest`]: whoever is found, or named by a ticket, is asked for its run; [`stranger`] says what else answers there.

pub(crate) mod announcements;
pub(crate) mod manifest;
pub(crate) mod neighbours;
pub(crate) mod search;
mod stranger;
pub(crate) mod table;
