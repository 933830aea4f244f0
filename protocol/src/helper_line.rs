//! The line that `murmur lend` prints: with it a captain reaches a helper, and both prove that they belong together.
//!
//! `murmurL1` and base58 of: the encoded [`HelperLine`], then the first four bytes of its BLAKE3 ([`pasted`]).

use std::fmt;
use std::str::FromStr;

use bincode::{Decode, Encode};

use crate::codec;
use crate::handshake::OWN_ADDRESSES_MAX;
use crate::pasted::{self, PastedError};
use crate::peer::{Address, PeerId};
use crate::secret::Secret;

const PREFIX: &str = "murmurL1";

/// What stands before the line where a helper prints what to type.
const COMMAND: &str = "--helper ";

/// What a captain needs to know of a helper.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HelperLine {
    /// Who it is.
    pub helper: PeerId,
    /// Where it can be reached, best first; at least one, at most [`OWN_ADDRESSES_MAX`].
    pub addresses: Vec<Address>,
    /// Whoever knows it is the helper's captain: hand the line on with care.
    pub secret: Secret,
}

/// Why a string is no such line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelperLineError {
    /// It does not begin like one.
    #[error("the line of a helper begins with `{PREFIX}`")]
    NoLine,
    /// A character that base58 does not have, or too many of them.
    #[error("the helper's line holds a character that no such line has; was it copied whole?")]
    Alphabet,
    /// The checksum does not match.
    #[error("the helper's line is damaged (its checksum does not match); was it copied whole?")]
    Checksum,
    /// Intact, but made by another version.
    #[error("the helper's line was made by another version of murmur")]
    Version,
}

impl fmt::Display for HelperLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&pasted::write(PREFIX, codec::encode(self)))
    }
}

impl FromStr for HelperLine {
    type Err = HelperLineError;

    fn from_str(text: &str) -> Result<HelperLine, HelperLineError> {
        let body = pasted::read(PREFIX, COMMAND, text).map_err(|error| match error {
            PastedError::Prefix => HelperLineError::NoLine,
            PastedError::Alphabet => HelperLineError::Alphabet,
            PastedError::Checksum => HelperLineError::Checksum,
        })?;
        let line: HelperLine = codec::decode(&body).map_err(|_| HelperLineError::Version)?;
        let is_sound = (1..=OWN_ADDRESSES_MAX).contains(&line.addresses.len())
            && line.addresses.iter().all(Address::is_well_formed);
        if is_sound { Ok(line) } else { Err(HelperLineError::Version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> HelperLine {
        let address = Address::new("/ip4/192.0.2.7/tcp/4001").expect("short");
        let (helper, secret) = (PeerId::from_public_key([9; 32]), Secret::from_bytes([5; 32]));
        HelperLine { helper, addresses: vec![address], secret }
    }

    #[test]
    fn a_line_survives_copy_and_paste_and_is_no_ticket() {
        for text in [format!("  {}\n", line()), format!("--helper {}\n", line())] {
            assert_eq!(text.parse(), Ok(line()));
            assert!(text.parse::<crate::Ticket>().is_err());
        }
    }

    #[test]
    fn what_is_no_line_is_told_apart() {
        assert_eq!("murmur1abc".parse::<HelperLine>(), Err(HelperLineError::NoLine));
        assert_eq!("murmurL1".parse::<HelperLine>(), Err(HelperLineError::Checksum));
        assert_eq!("murmurL10OIl".parse::<HelperLine>(), Err(HelperLineError::Alphabet));
        let text = line().to_string();
        assert_eq!(text[..text.len() - 1].parse::<HelperLine>(), Err(HelperLineError::Checksum));
        let nowhere = HelperLine { addresses: Vec::new(), ..line() };
        assert_eq!(nowhere.to_string().parse::<HelperLine>(), Err(HelperLineError::Version));
    }
}
