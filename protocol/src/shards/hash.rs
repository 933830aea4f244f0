//! The name of a shard: BLAKE3 of its bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// BLAKE3 of a shard's bytes. In text, 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShardHash([u8; 32]);

/// A text that is no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: it has 64 hexadecimal digits")]
pub struct ShardHashError;

impl ShardHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> ShardHash {
        ShardHash(*blake3::hash(bytes).as_bytes())
    }

    /// The hash itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first eight digits: enough to tell the shards of a run apart in a message.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for ShardHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ShardHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.short())
    }
}

impl FromStr for ShardHash {
    type Err = ShardHashError;
    fn from_str(text: &str) -> Result<ShardHash, ShardHashError> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| ShardHashError)?;
        Ok(ShardHash(*hash.as_bytes()))
    }
}

impl TryFrom<String> for ShardHash {
    type Error = ShardHashError;
    fn try_from(text: String) -> Result<ShardHash, ShardHashError> {
        text.parse()
    }
}

impl From<ShardHash> for String {
    fn from(hash: ShardHash) -> String {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_its_text_form() {
        let hash = ShardHash::of(b"murmuration");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(text.parse::<ShardHash>(), Err(ShardHashError));
        }
    }
}
