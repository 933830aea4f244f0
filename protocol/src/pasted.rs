//! A line that people hand on by copy and paste: a prefix that says what it is, and base58 of some bytes and the first four of
//! their BLAKE3. Base58 has no characters that look alike and survives double clicks, line ends and chat programs.

const CHECKSUM_BYTES: usize = 4;

/// The longest line read, in characters after the prefix: eight of the longest addresses fit.
const TEXT_BYTES_MAX: usize = 4096;

/// Why a text is no such line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastedError {
    /// It begins otherwise.
    Prefix,
    /// A character that base58 does not have, or too many of them.
    Alphabet,
    /// The checksum does not match.
    Checksum,
}

/// The line of these bytes.
pub(crate) fn write(prefix: &str, mut bytes: Vec<u8>) -> String {
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(&checksum.as_bytes()[..CHECKSUM_BYTES]);
    format!("{prefix}{}", bs58::encode(bytes).into_string())
}

/// The bytes of a line, which may stand behind the `command` that takes it, and be broken anywhere: terminals and letters do that.
pub(crate) fn read(prefix: &str, command: &str, text: &str) -> Result<Vec<u8>, PastedError> {
    let text = text.trim();
    let text = text.strip_prefix(command).map_or(text, str::trim_start);
    let text = text.strip_prefix(prefix).ok_or(PastedError::Prefix)?;
    let letters: String = text.split_whitespace().collect();
    if letters.len() > TEXT_BYTES_MAX {
        return Err(PastedError::Alphabet);
    }
    let bytes = bs58::decode(letters).into_vec().map_err(|_| PastedError::Alphabet)?;
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(PastedError::Checksum)?;
    let is_whole = blake3::hash(body).as_bytes()[..CHECKSUM_BYTES] == checksum[..];
    if is_whole { Ok(body.to_vec()) } else { Err(PastedError::Checksum) }
}
