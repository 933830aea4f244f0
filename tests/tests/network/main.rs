//! Real daemons on hosts of their own: what the network does to a swarm, and what it must not do to training. One binary,
//! because each would link all of the daemon, and because the networks take turns on the processor.

mod deaths;
mod donors;
mod forwarding;
mod links;
mod lost;
mod partition;
mod restarts;

const MURMUR: &str = env!("CARGO_BIN_EXE_murmur-under-test");
