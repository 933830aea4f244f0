//! The numbers that a setting takes: stated once, they check a file, read what is typed, and say themselves in messages, `--help`
//! and the annotated files.

use std::fmt::{self, Display};
use std::str::FromStr;

use clap::builder::ValueParser;

/// A number that a setting can have.
pub trait Number: Copy + Default + PartialOrd + Display + FromStr + Send + Sync + 'static {
    /// Whether it is a whole one.
    const WHOLE: bool = true;

    /// Whether a range that ends here has no end that somebody would want to read.
    fn is_endless(self) -> bool {
        false
    }
}

impl Number for u16 {}
impl Number for u32 {}
impl Number for usize {}

impl Number for u64 {
    fn is_endless(self) -> bool {
        self == u64::MAX
    }
}

impl Number for f64 {
    const WHOLE: bool = false;
}

/// From one number to another, both included, and perhaps 0, which then has a meaning of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range<Value> {
    from: Value,
    to: Value,
    zero: Option<&'static str>,
    unit: &'static str,
}

impl<Value: Number> Range<Value> {
    /// From one number to another.
    pub const fn new(from: Value, to: Value) -> Range<Value> {
        Range { from, to, zero: None, unit: "" }
    }

    /// Or 0, with what that means: "no cap", of whole numbers "takes all cores".
    pub const fn or_zero(self, meaning: &'static str) -> Range<Value> {
        Range { zero: Some(meaning), ..self }
    }

    /// Said behind the largest number: " hours (a year)".
    pub const fn unit(self, unit: &'static str) -> Range<Value> {
        Range { unit, ..self }
    }

    /// Without 0, for what is typed: who means it leaves the option out.
    pub(super) const fn without_zero(self) -> Range<Value> {
        Range { zero: None, ..self }
    }

    /// Whether it takes this number.
    pub fn holds(&self, number: Value) -> bool {
        (self.zero.is_some() && number == Value::default()) || (self.from <= number && number <= self.to)
    }

    /// Reads what is typed; `note` is added to what a wrong number is answered with, such as "; leave it out for none".
    pub fn parser(self, note: &'static str) -> ValueParser {
        ValueParser::new(move |text: &str| {
            let number = text.parse::<Value>().ok().filter(|number| self.holds(*number));
            number.ok_or_else(|| format!("{}it takes {self}{note}", no_number(text)))
        })
    }
}

impl<Value: Number> Display for Range<Value> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { from, to, zero, unit } = self;
        let has_zero_within = *from == Value::default();
        match zero {
            _ if Value::WHOLE => {
                write!(formatter, "a whole number from {from}")?;
                if !to.is_endless() {
                    write!(formatter, " to {to}{unit}")?;
                }
                zero.map_or(Ok(()), |meaning| write!(formatter, "; 0 {meaning}"))
            }
            None => write!(formatter, "{} to {}{unit}", Short(*from), Short(*to)),
            Some(meaning) if has_zero_within => write!(formatter, "0 ({meaning}) to {}{unit}", Short(*to)),
            Some(meaning) => write!(formatter, "0 ({meaning}), or {} to {}{unit}", Short(*from), Short(*to)),
        }
    }
}

/// Said before what an option takes, where a word was typed that is no number at all.
pub(crate) fn no_number(text: &str) -> &'static str {
    if text.parse::<f64>().is_ok_and(|number| !number.is_nan()) { "" } else { "that is no number; " }
}

/// A number with few digits: 1e-12.
pub(super) struct Short<Value>(pub(super) Value);

impl<Value: Number> Display for Short<Value> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let significant = digits.strip_prefix("0.000000").map(|rest| rest.trim_start_matches('0'));
        match significant {
            // Of powers of ten alone: ranges end at such.
            Some("1") => write!(formatter, "1e-{}", digits.len() - 2),
            _ => formatter.write_str(&digits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_itself() {
        let all = [
            (Range::new(1.0, 100.0).to_string(), "1 to 100"),
            (Range::new(0.2, 1e6).or_zero("no cap").to_string(), "0 (no cap), or 0.2 to 1000000"),
            (Range::new(0.0, 1e6).or_zero("no budget").to_string(), "0 (no budget) to 1000000"),
            (Range::new(1e-12, 0.01).to_string(), "1e-12 to 0.01"),
            (Range::new(1e-6, 1e6).to_string(), "0.000001 to 1000000"),
            (Range::new(2_usize, 100).to_string(), "a whole number from 2 to 100"),
            (
                Range::new(0_usize, 1024).or_zero("takes all cores").to_string(),
                "a whole number from 0 to 1024; 0 takes all cores",
            ),
            (Range::new(1, u64::MAX).or_zero("sets no limit").to_string(), "a whole number from 1; 0 sets no limit"),
        ];
        for (said, expected) in all {
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn a_range_holds_its_ends_and_a_zero_with_a_meaning() {
        let cap = Range::new(0.2, 1e6).or_zero("no cap");
        for good in [0.0, 0.2, 5.0, 1e6] {
            assert!(cap.holds(good), "{good}");
        }
        for wrong in [-1.0, 0.1, 1e6 + 1.0, f64::NAN, f64::INFINITY] {
            assert!(!cap.holds(wrong), "{wrong}");
        }
        assert!(!cap.without_zero().holds(0.0) && !Range::new(1, 5_u16).holds(0));
    }
}
