//! Members of a synchronous run weigh by their rows, whoever of them is there.

use std::path::PathBuf;

use murmur_protocol::Snapshot;
use murmur_protocol::manifest::{RunManifest, SynchronousSpec, Topology};
use murmur_protocol::numerics::mean;

use super::{Folder, TableStatistics, manifest, open, place};
use crate::data::DataPlace;
use crate::{Device, Engine};

/// Of one member all rows are alike, and so are those of the other: which are held out changes nothing.
fn tables(folder: &Folder) -> [PathBuf; 2] {
    let table = |row: &str, rows: usize| format!("age,ill\n{}", format!("{row}\n").repeat(rows));
    [folder.write("few.csv", &table("30,no", 8)), folder.write("many.csv", &table("50,yes", 24))]
}

/// The run of whoever has the first of both, and statistics of the second as often as it is said.
fn founded(folder: &Folder, [few, many]: &[PathBuf; 2], synchronous: SynchronousSpec, others: usize) -> RunManifest {
    let mut manifest = manifest();
    (manifest.optimizer.batch_sequences, manifest.optimizer.learning_rate) = (4, 0.02);
    manifest.schedule.warmup_steps = 0;
    let told = TableStatistics::gather(&manifest, std::slice::from_ref(many)).expect("statistics");
    let statistics = vec![folder.write("many.json", &told.to_text()); others];
    manifest.synchronous = synchronous;
    let place = DataPlace { statistics, ..place(std::slice::from_ref(few)) };
    place.complete(manifest).expect("a run")
}

fn synchronous(every_steps: u32, slice_bits: u32) -> SynchronousSpec {
    SynchronousSpec { topology: Topology::Ring, every_steps, slice_bits, members_min: 2, ..SynchronousSpec::default() }
}

fn engine(manifest: &RunManifest, file: &PathBuf) -> Engine {
    let corpus = open(manifest, std::slice::from_ref(file)).expect("rows");
    Engine::new(manifest, corpus, [1; 32], Device::Cpu).expect("an engine")
}

#[test]
fn the_mean_of_two_is_that_over_their_rows_however_many_the_founder_knew_of() {
    let folder = Folder::new();
    let files = tables(&folder);
    assert_eq!(founded(&folder, &files, SynchronousSpec::default(), 1).table.rows, 0, "it gossips");
    for (every_steps, others) in [(1, 1), (3, 1), (1, 7), (3, 7)] {
        let manifest = founded(&folder, &files, synchronous(every_steps, 32), others);
        assert_eq!((manifest.table.rows, manifest.table.members), (8 + 24 * others as u64, 1 + others as u32));
        let engines = [0, 1].map(|file| engine(&manifest, &files[file]));
        let begin = engines[0].parameters().expect("parameters");
        let rows = files.each_ref().map(|file| {
            let corpus = open(&manifest, std::slice::from_ref(file)).expect("rows");
            corpus.training_rows().expect("a table") as f32
        });
        // (what each contributes, how far it has come by itself)
        let contributed = |mut engine: Engine| {
            if every_steps == 1 {
                let alone = engine.gradient_of_next_batch().expect("a gradient").values;
                return (engine.contributed_gradient().expect("a gradient").values, alone);
            }
            engine.replica_digest().expect("the first average");
            engine.step(0.0).expect("a step");
            let alone = engine.parameters().expect("parameters");
            (engine.contributed_model().expect("a model"), alone)
        };
        let [(few, of_few), (many, of_many)] = engines.map(contributed);
        let sum: Vec<f32> = few.iter().zip(&many).map(|(one, other)| one + other).collect();
        let mut largest = 0.0_f32;
        for (at, mean) in mean(Snapshot::from(sum), begin.len(), 2).into_iter().enumerate() {
            let of_all = (rows[0] * of_few[at] + rows[1] * of_many[at]) / (rows[0] + rows[1]);
            assert!((mean - of_all).abs() < 1e-5, "{mean} {of_all}");
            largest = largest.max((of_all - (of_few[at] + of_many[at]) / 2.0).abs());
        }
        assert!(largest > 1e-3, "alike they would have another mean: {largest}");
    }
}

/// The founder has statistics of seven other members, and none of them comes: its weight is 0.36, or 5.8 where it has most rows.
#[test]
fn a_member_alone_trains_as_if_it_had_no_statistics_of_others() {
    let folder = Folder::new();
    let files = tables(&folder);
    for (every_steps, slice_bits) in [(1, 32), (4, 32), (4, 8)] {
        for file in &files {
            let manifest = founded(&folder, &files, synchronous(every_steps, slice_bits), 7);
            let mut alike = manifest.clone();
            (alike.table.rows, alike.table.members) = (0, 0);
            let ends = [manifest, alike].map(|manifest| {
                let mut engine = engine(&manifest, file);
                for progress in 0..20 {
                    if every_steps == 1 {
                        let gradient = engine.contributed_gradient().expect("a gradient").values;
                        engine.step_with_sum(Snapshot::from(gradient), 1, (f64::from(progress), 4)).expect("a step");
                        continue;
                    }
                    engine.keep_average().expect("a model");
                    engine.step(f64::from(progress)).expect("a step");
                    if progress % every_steps == every_steps - 1 {
                        let model = engine.contributed_model().expect("a model");
                        engine.average_with_sum(Snapshot::from(model), 1).expect("finite");
                    }
                }
                engine.parameters().expect("parameters")
            });
            let apart = ends[0].iter().zip(&ends[1]).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{apart} every {every_steps} steps");
        }
    }
}
