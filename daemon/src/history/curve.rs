//! Values over a time of any length in memory of a set size.

/// Values that are kept: twice as many as a chart of our width has pixels.
const VALUES_MAX: usize = 1500;

/// Values in their order. Where there are too many every second one goes, and from then on every second one is taken.
#[derive(Clone, Debug)]
pub(crate) struct Curve<Value> {
    kept: Vec<Value>,
    /// Of so many values one is kept.
    stride: u64,
    count: u64,
    /// The newest, where it is not kept.
    newest: Option<Value>,
}

impl<Value> Default for Curve<Value> {
    fn default() -> Self {
        Curve { kept: Vec::new(), stride: 1, count: 0, newest: None }
    }
}

impl<Value: Clone> Curve<Value> {
    /// Takes in the next value.
    pub(crate) fn push(&mut self, value: Value) {
        let is_kept = self.count.is_multiple_of(self.stride);
        self.count += 1;
        if !is_kept {
            self.newest = Some(value);
            return;
        }
        self.newest = None;
        self.kept.push(value);
        if self.kept.len() > VALUES_MAX {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Those that are kept, and the newest.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.kept.iter().chain(&self.newest)
    }

    /// The first of all.
    pub(crate) fn first(&self) -> Option<&Value> {
        self.kept.first()
    }

    /// The newest of all.
    pub(crate) fn last(&self) -> Option<&Value> {
        self.iter().next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_evenly_and_ends_with_its_newest_value() {
        let mut curve = Curve::default();
        for value in 0..100_000_u32 {
            curve.push(value);
            assert_eq!(curve.last(), Some(&value));
        }
        let values: Vec<u32> = curve.iter().copied().collect();
        assert!((VALUES_MAX / 2..=VALUES_MAX + 2).contains(&values.len()), "{}", values.len());
        assert_eq!((values[0], curve.stride), (0, 128));
        let gaps = values[..values.len() - 1].windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.into_iter().all(|gap| gap == 128));
    }
}
