//! What sums have in common that are added up in several orders. On a GPU blocks end in any order, so what several of them add to one
//! place has other bits each time: gradients of scales, of biases, and of rows of the embedding.

use std::sync::Arc;

use super::{Accelerator, real};
use crate::gpu::emulated::Emulated;
use crate::optimizer::Moments;

/// How far vectors may be from those of sums in another order, as a share of their norm, also after a few steps with them. The emulated
/// GPU comes to 3e-7; products of a real one have other bits in memory that is aligned otherwise.
const TOLERANCE: f64 = 1e-3;

/// GPUs, and whether each adds up in a fixed order: an emulated one that does, one that does not, and in a build for them a real one.
pub(crate) fn devices_and_order() -> Vec<(Arc<dyn Accelerator>, bool)> {
    let emulated = |device: Option<Arc<Emulated>>| device.map(|device| device as Arc<dyn Accelerator>);
    let ordered = emulated(Emulated::open()).map(|device| (device, true));
    let others = emulated(Emulated::in_any_order()).into_iter().chain(real());
    ordered.into_iter().chain(others.map(|device| (device, false))).collect()
}

/// Asks for the same bits of a device that adds up in a fixed order, and for nearly the same of others.
pub(crate) fn assert_alike(is_ordered: bool, found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if is_ordered {
        assert!(found == expected, "{what}");
        return;
    }
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    let apart = squares(&mut pairs.map(|(found, expected)| f64::from(*found) - f64::from(*expected)));
    let norm = squares(&mut expected.iter().map(|value| f64::from(*value)));
    assert!(apart <= TOLERANCE * norm, "{what}: {apart} of {norm}");
}

/// The same of a loss or a norm.
pub(crate) fn assert_number_alike(is_ordered: bool, found: f64, expected: f64, what: &str) {
    let is_alike = if is_ordered { found == expected } else { (found - expected).abs() <= TOLERANCE * expected.abs() };
    assert!(is_alike, "{what}: {found} {expected}");
}

/// The same of moments.
pub(crate) fn assert_moments_alike(is_ordered: bool, found: &Moments, expected: &Moments, what: &str) {
    for (found, expected) in
        [(&found.first, &expected.first), (&found.second, &expected.second), (&found.average, &expected.average)]
    {
        assert_alike(is_ordered, found, expected, what);
    }
    assert_eq!(found.average_weight, expected.average_weight, "{what}");
}
