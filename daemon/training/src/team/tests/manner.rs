//! How a machine of a test team behaves: it is killed, hangs or lies.

/// How a machine behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// It is killed before it says this many more words.
    pub(super) words_left: Option<u32>,
    /// It hangs then, where it is not killed.
    pub(super) hangs: bool,
    /// What becomes of states that it sends.
    pub(super) lie: Option<Lie>,
}

/// A state that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lie {
    Garbage,
    Short,
    Long,
    NotFinite,
    Huge,
}

impl Lie {
    pub(super) fn told(self, state: &[u8]) -> Vec<u8> {
        let mut bytes = state.to_vec();
        match self {
            Lie::Garbage => bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * at % 251 + 3) as u8),
            Lie::Short => bytes.truncate(bytes.len() - 4),
            Lie::Long => bytes.extend(vec![0; 1 << 20]),
            Lie::NotFinite => bytes[5..9].copy_from_slice(&f32::INFINITY.to_le_bytes()),
            Lie::Huge => bytes[5..9].copy_from_slice(&1e9_f32.to_le_bytes()),
        }
        bytes
    }

    /// What the captain's owner reads of it.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Lie::Garbage | Lie::Short => "it has another length than a part's state",
            Lie::Long => "are the most",
            Lie::NotFinite => "it holds values that are not finite",
            Lie::Huge => "its parameters are more than 64 times as large as before",
        }
    }
}
