//! Real daemons on hosts of their own: what the network does to a swarm, and what it must not do to training.

mod deaths;
mod donors;
mod forwarding;
mod links;
mod lost;
mod partition;
mod restarts;
mod siege;
mod slow;
