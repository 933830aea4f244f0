//! The core from outside: one program for all tests but the one that counts allocations.

mod choosing;
mod copying_anew;
mod driven;
mod holdings;
mod hostile_peer;
mod joining;
mod membership;
mod numerics_properties;
mod pair;
mod progress;
mod refusals;
mod relayed;
mod responding;
mod rest;
mod schedules;
mod settling;
mod shards;
mod synchronous;
mod teams;
mod two_nodes;
