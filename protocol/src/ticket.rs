//! A ticket: one string with which another machine joins.
//!
//! `murmur1` and base58 of: the encoded [`Ticket`], then the first four bytes of its BLAKE3 ([`pasted`]).

use std::fmt;
use std::str::FromStr;

use bincode::{Decode, Encode};

use crate::codec;
use crate::manifest::RunId;
use crate::message::KnownPeer;
use crate::pasted::{self, PastedError};
use crate::peer::{Address, PeerId};
use crate::secret::Secret;

const PREFIX: &str = "murmur1";

/// What stands before a ticket where a member prints the line to type.
const COMMAND: &str = "murmur join ";

/// Other members in a ticket: each makes it some sixty characters longer.
pub const OTHERS_MAX: usize = 3;

/// What a joiner needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ticket {
    /// The run: whoever answers must have a manifest of this id.
    pub run: RunId,
    /// A member.
    pub peer: PeerId,
    /// Where it can be reached, best first.
    pub addresses: Vec<Address>,
    /// Some other members, so that a ticket outlives the one that printed it; at most [`OTHERS_MAX`].
    pub others: Vec<KnownPeer>,
    /// Membership secret of a closed run. Whoever holds the ticket is let in: hand it on with care.
    pub secret: Option<Secret>,
}

/// Why a string is no ticket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It does not begin like one.
    #[error("a ticket begins with `{PREFIX}`")]
    NoTicket,
    /// A character that base58 does not have, or too many of them.
    #[error("the ticket holds a character that no ticket has; was it copied whole?")]
    Alphabet,
    /// The checksum does not match.
    #[error("the ticket is damaged (its checksum does not match); was it copied whole?")]
    Checksum,
    /// Intact, but made by another version.
    #[error("the ticket was made by another version of murmur")]
    Version,
}

impl fmt::Display for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&pasted::write(PREFIX, codec::encode(self)))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;
    fn from_str(text: &str) -> Result<Ticket, TicketError> {
        // The whole line that a member prints may be handed on.
        let body = pasted::read(PREFIX, COMMAND, text).map_err(|error| match error {
            PastedError::Prefix => TicketError::NoTicket,
            PastedError::Alphabet => TicketError::Alphabet,
            PastedError::Checksum => TicketError::Checksum,
        })?;
        let ticket: Ticket = codec::decode(&body).map_err(|_| TicketError::Version)?;
        let mut addresses = ticket.addresses.iter().chain(ticket.others.iter().flat_map(|other| &other.addresses));
        let well_formed =
            !ticket.addresses.is_empty() && ticket.others.len() <= OTHERS_MAX && addresses.all(Address::is_well_formed);
        if well_formed { Ok(ticket) } else { Err(TicketError::Version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        let address = Address::new("/ip4/192.0.2.7/tcp/4001").expect("short");
        let (run, peer) = (RunId([3; 32]), PeerId::from_public_key([9; 32]));
        Ticket { run, peer, addresses: vec![address], others: Vec::new(), secret: None }
    }

    #[test]
    fn a_ticket_survives_copy_and_paste() {
        let text = ticket().to_string();
        let (first, rest) = text.split_at(text.len() / 2);
        // A terminal of 80 columns breaks the line, and so do letters.
        let broken = format!("{first}\r\n  {rest}\n");
        for text in [format!("  {text}\n"), format!("murmur join {text}\n"), format!("murmur join {broken}"), broken] {
            assert_eq!(text.parse(), Ok(ticket()), "{text}");
        }
    }

    /// The form of a ticket, fixed: tickets are kept, and sent to machines with another version.
    #[test]
    fn the_text_of_a_ticket_has_not_changed() {
        assert_eq!(ticket().to_string(), GOLDEN);
        let closed = Ticket { secret: Some(Secret::from_bytes([5; 32])), ..ticket() };
        assert_eq!(closed.to_string(), GOLDEN_CLOSED);
        assert_eq!(GOLDEN_CLOSED.parse(), Ok(closed));
    }

    const GOLDEN: &str = "murmur1EdikJRAWKSdFzrG7DnxaUYYpGtWkHYDP6QrTNRXQaYCSsDZScqc5M69AahNoJGikjEGgukK2mi3q9ZpHnKeTnQE9m4PakaZndYF85Hc54V8NKX2VQXDmpQMkarZbG18ti";
    const GOLDEN_CLOSED: &str = "murmur153tnVq2BDyhmesytcZcraVZuizqptzPSGZo5gE4ZDQcRiRAacknRvJrt3L1XmKa4dpDH8oQc3LEBkrkQ9TYnJMp8RThsr6pvDNJEFvH4a9bJLVQiUQfyCjNxeQNtQVK8gbBGFw7rSs42wYc7ZSwz3uWAMXRUVUwpHHiMsb9xTT85q";

    #[test]
    fn a_ticket_names_a_few_other_members_and_not_many() {
        let address = Address::new("/ip4/192.0.2.8/tcp/4001").expect("short");
        let other = |key| KnownPeer { peer: PeerId::from_public_key([key; 32]), addresses: vec![address.clone()] };
        let some = Ticket { others: (0..3).map(other).collect(), ..ticket() };
        assert_eq!(some.to_string().parse(), Ok(some));
        let many = Ticket { others: (0..4).map(other).collect(), ..ticket() };
        assert_eq!(many.to_string().parse::<Ticket>(), Err(TicketError::Version));
    }

    #[test]
    fn an_intact_ticket_of_another_form_is_said_to_be_of_another_version() {
        let mut body = codec::encode(&ticket());
        body.push(7); // a field that this version does not know
        let text = pasted::write(PREFIX, body);
        assert_eq!(text.parse::<Ticket>(), Err(TicketError::Version));
    }

    #[test]
    fn one_wrong_character_is_noticed() {
        let text = ticket().to_string();
        for position in PREFIX.len()..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[position] = if damaged[position] == b'z' { b'y' } else { b'z' };
            let damaged = String::from_utf8(damaged).expect("still ASCII");
            assert_eq!(damaged.parse::<Ticket>(), Err(TicketError::Checksum), "at {position}");
        }
    }

    #[test]
    fn what_is_no_ticket_is_said_to_be_none() {
        assert_eq!("/ip4/127.0.0.1".parse::<Ticket>(), Err(TicketError::NoTicket));
        assert_eq!("murmur1".parse::<Ticket>(), Err(TicketError::Checksum));
        assert_eq!("murmur10OIl".parse::<Ticket>(), Err(TicketError::Alphabet));
    }
}
