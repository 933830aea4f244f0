//! The network driver over loopback sockets, TCP and QUIC: honest nodes, strangers and hostile peers. One binary, because
//! each would link all of libp2p.

mod access;
mod aimed;
mod caps;
mod closed;
mod crowd;
mod dawdlers;
mod failures;
mod finding;
mod flooding;
mod head_start;
mod hostile;
mod manifest;
mod meeting;
mod misbehaviour;
mod node;
mod raw;
mod relaying;
mod shards;
mod starting;
mod stranger;
mod team;
mod transfers;
