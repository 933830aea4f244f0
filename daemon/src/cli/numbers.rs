//! Numbers as they are typed: a wrong one is answered with what the option takes, instead of with how numbers are read.

use std::ops::RangeInclusive;

use crate::settings::no_number;

/// Reads a whole number in `range`. `note` is added to the rule as it is shown, such as "; 0 takes all cores".
pub(super) fn whole<Number: TryFrom<u64>>(
    range: RangeInclusive<u64>,
    note: &'static str,
) -> impl Fn(&str) -> Result<Number, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| Number::try_from(number).ok());
        let no_number = no_number(text);
        number.ok_or_else(|| match *range.end() {
            u64::MAX => format!("{no_number}it takes a whole number from {}{note}", range.start()),
            most => format!("{no_number}it takes a whole number from {} to {most}{note}", range.start()),
        })
    }
}

/// Reads a number that `is_valid` accepts; `rule` says which ones those are.
pub(super) fn decimal(
    is_valid: fn(f64) -> bool,
    rule: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| is_valid(*number));
        number.ok_or_else(|| format!("{}it takes {rule}", no_number(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_is_answered_with_the_range() {
        let threads = whole::<usize>(0..=1024, "; 0 takes all cores");
        assert_eq!(threads("0"), Ok(0));
        let rule = "it takes a whole number from 0 to 1024; 0 takes all cores";
        for wrong in ["-1", "1025", "1.5", "99999999999999999999"] {
            assert_eq!(threads(wrong), Err(rule.to_owned()));
        }
        for word in ["two", "", "1x"] {
            assert_eq!(threads(word), Err(format!("that is no number; {rule}")));
        }
        assert_eq!(whole::<u64>(1..=u64::MAX, "")("0"), Err("it takes a whole number from 1".to_owned()));
        assert!(whole::<u16>(0..=u64::MAX, "")("65536").is_err(), "it does not fit the type");
    }

    #[test]
    fn a_decimal_that_is_no_number_is_answered_with_the_rule() {
        let probability = decimal(|number| number > 0.0 && number <= 1.0, "a number above 0, at most 1");
        assert_eq!(probability("0.5"), Ok(0.5));
        for wrong in ["-0.5", "0", "1.01", "inf"] {
            assert_eq!(probability(wrong), Err("it takes a number above 0, at most 1".to_owned()));
        }
        for word in ["nan", "half"] {
            let said = "that is no number; it takes a number above 0, at most 1";
            assert_eq!(probability(word), Err(said.to_owned()));
        }
    }
}
