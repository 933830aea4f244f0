//! What the fuzz targets promise, on inputs that are kept, on sound ones, and on sound ones with mistakes.

use murmur_protocol::random::spread;
use murmur_tests::fuzz::{TARGETS, Target, corpus};

/// Damaged inputs of each sound one: a second or two in all. `tests/fuzz` has millions.
const DAMAGED: u64 = 60;

#[test]
fn every_target_reads_its_sound_inputs_and_outlives_damaged_ones() {
    for Target { name, read, seeds } in TARGETS {
        for (number, seed) in seeds().into_iter().enumerate() {
            assert!(read(&seed), "{name}: sound input {number} is refused");
            let mut dice = Dice(0);
            for _ in 0..DAMAGED {
                read(&damaged(seed.clone(), &mut dice));
            }
        }
    }
}

/// Numbers in a row that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 += 1;
        (spread(self.0) % end as u64) as usize
    }
}

/// With some bytes changed, left out, doubled, or cut off.
fn damaged(mut bytes: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..1 + dice.below(4) {
        if bytes.is_empty() {
            break;
        }
        let place = dice.below(bytes.len());
        let end = bytes.len().min(place + 1 + dice.below(16));
        match dice.below(5) {
            0 => bytes[place] ^= 1 << dice.below(8),
            1 => bytes[place] = dice.below(256) as u8,
            2 => drop(bytes.drain(place..end)),
            3 => {
                let part = bytes[place..end].to_vec();
                bytes.splice(place..place, part);
            }
            _ => bytes.truncate(place),
        }
    }
    bytes
}

#[test]
fn what_once_broke_a_reader_breaks_none() {
    let mut kept = 0;
    for Target { name, read, .. } in TARGETS {
        for file in std::fs::read_dir(corpus(name)).into_iter().flatten().flatten() {
            read(&std::fs::read(file.path()).expect("a file"));
            kept += 1;
        }
    }
    assert!(kept > 0, "they are not where they are kept");
}

/// CI does not build the fuzzer's own programs: what they name has to be there.
#[test]
fn every_target_is_a_program_of_the_fuzzer() {
    let fuzzer = corpus("..");
    let manifest = std::fs::read_to_string(fuzzer.join("Cargo.toml")).expect("the fuzzer's manifest");
    for Target { name, .. } in TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is no program");
        let program = std::fs::read_to_string(fuzzer.join(format!("fuzz_targets/{name}.rs"))).expect(name);
        let calls = ["write_seeds", "read"].map(|call| program.contains(&format!("fuzz::{call}(\"{name}\"")));
        assert_eq!(calls, [true; 2], "{name} reads another target's inputs");
    }
}
