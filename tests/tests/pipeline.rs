//! One model over several devices of a machine.

use murmur_tests::{Daemon, at_once};

use crate::MURMUR;
use crate::team::{ADAPTERS, Place, checkpoint, text};

#[test]
fn a_model_whose_head_is_the_embedding_trains_over_two_devices_with_the_bits_of_one() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], |with_base| {
        let place = Place::new();
        let base = with_base.then(|| place.base_of(&place.tied_run_file("")));
        let run_file = place.tied_run_file(if with_base { ADAPTERS } else { "" });
        let (settings, data, alone) = (place.at("node.toml"), place.at("pipeline"), place.at("alone"));
        std::fs::write(&settings, "[training]\nmicro_batch = 2\nevaluate_every = 20\n").expect("writable");
        let mut own = vec!["start", text(&run_file), "--steps", "30", "--exit", "--node", text(&settings)];
        own.extend(base.iter().flat_map(|base| ["--base", text(base)]));
        let over_two = [&own[..], &["--device", "cpu,cpu", "--split", "pipeline"]].concat();
        let over_two = Daemon::spawn(MURMUR, &data, &over_two);
        over_two.wait_for_warning("split = pipeline: layers 0");
        // Data is shared out by identity.
        std::fs::create_dir_all(&alone).expect("writable");
        std::fs::copy(data.join("identity.key"), alone.join("identity.key")).expect("copied");
        let one = Daemon::spawn(MURMUR, &alone, &[&own[..], &["--device", "cpu"]].concat()).wait_for_end();
        assert!(one.status.success(), "{}", one.errors);
        let finished = over_two.wait_for_end();
        assert!(finished.status.success(), "{}", finished.errors);
        assert!(checkpoint(&data) == checkpoint(&alone), "model and moments, with adapters: {with_base}");
        assert_eq!(finished.report.expect("it left in order").steps, 30);
    });
}
