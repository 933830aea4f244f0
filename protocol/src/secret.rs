//! The membership secret of a closed run: 32 random bytes that its members have from a ticket.
//!
//! It never travels in a handshake and is never shown by `Debug`; in tickets and in its file it is there to be handed on.

use std::fmt;
use std::str::FromStr;

use bincode::{Decode, Encode};

/// Bytes of a secret: as many as a key of BLAKE3 has. Random ones cannot be guessed, so a proof may be heard by anybody.
pub const SECRET_BYTES: usize = 32;

/// What the members of a closed run know. Its text form, for files, is 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct Secret([u8; SECRET_BYTES]);

/// A text that is no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a membership secret has {} hexadecimal digits and nothing else", 2 * SECRET_BYTES)]
pub struct SecretError;

impl Secret {
    /// A secret of these bytes, which must come from a source of randomness fit for keys.
    pub const fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, to derive keys from.
    pub fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// The text form: 64 lower-case hexadecimal digits.
    pub fn to_text(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_string()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

impl FromStr for Secret {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Secret, SecretError> {
        let hash = blake3::Hash::from_hex(text.trim()).map_err(|_| SecretError)?;
        Ok(Secret(*hash.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_its_text_form_and_is_never_shown_by_accident() {
        let secret = Secret::from_bytes(std::array::from_fn(|index| 7 * index as u8));
        assert_eq!(format!("{}\n", secret.to_text()).parse(), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let long = "ab".repeat(33);
        let sign = format!("+1{}", "00".repeat(31));
        for text in ["", "secret", &"zz".repeat(32), &long, &"é".repeat(32), &sign] {
            assert_eq!(text.parse::<Secret>(), Err(SecretError), "{text}");
        }
    }
}
