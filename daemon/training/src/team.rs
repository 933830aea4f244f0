//! A model over several machines, a part each: what the machines of a team compute. Who computes what and when is decided by the
//! state machines of [`murmur_protocol::team`]; here their orders are carried out.
//!
//! ```text
//! trainer's thread                         the captain's own thread            a helper's thread
//! TeamReplica (a replica for the engine)   CaptainThread                       HelperThread
//!   computes the captain's stages    ◄───    pumps the machine `Captain`   ◄──►   pumps the machine `Helper`,
//!   (CaptainModel)                           and speaks with helpers               computes its stage (HelperStage)
//! ```

mod captain;
mod captain_thread;
mod costs;
mod helper_thread;
mod kept;
mod lent_member;
mod lent_stage;
mod membership;
mod owner;
mod part;
mod replica;
mod state;
mod streams;
mod wire;

pub use captain::TeamBase;
pub use captain_thread::{OnNotice, TeamView};
pub use costs::{captain_needs, costs};
pub use helper_thread::{HelperControl, HelperNews, HelperProgress, HelperThread, OnNews};
pub use lent_member::NewMember;
pub use lent_stage::HelperStage;
pub use membership::{Share, SwarmTicket, left_for_captain};
pub use part::{PartLengths, PartOutput, Piece, TeamPart, base_tensors};
pub use replica::TeamOptions;
pub(crate) use replica::TeamReplica;
pub use wire::{ECHO_BYTES_MAX, Facts, Heard, TeamWire, Told, Untold, Word, facts};

#[cfg(test)]
mod tests;
