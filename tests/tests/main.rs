//! Several real daemons: end to end, command line, structure. One binary, because each would link all of the daemon, and
//! because tests that wait run beside tests that compute.

mod base;
mod circles;
mod command_line;
mod configs;
mod crowd;
mod cuda_scripts;
mod dashboard;
mod doctor;
mod families;
mod finish;
mod first_hour;
mod identity;
mod local;
mod machine;
mod memory;
mod metrics;
mod network;
mod packages;
mod python;
#[path = "../../daemon/network/tests/network/raw.rs"]
mod raw;
mod recovery;
mod refusals;
mod remote;
mod report;
mod sharing;
mod simulate;
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
