//! Ways to train together, side by side: the same model, data, links and faults for each of them.
//!
//! Gossip, also where nodes go over to a ring at times, runs in the [swarm simulator](crate::Swarm), with the daemon's own decisions. The other methods are the state
//! machines [`Collective`](murmur_protocol::collective::Collective), [`Server`](murmur_protocol::server::Server) and
//! [`Meeting`](murmur_protocol::pairs::Meeting) in a [world] of the same links. All of them train the daemon's own engine,
//! and everything that is told of a run (time, bytes, waiting, loss) is counted while it happens.
//!
//! ```text
//!   Setting + seed ──► World ──► queue (time, then order of making)
//!                        │
//!        ┌───────────────┼────────────────┐
//!   Collectives       Servers           Pairs          engines, network, laws
//!   (ring, DiLoCo)  (asynchronous)  (NoLoCo, AD-PSGD)
//! ```

mod collectives;
mod learner;
mod method;
mod outcome;
mod pairing;
mod plan;
pub mod report;
mod servers;
mod setting;
mod swarm;
#[cfg(test)]
mod tests;
mod world;

pub use method::{ALL, Kind, Method};
pub use outcome::{Activity, Counted, NodeAccount, Outcome, Point, Span};
pub use plan::{Job, LEARNING_RATES, Plan, Results};
pub use setting::{Fault, Links, STRAGGLER, Sabotage, Setting};

impl Setting {
    /// Runs it. Calls `is_interrupted` now and then, and gives `None` once it says so.
    ///
    /// # Panics
    /// When the trainer's specification does not pass [`TransformerSpec::check`](crate::TransformerSpec::check).
    pub fn run(&self, is_interrupted: &dyn Fn() -> bool) -> Option<Outcome> {
        match self.method.kind {
            Kind::Gossip | Kind::Auto => swarm::run(self, is_interrupted),
            Kind::DataParallel(..) | Kind::Diloco(_) => {
                world::run(self, &mut collectives::Collectives::new(self), is_interrupted)
            }
            Kind::Server { .. } => world::run(self, &mut servers::Servers::new(self), is_interrupted),
            Kind::Noloco | Kind::AdPsgd | Kind::Alone => {
                world::run(self, &mut pairing::Pairing::new(self), is_interrupted)
            }
        }
    }
}
