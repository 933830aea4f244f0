//! Which targets count as the likeliest where several classes are.

use super::*;
use crate::gpu::{Argument, bytes_of, bytes_of_mut, of_kind, size};
use crate::ops::cross_entropy::loss_and_hits;

/// More than a block has threads.
const CLASSES: usize = 70;

#[test]
fn of_several_likeliest_the_first_alone_is_a_hit() -> Result<()> {
    let places = [vec![], vec![3, 5], vec![2, 66], vec![65, 66], vec![0, 69], vec![68]];
    let cases: Vec<(&[usize], usize)> =
        (places.iter()).flat_map(|places| [0, 2, 3, 5, 65, 66, 68, 69].map(|target| (&places[..], target))).collect();
    let logits: Vec<f32> =
        cases.iter().flat_map(|(places, _)| (0..CLASSES).map(|class| f32::from(places.contains(&class)))).collect();
    let targets: Vec<u32> = cases.iter().map(|(_, target)| *target as u32).collect();
    let rows = targets.len();
    let expected: Vec<f32> = (0..rows)
        .map(|row| loss_and_hits(&logits[row * CLASSES..(row + 1) * CLASSES], &targets[row..=row]).1 as f32)
        .collect();
    assert_eq!(expected.iter().sum::<f32>(), 6.0);
    for (device, kind) in on_all_devices([Kind::F32, Kind::Bf16]) {
        let allocate = |kind, values| device.allocate(kind, values);
        let (of_logits, of_targets) = (allocate(kind, rows * CLASSES)?, allocate(Kind::U32, rows)?);
        let (losses, hits) = (allocate(Kind::F32, rows)?, allocate(Kind::F32, rows)?);
        if kind == Kind::F32 {
            device.upload(bytes_of(&logits), of_logits.span())?;
        } else {
            let rounded: Vec<u16> = logits.iter().map(|logit| (logit.to_bits() >> 16) as u16).collect();
            device.upload(bytes_of(&rounded), of_logits.span())?;
        }
        device.upload(bytes_of(&targets), of_targets.span())?;
        let spans = [&of_logits, &of_targets, &losses, &hits].map(|memory| Argument::from(memory.span()));
        let arguments = [&spans[..], &[size(CLASSES), 0.0.into()]].concat();
        device.launch(&of_kind("cross_entropy", kind), rows, &arguments)?;
        let mut found = vec![0.0_f32; rows];
        device.download(hits.span(), bytes_of_mut(&mut found))?;
        assert_eq!(found, expected, "{kind:?}");
    }
    Ok(())
}
