//! Teams of machines: how a captain reaches its helpers, and how a helper waits for its captain. What they compute is in
//! [`murmur_training::team`], what they decide in [`murmur_protocol::team`].

pub(crate) mod captain;
mod carrier;
pub(crate) mod lending;
mod member;
pub(crate) mod probing;
pub(crate) mod report;
pub(crate) mod trial;
pub(crate) mod words;
