//! Two live nodes with one identity: a copied data directory.

use std::path::Path;

use murmur_tests::{TINY_RUN, run, succeeded};

use crate::MURMUR;
use crate::place::Place;

/// All of a data directory, as `cp -r` copies it or a backup restores it, while its daemon runs.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("there").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            // What a daemon replaces meanwhile is missing in a copy.
            let _ = std::fs::copy(entry.path(), to);
        }
    }
}

#[test]
fn the_younger_of_two_nodes_with_one_identity_ends_and_all_are_told() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let ticket = founder.ticket();
    let elder = place.spawn("elder", &["join", &ticket]);
    elder.wait_for("an exchange", |report| report.exchanges_completed > 0);
    // Asks for a checkpoint, so that there is one to copy.
    succeeded(&run(MURMUR, &["sample", "--tokens", "4", place.at("elder").to_str().expect("UTF-8")]));
    copy(&place.at("elder"), &place.at("copy"));

    let younger = place.spawn("copy", &["join", &ticket]).wait_for_end();
    assert_eq!(younger.status.code(), Some(5), "{}", younger.errors);
    let key = place.at("copy").join("identity.key");
    let remedy = format!("or delete {} to make this one a node of its own", key.display());
    for said in ["another node runs with this node's identity, since 20", " UTC; this one was started later", &remedy] {
        assert!(younger.errors.contains(said), "{}", younger.errors);
    }
    elder.wait_for_warning("warning: another node with this node's identity has been started at 20");
    founder.wait_for_notice("two nodes run with the identity of peer");
    let before = elder.latest().expect("it reported");
    elder.wait_for("the elder goes on", |report| {
        report.phase == "training" && report.exchanges_completed > before.exchanges_completed + 5
    });

    // As it was told.
    std::fs::remove_file(key).expect("removed");
    let other = place.spawn("copy", &["join", &ticket]);
    other.wait_for("a node of its own", |report| report.exchanges_completed > 0);
    for daemon in [other, elder, founder] {
        daemon.stop().in_order();
    }
}

#[test]
fn a_node_that_was_killed_comes_back_at_once_and_is_no_double() {
    let place = Place::new(TINY_RUN);
    let founder = place.start("founder", &[]);
    let ticket = founder.ticket();
    let node = place.spawn("node", &["join", &ticket]);
    node.wait_for("an exchange", |report| report.exchanges_completed > 0);
    node.kill();
    let node = place.spawn("node", &["join", &ticket]);
    node.wait_for("an exchange", |report| report.exchanges_completed > 5);
    let errors = [node.stop(), founder.stop()].map(|finished| finished.errors).concat();
    assert!(!errors.contains("identity"), "{errors}");
}
