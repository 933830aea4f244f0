//! Teams whose model predicts with the embedding's table, which is the captain's alone.

use super::*;

fn tied(has_adapters: bool, kind: OptimizerKind) -> RunManifest {
    let mut manifest = manifest(has_adapters, kind);
    edit_model(&mut manifest, |model| model.tied_head = true);
    manifest
}

#[test]
fn a_team_with_a_tied_head_trains_with_the_bits_of_one_machine_wherever_it_is_cut() {
    let small = TrainingOptions { micro_batch: Some(2), ..TrainingOptions::default() };
    let one = TrainingOptions { micro_batch: Some(1), recompute: true, ..small };
    for (has_adapters, kind, helpers, options) in [
        (true, OptimizerKind::AdamW, 1, TrainingOptions::default()),
        (true, OptimizerKind::AdamW, 3, small),
        (false, OptimizerKind::AdamW, 1, TrainingOptions::default()),
        (false, OptimizerKind::Muon, 2, small),
        (false, OptimizerKind::AdamW, 3, one),
    ] {
        let manifest = tied(has_adapters, kind);
        // As many layers as there is room for: from none to all but those that helpers have.
        let (least, layer) = captain_needs(&manifest, &options, (Wire::F32, 1, Kernels::Fused));
        for layers in [0, 2, 5] {
            let mut whole = alone(&manifest, options);
            let memory = least + layer / 2 + layers * layer;
            let (mut engine, team) =
                Team::begin(&manifest, base(&manifest), Setting { options, memory, ..setting(helpers) });
            let (expected, found) = (stepped(&mut whole, 8), stepped(&mut engine, 8));
            let where_from = format!("{has_adapters} {kind:?} {:?}", team.layers());
            assert_eq!(found, expected, "{where_from}");
            assert!(team.layers().iter().any(|(who, _)| who.is_some()), "{where_from}");
            assert_same(engine.save().expect("a state"), whole.save().expect("a state"), &where_from);
            let (one, other) = (engine.evaluate().expect("evaluated"), whole.evaluate().expect("evaluated"));
            // Added up by the rows of a microbatch, in 32 bits.
            assert!((one.loss() - other.loss()).abs() < 1e-7 * other.loss(), "{where_from}: {one:?} {other:?}");
        }
    }
}
