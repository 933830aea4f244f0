//! Memory that goes round: what an exchange needs is as large as the model, and asking the system for it every time
//! costs more than the arithmetic (each fresh page is a fault).

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::block_scale::BlockScale;

/// Unused buffers kept, of each kind of element. An exchange uses one or two of each; what is
/// beyond this came from a burst of exchanges and goes back to the system.
const KEPT_MAX: usize = 4;

/// A pool of buffers, shared by all clones. Payloads, corrections and scales made from it return their memory when the
/// last reference to them is dropped, wherever that happens.
#[derive(Clone, Default)]
pub struct Buffers {
    // A lock, because the last reference may be dropped on a network thread while a worker takes a buffer. It is held
    // for a push or a removal from a list of at most `KEPT_MAX`, once or twice an exchange.
    shelves: Arc<Mutex<Shelves>>,
}

/// Unused buffers, at most [`KEPT_MAX`] of each kind.
#[derive(Default)]
pub(crate) struct Shelves {
    bytes: Vec<Vec<u8>>,
    narrow: Vec<Vec<i8>>,
    wide: Vec<Vec<i16>>,
    floats: Vec<Vec<f32>>,
    scales: Vec<Vec<BlockScale>>,
}

/// What a buffer can hold.
pub(crate) trait Element: Copy + Default + 'static {
    /// Where unused buffers of it are kept.
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<Self>>;
}

impl Element for u8 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<u8>> {
        &mut shelves.bytes
    }
}

impl Element for i8 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<i8>> {
        &mut shelves.narrow
    }
}

impl Element for i16 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<i16>> {
        &mut shelves.wide
    }
}

impl Element for f32 {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<f32>> {
        &mut shelves.floats
    }
}

impl Element for BlockScale {
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Vec<BlockScale>> {
        &mut shelves.scales
    }
}

impl Buffers {
    /// An empty pool.
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// A buffer of `length` elements with arbitrary contents.
    pub(crate) fn take<T: Element>(&self, length: usize) -> Pooled<T> {
        let mut values = self.take_from_shelf(length).unwrap_or_default();
        // A buffer keeps its length on the shelf, so that one of the same length is not cleared again.
        values.resize(length, T::default());
        Pooled { values, home: Some(self.clone()) }
    }

    /// The smallest kept buffer that has room.
    fn take_from_shelf<T: Element>(&self, length: usize) -> Option<Vec<T>> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = T::shelf(&mut shelves);
        let fitting = shelf.iter().enumerate().filter(|(_, values)| values.capacity() >= length);
        let (index, _) = fitting.min_by_key(|(_, values)| values.capacity())?;
        Some(shelf.swap_remove(index))
    }

    fn put_back<T: Element>(&self, values: Vec<T>) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = T::shelf(&mut shelves);
        shelf.push(values);
        let dropped = if shelf.len() > KEPT_MAX {
            // The smallest one goes: a larger one serves where it would have.
            let smallest = shelf.iter().enumerate().min_by_key(|(_, values)| values.capacity());
            smallest.map(|(index, _)| index).map(|index| shelf.swap_remove(index))
        } else {
            None
        };
        // Given back to the system without the lock.
        drop(shelves);
        drop(dropped);
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Buffers")
    }
}

/// A vector that returns to its pool, if it has one, when it is dropped.
pub(crate) struct Pooled<T: Element> {
    values: Vec<T>,
    home: Option<Buffers>,
}

impl<T: Element> From<Vec<T>> for Pooled<T> {
    fn from(values: Vec<T>) -> Pooled<T> {
        Pooled { values, home: None }
    }
}

impl<T: Element> Deref for Pooled<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T: Element> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl AsRef<[u8]> for Pooled<u8> {
    fn as_ref(&self) -> &[u8] {
        &self.values
    }
}

impl<T: Element + PartialEq> PartialEq for Pooled<T> {
    fn eq(&self, other: &Pooled<T>) -> bool {
        self.values == other.values
    }
}

impl<T: Element> Drop for Pooled<T> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put_back(std::mem::take(&mut self.values));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_its_last_reference_goes() {
        let buffers = Buffers::new();
        let first = buffers.take::<u8>(1000);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(buffers.take::<u8>(1000).as_ptr(), address);
        assert_eq!(buffers.take::<u8>(10).as_ptr(), address, "a larger one serves as well");
    }

    #[test]
    fn only_a_few_unused_buffers_are_kept_and_the_largest_ones() {
        let buffers = Buffers::new();
        drop((1..=20).map(|length| buffers.take::<i8>(100 * length)).collect::<Vec<_>>());
        let mut kept: Vec<usize> = buffers.shelves.lock().unwrap().narrow.iter().map(Vec::len).collect();
        kept.sort_unstable();
        assert_eq!(kept, [1700, 1800, 1900, 2000]);
    }
}
