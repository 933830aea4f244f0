//! Law: invariant 9 of ten, "same seed, same hash".

use super::Violation;

/// Checks the fingerprints of two runs of one scenario and seed: hash and number of entries.
///
/// # Errors
/// When they differ.
pub fn repeatable(first: ([u8; 32], u64), second: ([u8; 32], u64)) -> Result<(), Violation> {
    if first == second {
        return Ok(());
    }
    let finding = format!("two runs of one seed took {} and {} events and effects, or other ones", first.1, second.1);
    Err(Violation::new("repeatable", finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_hash_is_refused() {
        assert_eq!(repeatable(([1; 32], 5), ([1; 32], 5)), Ok(()));
        assert!(repeatable(([1; 32], 5), ([2; 32], 5)).is_err());
    }
}
