//! What the core notices, as a line for people; where something should be done about it, with what.

use murmur_protocol::{Notice, PeerId};

/// A notice in words.
pub(super) struct Words {
    pub(super) text: String,
    /// What to do; only warnings have it.
    pub(super) hint: Option<&'static str>,
}

fn names(peers: &[PeerId]) -> String {
    peers.iter().map(|peer| peer.short()).collect::<Vec<_>>().join(", ")
}

pub(super) fn describe(notice: &Notice) -> Words {
    let plain = |text: String| Words { text, hint: None };
    let warning = |text: String, hint: &'static str| Words { text, hint: Some(hint) };
    match notice {
        Notice::PeerJoined(peer) => plain(format!("{} connected", peer.short())),
        Notice::PeerLeft { peer, announced: true } => plain(format!("{} has left", peer.short())),
        Notice::PeerLeft { peer, announced: false } => plain(format!("{} is gone", peer.short())),
        Notice::Alone { reason } => {
            let reason = reason.as_deref().unwrap_or("no other member is known");
            let hint = "training goes on alone; a member's address after --bootstrap, or a fresh ticket, helps";
            warning(format!("alone: no peer is connected ({reason})"), hint)
        }
        Notice::WaitingForState => {
            let hint =
                "some member that trains must be reachable; to begin the run anew instead, use an empty data directory";
            warning("waiting for a peer that can give the model".to_owned(), hint)
        }
        Notice::StateReceived { donors, progress } => {
            plain(format!("took over the model of {} at step {progress:.0}", names(donors)))
        }
        Notice::StateSent { peer, chunks, of } if chunks == of => plain(format!("gave the model to {}", peer.short())),
        Notice::StateSent { peer, chunks, of } => {
            plain(format!("gave {chunks} of the model's {of} chunks to {}", peer.short()))
        }
        Notice::ExchangeCompleted { partner, distance, .. } => {
            plain(format!("averaged with {} (distance {distance:.4})", partner.short()))
        }
        Notice::ExchangeFailed { partner, failure } => {
            plain(format!("exchange with {} came to nothing: {failure:?}", partner.short()))
        }
        Notice::PeerRefused { peer, refusal } => warning(format!("peer {} {refusal}", peer.short()), refusal.remedy()),
        Notice::PeerMisbehaved { peer, misbehaviour } => {
            let hint = "it was dropped and counted, nothing of it reached the model; is that machine in order?";
            warning(format!("peer {} {misbehaviour}", peer.short()), hint)
        }
        Notice::IdentityDoubled { peer } => {
            let hint = "a data directory was copied, or a machine cloned: the younger node is told to end, and becomes \
                        one of its own without the copied identity.key";
            warning(format!("two nodes run with the identity of peer {}", peer.short()), hint)
        }
        Notice::StateDoubted { donors } => {
            plain(format!("the model of {} is far from those of others: asking another member", names(donors)))
        }
        Notice::PeerBanned { peer, duration } => {
            let hint = "it may come back by itself after that; is that machine in order?";
            let seconds = duration.as_secs();
            warning(format!("peer {} is banned for {seconds} s: it misbehaved again and again", peer.short()), hint)
        }
        Notice::Reunited { partner, away, distance, partner_share } => plain(format!(
            "reunited with {} after {} s: distance {distance:.4}, its work counts {:.0} %",
            partner.short(),
            away.as_secs(),
            100.0 * partner_share
        )),
        Notice::BudgetTooSmall { interval_steps, ratio } => {
            let hint = "a faster link, or a smaller gossip.interval_steps_min, keeps them closer";
            let text = format!(
                "the models drift apart (ratio {ratio:.1}), and an exchange every {interval_steps:.0} steps is all that \
                 link and processor allow"
            );
            warning(text, hint)
        }
        Notice::Finishing(ending) => plain(format!(
            "the founder finishes the run: the learning rate falls from step {:.0} on, the end is step {:.0} of the swarm",
            ending.from, ending.until
        )),
        Notice::Settling => plain("training is over; last exchanges".to_owned()),
        Notice::RunCompleted => plain("run completed".to_owned()),
    }
}
