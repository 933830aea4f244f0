//! A number of a scenario file: one value, or a range from which every seed draws its own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{F64Deserializer, I64Deserializer, U64Deserializer};
use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// `0.1`, or `[0.0, 0.2]` with both ends possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn<T> {
    /// The smallest that may be drawn.
    pub from: T,
    /// The largest.
    pub to: T,
}

/// What a key holds: a number, or one that is drawn.
pub(super) trait Numbers: fmt::Display {
    /// The smallest and the largest, rounded where they are very large.
    fn ends(&self) -> [f64; 2];
}

impl Numbers for f64 {
    fn ends(&self) -> [f64; 2] {
        [*self; 2]
    }
}

impl Numbers for Drawn<f64> {
    fn ends(&self) -> [f64; 2] {
        [self.from, self.to]
    }
}

impl Numbers for Drawn<usize> {
    fn ends(&self) -> [f64; 2] {
        [self.from as f64, self.to as f64]
    }
}

impl<T: Copy> Drawn<T> {
    /// The same for every seed.
    pub const fn fixed(value: T) -> Drawn<T> {
        Drawn { from: value, to: value }
    }

    /// Any value between, both ends included.
    pub const fn between(from: T, to: T) -> Drawn<T> {
        Drawn { from, to }
    }
}

impl<T: fmt::Display + PartialOrd> fmt::Display for Drawn<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from < self.to { write!(formatter, "[{}, {}]", self.from, self.to) } else { self.from.fmt(formatter) }
    }
}

impl<'file, T: Deserialize<'file> + PartialOrd + Copy + fmt::Display> Deserialize<'file> for Drawn<T> {
    fn deserialize<D: Deserializer<'file>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueOrRange(PhantomData))
    }
}

struct ValueOrRange<T>(PhantomData<T>);

impl<'file, T: Deserialize<'file> + PartialOrd + Copy + fmt::Display> Visitor<'file> for ValueOrRange<T> {
    type Value = Drawn<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number, or a range as [smallest, largest]")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Drawn<T>, E> {
        let deserializer: I64Deserializer<E> = value.into_deserializer();
        T::deserialize(deserializer).map(Drawn::fixed)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Drawn<T>, E> {
        let deserializer: U64Deserializer<E> = value.into_deserializer();
        T::deserialize(deserializer).map(Drawn::fixed)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Drawn<T>, E> {
        let deserializer: F64Deserializer<E> = value.into_deserializer();
        T::deserialize(deserializer).map(Drawn::fixed)
    }

    fn visit_seq<A: SeqAccess<'file>>(self, mut ends: A) -> Result<Drawn<T>, A::Error> {
        let two = || A::Error::custom("a range has two ends, as in [0.0, 0.2]");
        let from: T = ends.next_element()?.ok_or_else(two)?;
        let to: T = ends.next_element()?.ok_or_else(two)?;
        if ends.next_element::<T>()?.is_some() {
            return Err(two());
        }
        // Also refuses what is not a number at all.
        if from <= to {
            Ok(Drawn { from, to })
        } else {
            Err(A::Error::custom(format!("the range [{from}, {to}] is the wrong way round; write [{to}, {from}]")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        share: Drawn<f64>,
        count: Drawn<usize>,
    }

    fn read(share: &str, count: &str) -> Result<File, String> {
        toml::from_str(&format!("share = {share}\ncount = {count}\n")).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn values_and_ranges_are_read() {
        let file = read("[0, 0.5]", "7").expect("sound");
        assert_eq!(file.share, Drawn::between(0.0, 0.5));
        assert_eq!(file.count, Drawn::fixed(7));
        assert_eq!(read("1", "[2, 2]").expect("sound").share, Drawn::fixed(1.0));
    }

    #[test]
    fn mistakes_are_named() {
        let message = |share, count| read(share, count).expect_err("a mistake");
        assert!(message("[0.5, 0.1]", "1").contains("wrong way round; write [0.1, 0.5]"));
        assert!(message("[0.5]", "1").contains("two ends"));
        assert!(message("[0.1, 0.2, 0.3]", "1").contains("two ends"));
        assert!(message("[nan, 0.2]", "1").contains("wrong way round"));
        assert!(message("\"much\"", "1").contains("expected a number, or a range"));
        assert!(message("0.1", "1.5").contains("expected usize"), "{}", message("0.1", "1.5"));
        assert!(message("0.1", "-1").contains("-1"));
    }
}
