//! Law: "only what is held": a node takes part in exchanges of fragments that it holds, and in no others. What it holds may
//! change: then orders that it has given before may still be carried out, and it gives no more of them.

use murmur_protocol::{Holding, Part};

use super::Violation;
use crate::scenario::HostIndex;

/// Checks a part of the model that a node asks its trainer for, or orders a correction of. `holding`: at present.
///
/// # Errors
/// When the host does not hold it.
pub(crate) fn only_held(host: HostIndex, holding: Holding, part: Part) -> Result<(), Violation> {
    let fragment = part.fragment;
    if holding.holds(fragment.index) {
        return Ok(());
    }
    let finding = format!("host {host} exchanges fragment {} of {}, which it lacks", fragment.index, fragment.count);
    Err(Violation::new("only held", finding))
}

#[cfg(test)]
mod tests {
    use murmur_protocol::{Fragment, Vector};

    use super::*;

    #[test]
    fn a_fragment_that_is_not_held_is_refused() {
        let part = |index| Part { vector: Vector::Model, fragment: Fragment { index, count: 3 } };
        assert_eq!(only_held(0, Holding::of([1]), part(1)), Ok(()));
        assert_eq!(only_held(0, Holding::ALL, part(2)), Ok(()));
        assert!(only_held(0, Holding::of([1]), part(2)).is_err());
    }
}
