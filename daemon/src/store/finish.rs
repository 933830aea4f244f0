//! `finish.json`: the founder's order to finish the run, so that a restarted node knows it before any peer answers.

use std::path::Path;

use murmur_protocol::{Ending, FinishOrder, RunEnd, RunManifest};
use serde::{Deserialize, Serialize};

use super::{read_json, write_atomically};
use crate::failure::Failure;

const FILE: &str = "finish.json";

#[derive(Serialize, Deserialize)]
struct Written {
    serial: u64,
    ending: Ending,
    /// In hexadecimal.
    signature: String,
}

/// Keeps an order in a data directory.
///
/// # Errors
/// When it cannot be written.
pub fn keep_finish(root: &Path, order: &FinishOrder) -> std::io::Result<()> {
    let FinishOrder { serial, ending, signature } = order;
    let signature = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    let written = Written { serial: *serial, ending: *ending, signature };
    write_atomically(&root.join(FILE), &serde_json::to_vec_pretty(&written).expect("numbers and a string"))
}

/// What is known of a run's end in a data directory. An order that its founder has not signed does not count: peers tell
/// the right one.
///
/// # Errors
/// When the file is there and cannot be read: a run that is over would be trained on.
pub fn known_end(root: &Path, manifest: &RunManifest) -> Result<RunEnd, Failure> {
    let end = RunEnd::of(manifest);
    let kept = read(root)?;
    let order = kept.clone().filter(|order| end.founder.is_some_and(|founder| order.is_valid(end.run, founder)));
    if order.is_none() && kept.is_some() {
        tracing::warn!("the order to finish the run in {FILE} is not the founder's, and does not count");
    }
    Ok(RunEnd { order, ..end })
}

fn read(root: &Path) -> Result<Option<FinishOrder>, Failure> {
    let without = "the run then goes on until a member tells the order, or the founder gives it again";
    let order = |Written { serial, ending, signature }: Written| {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = signature.as_bytes().chunks(2).map(byte).collect();
        let signature = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or("the signature is none")?;
        Ok(FinishOrder { serial, ending, signature })
    };
    read_json(&root.join(FILE), without, order)
}

#[cfg(test)]
mod tests {
    use murmur_network::{Keypair, peer_id};

    use super::*;
    use crate::failure::ExitCode;

    #[test]
    fn an_order_survives_a_restart_and_a_forged_one_does_not_count() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let founder = Keypair::generate_ed25519();
        let mut manifest = RunManifest::default();
        manifest.run.founder = peer_id(&founder).to_string();
        let sign = |bytes: &[u8]| founder.sign(bytes).map(|bytes| bytes.try_into().expect("ed25519"));
        let ending = Ending { from: 1.5, until: 2.5 };
        let order = FinishOrder::sign(manifest.run_id(), 7, ending, sign).expect("signed");
        let end = |manifest: &RunManifest| known_end(folder.path(), manifest).expect("sound");
        assert_eq!(end(&manifest).at(), None);
        keep_finish(folder.path(), &order).expect("written");
        assert_eq!(end(&manifest).order, Some(order.clone()));
        keep_finish(folder.path(), &FinishOrder { serial: 8, ..order }).expect("written");
        assert_eq!(end(&manifest).order, None, "not what was signed");
        manifest.schedule.total_steps = 300;
        assert_eq!(end(&manifest).at(), Some(300.0));
    }

    #[test]
    fn a_damaged_order_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join(FILE);
        let order = FinishOrder { serial: 1, ending: Ending { from: 1.0, until: 2.0 }, signature: [7; 64] };
        keep_finish(folder.path(), &order).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        for damaged in [&text[..text.len() / 2], "", &text.replace("0707", "07"), &text.replace("0707", "zz07")] {
            std::fs::write(&path, damaged).expect("written");
            let failure = known_end(folder.path(), &RunManifest::default()).expect_err("damaged");
            assert!(failure.code() == ExitCode::Files && failure.to_string().contains(FILE), "{failure}");
        }
    }

    #[test]
    fn an_order_is_read_to_the_last_bit_since_its_signature_covers_them() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let ending = Ending { from: 606.031_098_496_824_8, until: 902.592_005_384_070_5 };
        for step in 0..100 {
            let ending = Ending { until: ending.until + f64::from(step) / 3.0, ..ending };
            let order = FinishOrder { serial: 1, ending, signature: [0; 64] };
            keep_finish(folder.path(), &order).expect("written");
            assert_eq!(read(folder.path()).expect("sound"), Some(order));
        }
    }
}
