//! One model over several devices of a machine.

use murmur_tests::{Daemon, at_once, text};

use crate::MURMUR;
use crate::place::Place;
use crate::team::{ADAPTERS, LAYERED_RUN, checkpoint};

#[test]
fn a_model_whose_head_is_the_embedding_trains_over_two_devices_with_the_bits_of_one() {
    let _turn = murmur_tests::turn::computes();
    at_once([false, true], |with_base| {
        let place = Place::new(LAYERED_RUN);
        let base = with_base.then(|| place.base_of(&place.tied_run("")));
        let run_file = place.tied_run(if with_base { ADAPTERS } else { "" });
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
        Daemon::spawn(MURMUR, &alone, &[&own[..], &["--device", "cpu"]].concat()).wait_for_end().in_order();
        let finished = over_two.wait_for_end().in_order();
        assert!(checkpoint(&data) == checkpoint(&alone), "model and moments, with adapters: {with_base}");
        assert_eq!(finished.report.expect("it left in order").steps, 30);
    });
}
