//! `[training]` of a node file: how a machine trains, and with which others.

use clap::ValueEnum;
use murmur_training::{DeviceChoice, Precision, TrainingOptions};
use serde::{Deserialize, Serialize};

/// Workers of one node, at most.
const DEVICES_MAX: usize = 64;

/// Threads that train, at most.
pub const THREADS_MAX: usize = 1024;

/// How a machine trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingSettings {
    /// "auto", "cpu" or "cuda:N".
    pub device: String,
    /// Several devices that train as one node, such as ["cuda:0", "cuda:1"]; where it is not empty, `device` is not read.
    /// Each takes a batch of the run's size at every step.
    pub devices: Vec<String>,
    /// Whether several devices have all of the model each, or some of its layers each.
    pub split: Split,
    /// CPU threads that train; 0 takes all cores.
    pub threads: usize,
    /// Compute activations again in the backward instead of keeping them: less memory, a third more arithmetic.
    pub recompute: bool,
    /// Examples of a batch that are computed at once; 0 chooses. Fewer need less memory.
    pub micro_batch: usize,
    /// "f32" or "bf16": in what transformers multiply matrices.
    pub precision: Precision,
    /// Bits in which the optimizer's moments of matrices, but for the embedding, are kept: 8 or 32. Only on CPUs, and not where members
    /// average gradients.
    pub moment_bits: u32,
    /// Lines of helpers, as `murmur lend` prints them: other machines that hold some of the model's layers.
    pub helpers: Vec<String>,
    /// Bits of a value of activations on their way to helpers and back: 8, or 32 for what is exact.
    pub stream_bits: u32,
    /// Gigabytes (10⁹ bytes) that a captain's own layers take at most; 0: what is free.
    pub memory_gigabytes: f64,
    /// Steps after which this node is done, whatever the swarm's progress; 0 sets no limit of its own.
    pub steps: u64,
    /// Steps between two evaluations on the held-out slice; 0 evaluates only at the end.
    pub evaluate_every: u64,
    /// What to do once the run is complete.
    pub after_completion: AfterCompletion,
}

/// How several devices of a node train one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// A pipeline where the model does not fit each device, else replicas.
    #[default]
    Auto,
    /// Each has the whole model, and takes a batch of the run's size.
    Replicate,
    /// Each has some of its layers, and a batch of the run's size goes through them: for models that do not fit one device.
    Pipeline,
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

    /// Checks what serde cannot: the first value out of its range, as (field, value, rule).
    ///
    /// # Errors
    /// That value.
    pub(super) fn validate(&self) -> Result<(), (&'static str, String, &'static str)> {
        if self.device.parse::<DeviceChoice>().is_err() {
            return Err(("training.device", format!("{:?}", self.device), "\"auto\", \"cpu\" or \"cuda:N\""));
        }
        let names = |text: &String| text.parse().is_ok_and(|choice: DeviceChoice| choice != DeviceChoice::Auto);
        if let Some(bad) = self.devices.iter().find(|text| !names(text)) {
            return Err(("training.devices", format!("{bad:?}"), "a list of \"cpu\" and \"cuda:N\""));
        }
        if self.devices.len() > DEVICES_MAX {
            return Err(("training.devices", format!("{} of them", self.devices.len()), "at most 64"));
        }
        if ![8, 32].contains(&self.moment_bits) {
            return Err(("training.moment_bits", self.moment_bits.to_string(), "8 or 32"));
        }
        if ![8, 32].contains(&self.stream_bits) {
            return Err(("training.stream_bits", self.stream_bits.to_string(), "8 or 32"));
        }
        if !(0.0..=1e6).contains(&self.memory_gigabytes) {
            return Err(("self.memory_gigabytes", self.memory_gigabytes.to_string(), "0 (what is free) to 1000000"));
        }
        if self.threads > THREADS_MAX {
            return Err(("training.threads", self.threads.to_string(), "0 (all cores) to 1024"));
        }
        Ok(())
    }
}

impl Default for TrainingSettings {
    fn default() -> Self {
        TrainingSettings {
            device: "auto".to_owned(),
            devices: Vec::new(),
            split: Split::Auto,
            threads: 0,
            recompute: false,
            micro_batch: 0,
            precision: Precision::F32,
            moment_bits: 32,
            helpers: Vec::new(),
            stream_bits: 8,
            memory_gigabytes: 0.0,
            steps: 0,
            evaluate_every: 100,
            after_completion: AfterCompletion::Serve,
        }
    }
}
