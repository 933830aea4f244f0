//! The middle of measured values.

/// The middle value, of an even number of values the mean of the middle two; `None` of no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let is_even = values.len().is_multiple_of(2);
    let (lower, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    Some(if is_even { f64::midpoint(lower.iter().copied().fold(f64::NEG_INFINITY, f64::max), upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_of_an_even_number_the_mean_of_the_middle_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 4.0, 2.0]), Some(3.0));
        assert_eq!(median([5.0]), Some(5.0));
        assert_eq!(median([]), None);
    }
}
