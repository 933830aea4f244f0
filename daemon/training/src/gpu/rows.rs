//! Sums of rows that tokens name, in a GPU's memory: as [`crate::ops::embedding`] has them on the CPU.

use std::collections::BTreeMap;

use candle_core::Result;

use super::{Accelerator, Argument, Kind, Memory, Span, bytes_of, size};

/// Adds each row of `from` to the row of `to` that its number names.
pub(super) fn add_rows(
    device: &dyn Accelerator,
    from: Span,
    (numbers, rows): (Span, usize),
    to: Span,
    width: usize,
) -> Result<()> {
    let spans = [from, numbers, to].map(Argument::from);
    device.launch("embed_backward", rows, &[&spans[..], &[size(width)]].concat())
}

/// As [`crate::ops::embedding::RowSums`].
#[derive(Default)]
pub(super) struct RowSums {
    /// Of each token the number of its row.
    places: BTreeMap<u32, u32>,
    /// Tokens added so far.
    tokens: usize,
    /// `[rows, width]`, zeros where nothing is added: as many rows as the largest batch so far may name.
    sums: Option<Memory>,
    /// Of rows, on their way to a kernel.
    numbers: Option<Memory>,
}

impl RowSums {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.tokens = 0;
    }

    /// Adds `gradient` `[tokens, width]` to the rows of the tokens, of which there are so many different ones.
    pub(super) fn add(
        &mut self,
        device: &dyn Accelerator,
        gradient: Span,
        tokens: &[u32],
        (vocabulary, width): (usize, usize),
    ) -> Result<()> {
        let is_first = self.places.is_empty();
        let places: Vec<u32> = (tokens.iter())
            .map(|token| {
                let next = self.places.len() as u32;
                *self.places.entry(*token).or_insert(next)
            })
            .collect();
        self.tokens += tokens.len();
        let rows = self.tokens.min(vocabulary);
        let sums = match self.sums.take() {
            Some(sums) if sums.span().values >= rows * width => {
                if is_first {
                    device.clear(sums.span())?;
                }
                sums
            }
            small => {
                let sums = device.allocate(Kind::F32, rows * width)?;
                if let Some(small) = small.filter(|_| !is_first) {
                    device.copy(small.span(), sums.span().first(small.span().values))?;
                }
                sums
            }
        };
        let sums = self.sums.insert(sums).span();
        let numbers = self.upload(device, &places)?;
        add_rows(device, gradient, (numbers, places.len()), sums, width)
    }

    /// Adds all to the gradient of the table, and forgets it.
    pub(super) fn add_to(&mut self, device: &dyn Accelerator, to_table: Span, width: usize) -> Result<()> {
        let mut tokens = vec![0; self.places.len()];
        self.places.iter().for_each(|(token, place)| tokens[*place as usize] = *token);
        let numbers = self.upload(device, &tokens)?;
        if let Some(sums) = &self.sums {
            add_rows(device, sums.span(), (numbers, tokens.len()), to_table, width)?;
        }
        self.clear();
        Ok(())
    }

    fn upload(&mut self, device: &dyn Accelerator, numbers: &[u32]) -> Result<Span> {
        let memory = match self.numbers.take().filter(|memory| memory.span().values >= numbers.len()) {
            Some(memory) => memory,
            None => device.allocate(Kind::U32, numbers.len())?,
        };
        let place = self.numbers.insert(memory).span().first(numbers.len());
        device.upload(bytes_of(numbers), place)?;
        Ok(place)
    }
}
