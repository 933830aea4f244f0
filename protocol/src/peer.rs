//! Who a peer is and where it can be reached, without a network library.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::text::is_unprintable;

/// The longest address accepted from anybody, in bytes of its text: a relayed QUIC multiaddress with two peer ids
/// takes about 200.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// A node's identity: its ed25519 public key. Shown and parsed in libp2p's form, `12D3KooW…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct PeerId([u8; 32]);

/// What libp2p puts before an ed25519 key: an identity multihash (0x00) of 0x24 bytes, which hold a protobuf with the
/// key's type (field 1: Ed25519 = 1) and its 0x20 bytes (field 2).
const LIBP2P_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// A text or byte string that is no ed25519 peer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an ed25519 peer id (they begin with 12D3KooW)")]
pub struct PeerIdError;

/// As their bytes. Keys hardly ever agree in the first eight, and every look into a map of peers compares several.
impl Ord for PeerId {
    fn cmp(&self, other: &PeerId) -> Ordering {
        let first = |id: &PeerId| id.0.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        first(self).cmp(&first(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for PeerId {
    fn partial_cmp(&self, other: &PeerId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PeerId {
    /// The identity with this ed25519 public key.
    pub const fn from_public_key(key: [u8; 32]) -> PeerId {
        PeerId(key)
    }

    /// The ed25519 public key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// libp2p's binary form, a multihash of 38 bytes.
    pub fn to_multihash_bytes(self) -> [u8; 38] {
        let mut bytes = [0; 38];
        bytes[..6].copy_from_slice(&LIBP2P_PREFIX);
        bytes[6..].copy_from_slice(&self.0);
        bytes
    }

    /// Reads libp2p's binary form.
    ///
    /// # Errors
    /// When the multihash holds anything but an ed25519 key.
    pub fn from_multihash_bytes(bytes: &[u8]) -> Result<PeerId, PeerIdError> {
        let key = bytes.strip_prefix(&LIBP2P_PREFIX).ok_or(PeerIdError)?;
        Ok(PeerId(key.try_into().map_err(|_| PeerIdError)?))
    }

    /// The last eight characters of the text form: enough to tell the peers of a swarm apart in a log.
    pub fn short(&self) -> String {
        let text = self.to_string();
        text[text.len().saturating_sub(8)..].to_owned()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&bs58::encode(self.to_multihash_bytes()).into_string())
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.short())
    }
}

impl FromStr for PeerId {
    type Err = PeerIdError;
    fn from_str(text: &str) -> Result<PeerId, PeerIdError> {
        PeerId::from_multihash_bytes(&bs58::decode(text).into_vec().map_err(|_| PeerIdError)?)
    }
}

/// Where a peer may be reached: a multiaddress in text, without the trailing `/p2p/…`. The core passes it on and never
/// looks inside; the network driver parses it and drops what it cannot use. Views hold many copies, so they are cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Address(Arc<str>);

impl Address {
    /// Wraps an address; `None` where it is empty, longer than [`ADDRESS_BYTES_MAX`], or holds characters that a terminal
    /// would obey rather than show.
    pub fn new(text: impl Into<String>) -> Option<Address> {
        let text: String = text.into();
        let address = Address(text.into());
        address.is_well_formed().then_some(address)
    }

    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the address keeps to the rules of [`new`](Self::new): to be asked of every address that came over the wire.
    pub fn is_well_formed(&self) -> bool {
        !self.0.is_empty() && self.0.len() <= ADDRESS_BYTES_MAX && !self.0.chars().any(is_unprintable)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A range of addresses that one owner may well have to itself, as a number: two peers of one range may be one party. The
/// core compares it and never looks inside; the network driver makes it of the address at which a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct AddressRange(pub u64);

/// A peer of a test.
#[cfg(test)]
pub(crate) fn peer(key: u8) -> PeerId {
    PeerId([key; 32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_id_survives_its_text_form() {
        let peer = PeerId::from_public_key(std::array::from_fn(|index| index as u8));
        let text = peer.to_string();
        assert!(text.starts_with("12D3KooW"), "{text}");
        assert_eq!(text.parse(), Ok(peer));
        assert_eq!("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N".parse::<PeerId>(), Err(PeerIdError));
        assert_eq!("hello".parse::<PeerId>(), Err(PeerIdError));
    }

    #[test]
    fn peers_are_in_the_order_of_their_bytes() {
        for (place, low, high) in [(0, 1, 255), (7, 127, 128), (8, 0, 1), (31, 254, 255)] {
            let with = |byte| std::array::from_fn(|index| if index == place { byte } else { 9 });
            let (lower, higher) = (PeerId::from_public_key(with(low)), PeerId::from_public_key(with(high)));
            assert_eq!((lower.cmp(&higher), higher.cmp(&lower)), (Ordering::Less, Ordering::Greater), "byte {place}");
        }
    }

    #[test]
    fn an_address_is_bounded() {
        assert!(Address::new("/ip4/127.0.0.1/tcp/4001").is_some());
        assert!(Address::new("").is_none());
        assert!(Address::new("x".repeat(ADDRESS_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn an_address_holds_nothing_that_a_terminal_obeys() {
        for bad in ["/dns4/\u{1b}]0;x\u{7}/tcp/1", "/dns4/a\nerror: run", "/dns4/\u{9b}2J", "/dns4/\u{202e}moc"] {
            assert!(Address::new(bad).is_none(), "{bad:?}");
        }
    }
}
