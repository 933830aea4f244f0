//! `[training]` of a node file: how a machine trains, and with which others.

use std::ffi::OsString;

use clap::{Arg, ValueEnum, value_parser};
use murmur_training::{DeviceChoice, Precision, TrainingOptions};
use serde::{Deserialize, Serialize};

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::{Bench, Daemon, Lend, Machine};
use super::range::Range;
use super::typed::{Typed, option};
use crate::cli::headings::TRAINING;

/// Workers of one node, at most.
const DEVICES_MAX: usize = 64;

/// Threads that train: more of them than any machine has cores are a mistake.
pub(crate) const THREADS: Range<usize> = Range::new(0, 1024).or_zero("takes all cores");

section! {
    /// How a machine trains.
    pub struct TrainingSettings {
        /// auto, cpu or cuda:N; several as cuda:0,cuda:1 train as one node [default: auto, a GPU where there is one, else the CPU].
        ///
        /// A file names several in `devices`.
        device: String = "auto".to_owned() =>
            form("\"auto\", \"cpu\" or \"cuda:N\"", |text| text.parse::<DeviceChoice>().is_ok()),
            such_as(&["cpu", "cuda:0", "cuda:1"]),
            flag_as(Flag::new("device", "DEVICE", TRAINING).of(&[Machine]), set_devices);
        /// Several devices that train as one node, such as ["cuda:0", "cuda:1"]; where it is not empty, `device` is not read.
        /// Each takes a batch of the run's size at every step.
        devices: Vec<String> = Vec::new() =>
            each("a list of \"cpu\" and \"cuda:N\"", is_one_device), at_most(DEVICES_MAX), set_by("device");
        /// Several devices have all of the model each (replicate), or some of its layers each (pipeline); or a GPU takes layer
        /// after layer from the machine's memory (offload); auto takes the first of these that fits [default: auto].
        split: Split = Split::Auto => flag(Flag::new("split", "HOW", TRAINING).of(&[Machine]));
        /// CPU threads that train [default: all cores].
        threads: usize = 0 => range(THREADS), flag(Flag::new("threads", "N", TRAINING).of(&[Machine, Lend, Bench]));
        /// Compute activations again in the backward: less memory, a third more arithmetic.
        recompute: bool = false =>
            flag(Flag::switch("recompute", TRAINING).of(&[Lend, Bench]));
        /// Examples of a batch that are computed at once; 0 chooses. Fewer need less memory.
        micro_batch: usize = 0;
        /// In what transformers multiply matrices: f32 or bf16 [default: f32].
        precision: Precision = Precision::F32 =>
            flag(Flag::new("precision", "PRECISION", TRAINING).of(&[Lend, Bench]));
        /// Bits in which the optimizer's moments of matrices, but for the embedding, are kept. Only on CPUs, and not where
        /// members average gradients.
        moment_bits: u32 = 32 => either(8, 32);
        /// The line that `murmur lend` printed on another machine, which is to hold some of the model's layers; may be repeated.
        helpers: Vec<String> = Vec::new() =>
            secret(), flag(Flag::new("helper", "LINE", TRAINING).of(&[Daemon]));
        /// Bits of a value of activations on their way to helpers and back: 32 is exact.
        stream_bits: u32 = 8 => either(8, 32);
        /// Gigabytes (a billion bytes) that a captain's own layers take at most.
        memory_gigabytes: f64 = 0.0 => range(Range::new(0.0, 1e6).or_zero("what is free"));
        /// Own steps after which this node is done, whatever the swarm's progress; in a synchronous run no later than all.
        steps: u64 = 0 =>
            range(Range::new(1, u64::MAX).or_zero("sets no limit")),
            flag(
                Flag::new("steps", "N", TRAINING).of(&[Daemon]).without_zero("; leave it out to set no limit")
                    .shaped(|arg| arg.display_order(0))
            );
        /// Steps between two evaluations on the held-out slice; 0 evaluates only at the end.
        evaluate_every: u64 = 100;
        /// What to do once the run is complete.
        after_completion: AfterCompletion = AfterCompletion::Serve => flag_as(
            Flag::switch("exit", TRAINING).of(&[Daemon])
                .says("End once the run is complete, instead of staying to give the model to whoever joins; for scripts"),
            |training, exits: bool| {
                training.after_completion = if exits { AfterCompletion::Exit } else { AfterCompletion::Serve };
            }
        );
    }
}

fn is_one_device(text: &str) -> bool {
    text.parse().is_ok_and(|choice: DeviceChoice| choice != DeviceChoice::Auto)
}

/// One device takes the place of several, and several that of one.
fn set_devices(training: &mut TrainingSettings, typed: String) {
    let names: Vec<String> = typed.split(',').map(|name| name.trim().to_owned()).collect();
    (training.device, training.devices) = match names.as_slice() {
        [one] => (one.clone(), Vec::new()),
        _ => (training.device.clone(), names),
    };
}

/// How several devices of a node train one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Replicas where the model fits each device, else a pipeline, else an offloaded model.
    #[default]
    Auto,
    /// Each has the whole model, and takes a batch of the run's size.
    Replicate,
    /// Each has some of its layers, and a batch of the run's size goes through them: for models that do not fit one device.
    Pipeline,
    /// The model lies in the machine's memory, and a GPU takes layer after layer: for models that do not fit GPUs.
    Offload,
}

/// What a node does once the run is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AfterCompletion {
    /// Write the final checkpoint and go.
    Exit,
    /// Stay, answer peers and give the model to whoever joins.
    Serve,
}

impl TrainingSettings {
    /// How the engine is to compute.
    pub fn options(&self) -> TrainingOptions {
        let micro_batch = (self.micro_batch > 0).then_some(self.micro_batch);
        TrainingOptions {
            micro_batch,
            recompute: self.recompute,
            precision: self.precision,
            moments_in_8_bits: self.moment_bits == 8,
            weightless: false,
            kernels: None,
        }
    }
}

impl Typed for Split {
    fn shape(argument: Arg) -> Arg {
        argument.value_parser(value_parser!(Split)).hide_possible_values(true)
    }

    fn words(&self, name: &str) -> Vec<OsString> {
        let value = self.to_possible_value().expect("none is hidden");
        vec![option(name, value.get_name())]
    }
}
