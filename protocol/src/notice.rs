//! What a [`Node`](crate::Node) tells people, logs and the simulator's trace.

use std::time::Duration;

use crate::finish::Ending;
use crate::handshake::Refusal;
use crate::join::Unchecked;
use crate::misbehaviour::Misbehaviour;
use crate::part::Part;
use crate::peer::PeerId;
use crate::scheme::{Comparison, Scheme};

/// What happened, for people, logs and the simulator's trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A member connected.
    PeerJoined(PeerId),
    /// A member is gone.
    PeerLeft {
        /// The peer's id.
        peer: PeerId,
        /// Whether it said so.
        announced: bool,
    },
    /// Nobody is connected any more, or nobody answers.
    Alone {
        /// The last reason a dial failed, where there was one.
        reason: Option<String>,
    },
    /// A joiner looks for a peer that can give it the model.
    WaitingForState,
    /// The model has come.
    StateReceived {
        /// From whom, each a part of it.
        donors: Vec<PeerId>,
        /// Swarm progress of the model, in steps.
        progress: f64,
    },
    /// A joiner has got what it asked for of the model, and did not ask others for meanwhile.
    StateSent {
        /// The peer's id.
        peer: PeerId,
        /// How many chunks it was sent.
        chunks: u32,
        /// Of how many.
        of: u32,
    },
    /// An exchange is done on this side.
    ExchangeCompleted {
        /// The other side of the exchange.
        partner: PeerId,
        /// What was averaged.
        part: Part,
        /// ‖s·d‖, how far apart the two models were.
        distance: f64,
        /// κ, 1 where nothing was clipped.
        clip_scale: f64,
        /// Blocks left out because their codes wrapped.
        masked_blocks: u32,
        /// Whether it had 16-bit codes: a first exchange, or one between models far apart.
        coarse: bool,
    },
    /// An exchange came to nothing.
    ExchangeFailed {
        /// The other side of the exchange.
        partner: PeerId,
        /// Why it came to nothing.
        failure: ExchangeFailure,
    },
    /// A handshake ended in a refusal.
    PeerRefused {
        /// The peer's id.
        peer: PeerId,
        /// The reason that was given.
        refusal: Refusal,
    },
    /// A peer had no place for this node, and parted from it as soon as it had come.
    TurnedAway {
        /// The peer's id.
        peer: PeerId,
        /// How many others it named, to turn to.
        others: usize,
    },
    /// A peer did what no honest peer does.
    PeerMisbehaved {
        /// The peer's id.
        peer: PeerId,
        /// What was wrong.
        misbehaviour: Misbehaviour,
    },
    /// Two live nodes have one identity: a copied data directory, a cloned machine, a backup.
    IdentityDoubled {
        /// The peer's id.
        peer: PeerId,
    },
    /// A copied model was not found to be near those of other members.
    StateUnchecked {
        /// Who sent the model.
        donors: Vec<PeerId>,
        /// Why nobody has compared it.
        why: Unchecked,
        /// Whether it is copied again, from somebody else; otherwise it is believed.
        is_copied_again: bool,
    },
    /// A peer that misbehaved is not dealt with for this long.
    PeerBanned {
        /// The peer's id.
        peer: PeerId,
        /// How long the ban lasts.
        duration: Duration,
    },
    /// The first exchange with a peer that had been out of reach: two parts of the swarm become one.
    Reunited {
        /// The other side of the exchange.
        partner: PeerId,
        /// How long it was out of reach.
        away: Duration,
        /// How far apart the two models were.
        distance: f64,
        /// The share of the joint weight that the partner's work had, 0 to 1.
        partner_share: f64,
    },
    /// The models drift apart, and link or processor allow no more exchanges.
    BudgetTooSmall {
        /// Steps between own exchanges.
        interval_steps: f64,
        /// Distance over √2 and over local progress; 0.4 to 0.8 is best.
        ratio: f64,
    },
    /// In a synchronous run: others than before take part in the all-reduces.
    MembersChanged {
        /// How many there are now, this node counted.
        members: u32,
        /// Who is new, this node counted.
        joined: Vec<PeerId>,
        /// Who takes part no more.
        left: Vec<PeerId>,
    },
    /// In a synchronous run: this node's contribution was late twice in a row, and the others go on without it. What it computes goes on;
    /// then it copies their replica.
    LeftOut,
    /// Where members choose how they average: they do it this way from now on.
    SchemeChanged {
        /// The way in which they average now.
        scheme: Scheme,
        /// Who has decided.
        by: PeerId,
        /// What was compared: seconds of a step of all, and of one alone.
        reason: Comparison,
    },
    /// The founder has ordered the end of the run.
    Finishing(Ending),
    /// Training is over; the last exchanges begin.
    Settling,
    /// The last exchanges are done, or cannot be.
    RunCompleted {
        /// The network rests: there were none, and they are made up for once it does not, if this node still runs then.
        is_resting: bool,
    },
}

/// Why an exchange came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExchangeFailure {
    /// The partner said no.
    Rejected,
    /// No answer by the deadline.
    DeadlinePassed,
    /// The partner's connection was lost.
    PartnerLost,
    /// The partner's bytes were unfit.
    Misbehaved,
    /// A local queue was full.
    Overloaded,
    /// This node has copied a model meanwhile.
    ModelReplaced,
    /// This node has given the fragment up meanwhile.
    NotHeld,
    /// It took so long that models have come much nearer meanwhile.
    Outdated,
}
