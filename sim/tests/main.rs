//! The laws of a swarm, held in the simulator.

mod broken;
mod calm;
mod choosing;
mod everything;
mod findings;
mod finish;
mod hostile;
mod learning;
mod mechanisms;
mod membership;
mod scenarios;
mod synchronous;
mod teams;
