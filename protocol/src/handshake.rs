//! The first words on a connection: is the other one part of the same run, and a member of it where it is closed?
//!
//! ```text
//! dialer   → HELLO      version, nonce
//! listener → CHALLENGE  nonce, its clock; in a closed run: proof that it knows the secret
//! dialer   → GREETING   in a closed run: its own proof; its manifest, or the wish to see the listener's
//! listener → ANSWER     whether it is welcome; the listener's manifest
//! ```
//!
//! Manifests (about 1 KiB of text) are told so that whoever refuses can name the fields that differ, and a joiner that
//! only has an address learns what it joins. In a closed run no manifest is told, by neither side, before the other has
//! [proven](Proof) that it knows the run's secret; a stranger only learns that the run is closed. That the listener
//! proves first gives nothing away: a proof says nothing about secret or run to who knows neither.
//!
//! In a closed run every connection begins with a handshake whose greeting only wants to [enter](Greeting::Enter),
//! whatever the connection is for: before it nothing else is answered. One for membership follows where it is wanted.
//!
//! These are pure functions; the network driver moves the bytes and draws the nonces.

mod clock;
mod proof;
mod wire;

use bincode::{Decode, Encode};

use crate::manifest::{RunId, RunManifest};
use crate::peer::{Address, PeerId};
use crate::secret::Secret;
use crate::text::foreign;
pub use clock::{ClockOffset, Stamps};
pub use proof::{NONCE_BYTES, Nonce, Parties, Proof, Prover};
use wire::Opening;
pub use wire::{Answer, Challenge, Greeting, Hello, OtherVersion};

/// The version of everything on the wire. Nodes of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 16;

/// Addresses that a node may claim for itself in a handshake.
pub const OWN_ADDRESSES_MAX: usize = 8;

/// Why a peer is refused. Its text is for people, with the peer as its subject; [`remedy`](Self::remedy) says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Refusal {
    /// The wire formats differ.
    #[error("speaks protocol version {theirs}, this node {PROTOCOL_VERSION}: install the same murmur on both")]
    Version {
        /// The other's version.
        theirs: u32,
    },
    /// It takes part in another run.
    #[error("takes part in another run ({run}); fields that differ: {}", .differences.join("; "))]
    OtherRun {
        /// The other's run.
        run: RunId,
        /// The fields that differ, with both values.
        differences: Vec<String>,
    },
    /// Its run is closed, and this node has no secret.
    #[error("takes part in a closed run: join with a ticket")]
    Closed,
    /// This node's run is closed, and it knows no secret.
    #[error("does not know the membership secret of this closed run")]
    Stranger,
    /// Both runs are closed, but secrets or runs differ: nobody can tell which.
    #[error("is of another closed run, or has another membership secret than this node")]
    OtherSecret,
    /// Its owner's lists exclude this node.
    #[error("does not admit this node: its owner's network.allow or network.block excludes it")]
    NotAdmitted,
    /// This node's lists exclude it.
    #[error("is not admitted here: this node's network.allow or network.block excludes it")]
    Excluded,
    /// Its manifest is no manifest: why, escaped, for it may quote what the peer wrote.
    #[error("sent no valid run manifest: {0}")]
    Manifest(String),
    /// It told more addresses, or longer ones, than a node may claim.
    #[error("claims addresses without end")]
    Addresses,
    /// It said no without a visible reason.
    #[error("refused this node without a reason that it names")]
    Unwelcome,
    /// It was silent for as long as a handshake may take: lost packets, or a second connection of somebody who has one.
    #[error("has not greeted in time")]
    Silent,
    /// The message was no handshake.
    #[error("sent no valid handshake: {0}")]
    Garbage(String),
}

impl Refusal {
    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Refusal::Version { .. } => "install the same murmur on both machines",
            Refusal::Closed | Refusal::OtherSecret => "ask a member for a ticket (`murmur ticket` prints a fresh one)",
            Refusal::Stranger => "if it should take part, give it a ticket (`murmur ticket` prints a fresh one)",
            Refusal::NotAdmitted => "ask the owner of that machine to admit this node's peer id",
            Refusal::Excluded => {
                "if it should take part, `murmur unblock PEER` lets it in again; else change network.allow or network.block in the \
                 node file"
            }
            Refusal::Silent => "nothing, if it is connected later; else look at its log",
            Refusal::Garbage(_) => "is there another program at that address, or a murmur in trouble?",
            Refusal::OtherRun { .. } | Refusal::Manifest(_) | Refusal::Addresses | Refusal::Unwelcome => {
                "all members of a swarm use the same run file and the same murmur"
            }
        }
    }
}

/// Why one side tells the other to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Denial {
    /// The teller's run is closed, and the other has shown no proof.
    Closed,
    /// The other's run is closed, and the teller knows no secret.
    NoSecret,
    /// The other's proof is not that of the teller's run and secret.
    OtherSecret,
    /// The teller's owner does not admit the other.
    NotAdmitted,
}

impl Denial {
    /// What a side that was told this thinks of the teller.
    fn heard(self) -> Refusal {
        match self {
            Denial::Closed => Refusal::Closed,
            Denial::NoSecret => Refusal::Stranger,
            Denial::OtherSecret => Refusal::OtherSecret,
            Denial::NotAdmitted => Refusal::NotAdmitted,
        }
    }

    /// What the teller itself thinks of the other.
    fn told(self) -> Refusal {
        match self {
            Denial::Closed => Refusal::Stranger,
            Denial::NoSecret => Refusal::Closed,
            Denial::OtherSecret => Refusal::OtherSecret,
            Denial::NotAdmitted => Refusal::Excluded,
        }
    }
}

/// What a node knows of a run: enough to prove membership, or to hear that it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The run's id.
    pub run: RunId,
    /// Its secret, where it is closed.
    pub secret: Option<Secret>,
}

/// What a dialer came for, as far as the listener grants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// To be a member, and is welcome; it says that it listens here.
    Member(Vec<Address>),
    /// To see the manifest, and may.
    Asker,
}

/// The listener's reply to a hello of this version, with the `stamps` of its clock.
pub fn challenge(ours: &Credentials, parties: &Parties, stamps: Stamps) -> Challenge {
    let proof = ours.secret.as_ref().map(|secret| Proof::new(secret, ours.run, parties, Prover::Listener));
    Challenge::new(Opening::Proceed { nonce: parties.listener_nonce, proof, stamps })
}

/// The listener's reply to a dialer whom its owner's lists exclude.
pub fn turn_away() -> Challenge {
    Challenge::new(Opening::NotAdmitted)
}

/// The dialer's judgement of a challenge: the parties to the handshake from now on, and its own proof where the run is
/// closed. `ours` is `None` for a joiner that has no ticket.
///
/// # Errors
/// Why the dialer goes no further, and what to tell the listener with [`Greeting::Leave`], if anything.
pub fn judge_challenge(
    ours: Option<&Credentials>,
    (dialer, listener): (PeerId, PeerId),
    dialer_nonce: Nonce,
    challenge: &Challenge,
) -> Result<Option<Proof>, (Refusal, Option<Denial>)> {
    let Opening::Proceed { nonce: listener_nonce, proof, .. } = challenge.opening else {
        return Err((Refusal::NotAdmitted, None));
    };
    let parties = Parties { dialer, listener, dialer_nonce, listener_nonce };
    let own = ours.and_then(|ours| Some((ours.run, ours.secret.as_ref()?)));
    judge_proof(own, proof.as_ref(), &parties, Prover::Listener).map_err(|denial| (denial.told(), Some(denial)))?;
    Ok(own.map(|(run, secret)| Proof::new(secret, run, &parties, Prover::Dialer)))
}

/// The listener's judgement of a greeting.
///
/// # Errors
/// Why the dialer is refused. [`answer`] makes the reply of it.
pub fn judge_greeting(
    ours: &RunManifest,
    credentials: &Credentials,
    parties: &Parties,
    greeting: Greeting,
) -> Result<Visitor, Refusal> {
    let own = credentials.secret.as_ref().map(|secret| (credentials.run, secret));
    let check = |proof: Option<Proof>| judge_proof(own, proof.as_ref(), parties, Prover::Dialer).map_err(Denial::told);
    match greeting {
        Greeting::Leave(denial) => Err(denial.heard()),
        Greeting::Ask { proof } => check(proof).map(|()| Visitor::Asker),
        Greeting::Join { proof, manifest, addresses } => {
            check(proof)?;
            judge_manifest(ours, &manifest, &addresses)?;
            Ok(Visitor::Member(addresses))
        }
        Greeting::Enter { proof } => {
            check(proof)?;
            Err(Refusal::Garbage("it asks to enter where it already is, or where nobody has to".to_owned()))
        }
    }
}

/// The listener's judgement of the first greeting on a connection in a closed run, with the reply. The
/// judgement is an error where the dialer is refused.
pub fn judge_entry(ours: &Credentials, parties: &Parties, greeting: &Greeting) -> (Result<(), Refusal>, Answer) {
    let own = ours.secret.as_ref().map(|secret| (ours.run, secret));
    let judgement = match greeting {
        Greeting::Leave(denial) => Err(denial.heard()),
        Greeting::Join { proof, .. } | Greeting::Ask { proof } | Greeting::Enter { proof } => {
            judge_proof(own, proof.as_ref(), parties, Prover::Dialer).map_err(Denial::told)
        }
    };
    let answer = judgement.as_ref().map_or_else(denied, |()| Answer::Entered);
    (judgement, answer)
}

/// The dialer's judgement of the reply to [`Greeting::Enter`].
///
/// # Errors
/// Why the dialer is refused.
pub fn judge_entered(answer: &Answer) -> Result<(), Refusal> {
    match answer {
        Answer::Entered => Ok(()),
        Answer::Denied(denial) => Err(denial.heard()),
        Answer::Run { .. } => Err(Refusal::Garbage("a run where it was asked to be let in".to_owned())),
    }
}

/// The listener's last word; `manifest` is its canonical manifest, told to nobody who has not proven membership where
/// that is asked.
pub fn answer(judgement: &Result<Visitor, Refusal>, manifest: &str, addresses: Vec<Address>) -> Answer {
    let run = |welcome| Answer::Run { welcome, manifest: manifest.to_owned(), addresses };
    match judgement {
        Ok(Visitor::Member(_)) => run(true),
        // These refusals come after the proof.
        Ok(Visitor::Asker) | Err(Refusal::OtherRun { .. } | Refusal::Manifest(_) | Refusal::Addresses) => run(false),
        Err(refusal) => denied(refusal),
    }
}

fn denied(refusal: &Refusal) -> Answer {
    Answer::Denied(match refusal {
        Refusal::Stranger => Denial::Closed,
        Refusal::Closed => Denial::NoSecret,
        Refusal::OtherSecret => Denial::OtherSecret,
        _ => Denial::NotAdmitted,
    })
}

/// The dialer's judgement of an answer: where the listener says that it listens.
///
/// # Errors
/// Why the dialer does not want, or does not get, membership.
pub fn judge_answer(ours: &RunManifest, answer: Answer) -> Result<Vec<Address>, Refusal> {
    match answer {
        Answer::Denied(denial) => Err(denial.heard()),
        Answer::Entered => Err(Refusal::Unwelcome),
        Answer::Run { welcome, manifest, addresses } => {
            judge_manifest(ours, &manifest, &addresses)?;
            if welcome { Ok(addresses) } else { Err(Refusal::Unwelcome) }
        }
    }
}

/// Reads the manifest out of an answer, for a joiner that asked for it; `expected` is the run id of its ticket, if it
/// has one.
///
/// # Errors
/// When there is none, or it is invalid or of another run than expected.
pub fn manifest_from_answer(answer: &Answer, expected: Option<RunId>) -> Result<RunManifest, Refusal> {
    let text = match answer {
        Answer::Denied(denial) => return Err(denial.heard()),
        Answer::Entered => return Err(Refusal::Unwelcome),
        Answer::Run { manifest, .. } => manifest,
    };
    let manifest = RunManifest::from_text(text).map_err(|error| Refusal::Manifest(foreign(&error.to_string())))?;
    let run = manifest.run_id();
    match expected {
        Some(expected) if expected != run => {
            Err(Refusal::OtherRun { run, differences: vec![format!("run id: {expected} in the ticket, {run} there")] })
        }
        _ => Ok(manifest),
    }
}

/// Whether what the other side has shown fits what this side knows.
fn judge_proof(
    own: Option<(RunId, &Secret)>,
    shown: Option<&Proof>,
    parties: &Parties,
    prover: Prover,
) -> Result<(), Denial> {
    match (own, shown) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Denial::NoSecret),
        (Some(_), None) => Err(Denial::Closed),
        (Some((run, secret)), Some(proof)) if proof.is_of(secret, run, parties, prover) => Ok(()),
        (Some(_), Some(_)) => Err(Denial::OtherSecret),
    }
}

fn judge_manifest(ours: &RunManifest, manifest: &str, addresses: &[Address]) -> Result<(), Refusal> {
    if addresses.len() > OWN_ADDRESSES_MAX || !addresses.iter().all(Address::is_well_formed) {
        return Err(Refusal::Addresses);
    }
    let theirs = RunManifest::from_text(manifest).map_err(|error| Refusal::Manifest(foreign(&error.to_string())))?;
    let run = theirs.run_id();
    if run == ours.run_id() { Ok(()) } else { Err(Refusal::OtherRun { run, differences: ours.differences(&theirs) }) }
}

#[cfg(test)]
mod tests;
