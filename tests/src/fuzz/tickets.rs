//! What is pasted: tickets, lines of helpers, secrets; as text, and as the body of a line whose checksum is right.

use murmur_protocol::handshake::OWN_ADDRESSES_MAX;
use murmur_protocol::helper_line::{HelperLine, HelperLineError};
use murmur_protocol::message::KnownPeer;
use murmur_protocol::ticket::{OTHERS_MAX, Ticket, TicketError};
use murmur_protocol::{Address, PeerId, RunId, Secret, codec};

use super::assert_harmless;

pub(super) fn read(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let checksum = blake3::hash(bytes);
    let body = bs58::encode([bytes, &checksum.as_bytes()[..4]].concat()).into_string();
    let tickets = [text.parse(), format!("murmur1{body}").parse()].map(is_sound_ticket);
    let lines = [text.parse(), format!("murmurL1{body}").parse()].map(is_sound_line);
    let secret = text.parse::<Secret>();
    if let Ok(secret) = &secret {
        assert_eq!(secret.to_text().parse().as_ref(), Ok(secret));
    }
    tickets.contains(&true) || lines.contains(&true) || secret.is_ok()
}

fn is_sound_ticket(ticket: Result<Ticket, TicketError>) -> bool {
    match &ticket {
        Ok(ticket) => {
            assert!(!ticket.addresses.is_empty() && ticket.others.len() <= OTHERS_MAX);
            let others = ticket.others.iter().flat_map(|other| &other.addresses);
            ticket.addresses.iter().chain(others).for_each(|address| assert_harmless(address.as_str()));
            // What is longer than a line may be cannot be told again.
            if let Ok(again) = ticket.to_string().parse::<Ticket>() {
                assert_eq!(&again, ticket);
            }
        }
        Err(error) => assert_harmless(&error.to_string()),
    }
    ticket.is_ok()
}

fn is_sound_line(line: Result<HelperLine, HelperLineError>) -> bool {
    match &line {
        Ok(line) => {
            assert!((1..=OWN_ADDRESSES_MAX).contains(&line.addresses.len()));
            line.addresses.iter().for_each(|address| assert_harmless(address.as_str()));
            assert_eq!(line.to_string().parse().as_ref(), Ok(line));
        }
        Err(error) => assert_harmless(&error.to_string()),
    }
    line.is_ok()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let address = |text| Address::new(text).expect("an address");
    let addresses = vec![address("/ip4/192.0.2.7/tcp/4001"), address("/dns4/example.org/udp/4001/quic-v1")];
    let (peer, secret) = (PeerId::from_public_key([9; 32]), Secret::from_bytes([5; 32]));
    let others = vec![KnownPeer { peer, addresses: addresses.clone() }];
    let ticket =
        Ticket { run: RunId([3; 32]), peer, addresses: addresses.clone(), others, secret: Some(secret.clone()) };
    let line = HelperLine { helper: peer, addresses, secret: secret.clone() };
    vec![
        ticket.to_string().into_bytes(),
        codec::encode(&ticket),
        line.to_string().into_bytes(),
        codec::encode(&line),
        secret.to_text().into_bytes(),
    ]
}
