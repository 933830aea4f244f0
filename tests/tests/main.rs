//! Several real daemons: end to end, command line, structure. One binary, because each would link all of the daemon, and
//! because tests that wait run beside tests that compute. They begin in the order of their names. As many of those that compute
//! run at once as there are cores, and the scenarios in `network` take turns; see [`murmur_tests::turn`].

mod base;
mod circles;
mod command_line;
mod configs;
mod crowd;
mod cuda_scripts;
mod dashboard;
#[path = "network/deaths.rs"]
mod deaths;
mod doctor;
#[path = "network/donors.rs"]
mod donors;
mod families;
mod finish;
mod first_hour;
#[path = "network/forwarding.rs"]
mod forwarding;
mod fuzz;
mod identity;
#[path = "network/links.rs"]
mod links;
mod local;
#[path = "network/lost.rs"]
mod lost;
mod machine;
mod memory;
mod metrics;
mod packages;
#[path = "network/partition.rs"]
mod partition;
mod pipeline;
mod place;
mod python;
#[path = "../../daemon/network/tests/network/raw.rs"]
mod raw;
mod real;
mod recovery;
mod refusals;
mod remote;
mod report;
#[path = "network/restarts.rs"]
mod restarts;
mod sharing;
#[path = "network/siege.rs"]
mod siege;
mod simulate;
#[path = "network/slow.rs"]
mod slow;
mod strangers;
mod structure;
mod swarm;
mod synchronous;
mod tables;
mod team;
mod terminal;
mod tickets;
mod tracking;
mod watch;

const MURMUR: &str = env!("CARGO_BIN_EXE_murmur-under-test");
