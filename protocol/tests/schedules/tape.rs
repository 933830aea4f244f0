//! Decisions from bytes: what a property test draws and a fuzzer mutates.

/// Reads decisions off a byte string; zeros once it has ended.
pub(crate) struct Tape<'a> {
    bytes: &'a [u8],
}

impl<'a> Tape<'a> {
    /// The decisions that `bytes` stand for.
    pub(crate) fn new(bytes: &'a [u8]) -> Tape<'a> {
        Tape { bytes }
    }

    /// Whether every byte is used up.
    pub(crate) fn has_ended(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        *first
    }

    /// One of `count` choices, from 0; 0 where there is no choice.
    pub(crate) fn choice(&mut self, count: usize) -> usize {
        if count < 2 { 0 } else { usize::from(self.byte()) % count }
    }

    /// Up to `count` bytes as they are.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }
}
