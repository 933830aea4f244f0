//! The first words on a connection: is the other one part of the same run?
//!
//! The dialer sends a [`Greeting`], the listener an [`Answer`]. Both carry the manifest's text (about 1 KiB), so that
//! whoever refuses can name the fields that differ, and a joiner that only has an address learns what it joins. These
//! are pure functions; the network driver moves the bytes.

use bincode::{Decode, Encode};

use crate::manifest::{RunId, RunManifest};
use crate::peer::Address;

/// The version of everything on the wire. Nodes of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 3;

/// Addresses that a node may claim for itself in a handshake.
pub const OWN_ADDRESSES_MAX: usize = 8;

/// The dialer's first message.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Greeting {
    /// [`PROTOCOL_VERSION`] of the dialer.
    pub version: u32,
    /// Canonical manifest of the dialer's run; `None` asks only for the listener's manifest.
    pub manifest: Option<String>,
    /// Where the dialer listens; at most [`OWN_ADDRESSES_MAX`].
    pub addresses: Vec<Address>,
}

/// The listener's reply.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Answer {
    /// [`PROTOCOL_VERSION`] of the listener.
    pub version: u32,
    /// Whether the dialer is welcome as a member.
    pub welcome: bool,
    /// Canonical manifest of the listener's run.
    pub manifest: String,
    /// Where the listener listens; at most [`OWN_ADDRESSES_MAX`].
    pub addresses: Vec<Address>,
}

/// Why a peer is refused. Its text is for people and names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// Its manifest is no manifest.
    #[error("sent no valid run manifest: {0}")]
    Manifest(String),
    /// It told more addresses, or longer ones, than a node may claim.
    #[error("claims addresses without end")]
    Addresses,
    /// It said no without a visible reason.
    #[error("refused this node without a reason that it names")]
    Unwelcome,
    /// The message was no handshake, or none came in time.
    #[error("sent no valid handshake: {0}")]
    Garbage(String),
}

/// The listener's judgement of a greeting from a dialer that wants to be a member.
///
/// # Errors
/// Why the dialer is not welcome.
pub fn judge_greeting(ours: &RunManifest, greeting: &Greeting) -> Result<(), Refusal> {
    let manifest = greeting.manifest.as_deref().ok_or_else(|| Refusal::Manifest("there is none".to_owned()))?;
    judge(ours, greeting.version, manifest, &greeting.addresses)
}

/// The dialer's judgement of an answer.
///
/// # Errors
/// Why the dialer does not want, or does not get, membership.
pub fn judge_answer(ours: &RunManifest, answer: &Answer) -> Result<(), Refusal> {
    judge(ours, answer.version, &answer.manifest, &answer.addresses)?;
    if answer.welcome { Ok(()) } else { Err(Refusal::Unwelcome) }
}

/// Reads the manifest out of an answer, for a joiner that asked for it; `expected` is the run id of its ticket, if it
/// has one.
///
/// # Errors
/// When the manifest is invalid or of another run than expected.
pub fn manifest_from_answer(answer: &Answer, expected: Option<RunId>) -> Result<RunManifest, Refusal> {
    if answer.version != PROTOCOL_VERSION {
        return Err(Refusal::Version { theirs: answer.version });
    }
    let manifest = RunManifest::from_text(&answer.manifest).map_err(|error| Refusal::Manifest(error.to_string()))?;
    let run = manifest.run_id();
    match expected {
        Some(expected) if expected != run => {
            Err(Refusal::OtherRun { run, differences: vec![format!("run id: {expected} in the ticket, {run} there")] })
        }
        _ => Ok(manifest),
    }
}

fn judge(ours: &RunManifest, version: u32, manifest: &str, addresses: &[Address]) -> Result<(), Refusal> {
    if version != PROTOCOL_VERSION {
        return Err(Refusal::Version { theirs: version });
    }
    if addresses.len() > OWN_ADDRESSES_MAX || !addresses.iter().all(Address::is_well_formed) {
        return Err(Refusal::Addresses);
    }
    let theirs = RunManifest::from_text(manifest).map_err(|error| Refusal::Manifest(error.to_string()))?;
    let run = theirs.run_id();
    if run == ours.run_id() { Ok(()) } else { Err(Refusal::OtherRun { run, differences: ours.differences(&theirs) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(manifest: &RunManifest) -> Greeting {
        Greeting { version: PROTOCOL_VERSION, manifest: Some(manifest.canonical_text()), addresses: vec![] }
    }

    #[test]
    fn members_of_one_run_welcome_each_other() {
        let manifest = RunManifest::default();
        assert_eq!(judge_greeting(&manifest, &greeting(&manifest)), Ok(()));
    }

    #[test]
    fn another_run_is_refused_with_the_fields_that_differ() {
        let ours = RunManifest::default();
        let mut theirs = ours.clone();
        theirs.optimizer.learning_rate = 1e-3;
        let refusal = judge_greeting(&ours, &greeting(&theirs)).expect_err("another run");
        assert!(refusal.to_string().contains("optimizer.learning_rate: 0.004 here, 0.001 there"), "{refusal}");
    }

    #[test]
    fn another_version_is_refused_before_the_manifest_is_read() {
        let ours = RunManifest::default();
        let theirs = Greeting { version: 9, manifest: Some("junk".to_owned()), addresses: vec![] };
        assert_eq!(judge_greeting(&ours, &theirs), Err(Refusal::Version { theirs: 9 }));
    }

    #[test]
    fn a_ticket_for_another_run_is_refused() {
        let manifest = RunManifest::default();
        let answer = Answer {
            version: PROTOCOL_VERSION,
            welcome: false,
            manifest: manifest.canonical_text(),
            addresses: vec![],
        };
        assert_eq!(manifest_from_answer(&answer, Some(manifest.run_id())), Ok(manifest));
        assert!(matches!(manifest_from_answer(&answer, Some(RunId([0; 32]))), Err(Refusal::OtherRun { .. })));
    }
}
