//! What runs leave for people and machines: verdicts, numbers, points over time; as tables, JSON and plots.

mod changes;
mod comparison;
pub mod html;
mod page;
mod plots;
mod row;
pub mod svg;
mod sweep;
mod table;
mod windows;

pub use changes::changes;
pub use comparison::{Compared, comparison};
pub use page::{About, page, series};
pub use plots::{Plot, comparison_plots, plots};
pub use row::COLUMNS;
pub use sweep::{Swept, sweep_lines, sweep_page, sweep_series};
pub use table::{Table, bytes, check_counts, count, counted, number, summary};
pub use windows::{Window, windows};

use serde::{Deserialize, Serialize};

use crate::checks::Violation;
use crate::file::Plan;
use crate::record::Sample;
use row::{Row, number_or_nothing};

/// Version of the JSON that a run writes; another one is refused by `murmur sim compare`.
pub const FORMAT: u32 = 4;

/// Both hosts of an exchange tell of its good end.
const SIDES: u64 = 2;

/// All seeds of one scenario, as JSON has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// [`FORMAT`].
    pub format: u32,
    /// A built-in name, or a path.
    pub scenario: String,
    /// Nodes instead of the file's, where the command line said so.
    pub nodes: Option<usize>,
    /// Keys of the file and their values instead of the file's, where the command line said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<(String, String)>,
    /// The seeds that were asked for: from the first, up to but without the second.
    pub seeds_asked: (u64, u64),
    /// Whether it was interrupted: then not all seeds are here.
    pub interrupted: bool,
    /// What the numbers of a point are: [`COLUMNS`].
    pub columns: Vec<String>,
    /// The seeds that have ended, in order.
    pub seeds: Vec<SeedReport>,
}

/// One seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Hosts over the whole run, joiners included.
    pub nodes: usize,
    /// What the file left open and the seed decided.
    pub drawn: Vec<(String, String)>,
    /// When the calm began.
    pub faults_end_seconds: f64,
    /// What went wrong for a while, in order of its beginning.
    pub windows: Vec<Window>,
    /// What every check says that was asked.
    pub verdicts: Vec<Verdict>,
    /// Names of the checks that could not fail in this run, and so say nothing of it.
    #[serde(default)]
    pub not_asked: Vec<String>,
    /// The end in numbers.
    pub summary: Summary,
    /// The swarm over time.
    pub series: Vec<Point>,
    /// Events and effects of all nodes.
    pub trace_entries: u64,
    /// BLAKE3 over them in hexadecimal: equal for equal runs on any machine.
    pub trace_digest: String,
    /// Length of the run on the virtual clock.
    pub simulated_seconds: f64,
    /// And on this machine's; the one value here that differs from run to run.
    pub real_seconds: f64,
}

/// What one check says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its name.
    pub check: String,
    /// What it found against the run; `None` where the run passes.
    pub finding: Option<String>,
}

/// A swarm at one moment. Counts are sums over all nodes since the beginning. In JSON it is a row of [`COLUMNS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Row", from = "Row")]
pub struct Point {
    /// Virtual time of the point, in seconds.
    pub seconds: f64,
    /// Honest nodes with a model.
    pub nodes: usize,
    /// Mean of their losses.
    pub loss: f64,
    /// The worst of them.
    pub worst_loss: f64,
    /// Root of the mean squared distance of their models from the mean.
    pub disagreement: f64,
    /// The largest of these distances.
    pub worst_disagreement: f64,
    /// Steps of all trainers.
    pub steps: u64,
    /// Exchanges that ended well; one counts once.
    pub exchanges_completed: u64,
    /// Sides of exchanges that gave up after the beginning; of many only one does, as the other is gone or does not notice.
    pub failed_sides: u64,
    /// Control messages sent.
    pub control_messages: u64,
    /// Bytes of them.
    pub control_bytes: u64,
    /// Bytes of payloads sent.
    pub payload_bytes: u64,
    /// Nodes whose process runs, those without a model and those that deceive included.
    pub running: usize,
}

/// The end of a run in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean of the nodes' losses.
    #[serde(deserialize_with = "number_or_nothing")]
    pub loss: f64,
    /// The worst node's.
    #[serde(deserialize_with = "number_or_nothing")]
    pub worst_loss: f64,
    /// Root of the mean squared distance of the models from the mean when learning ended: what exchanges are up against.
    #[serde(deserialize_with = "number_or_nothing")]
    pub disagreement: f64,
    /// The largest distance at the end of the calm.
    #[serde(deserialize_with = "number_or_nothing")]
    pub worst_disagreement_at_end: f64,
    /// Exchanges that ended well; one counts once.
    pub exchanges_completed: u64,
    /// Sides of exchanges that gave up after the beginning.
    #[serde(default)]
    pub failed_sides: u64,
    /// Control messages sent by a node in a round: the time in which it is to start one exchange.
    pub control_messages_per_node_and_round: f64,
    /// Bytes of them.
    pub control_bytes_per_node_and_round: f64,
    /// Bytes of payloads sent by a node in a round.
    pub payload_bytes_per_node_and_round: f64,
    /// Bytes of payloads sent by all.
    pub payload_bytes: u64,
}

impl RunReport {
    /// Seeds in which a check failed.
    pub fn failed(&self) -> impl Iterator<Item = &SeedReport> {
        self.seeds.iter().filter(|seed| !seed.has_passed())
    }
}

impl SeedReport {
    /// Whether every check passes.
    pub fn has_passed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.finding.is_none())
    }
}

impl Verdict {
    /// Of a check that ran.
    pub fn new(check: &str, violation: Option<Violation>) -> Verdict {
        Verdict { check: check.to_owned(), finding: violation.map(|violation| violation.finding) }
    }

    /// Against a run.
    pub fn failed(check: &str, finding: &str) -> Verdict {
        Verdict { check: check.to_owned(), finding: Some(finding.to_owned()) }
    }
}

impl Point {
    /// From the simulator's own.
    pub fn new(sample: &Sample) -> Point {
        Point {
            seconds: sample.at.as_secs_f64(),
            nodes: sample.with_model,
            loss: sample.loss,
            worst_loss: sample.worst_loss,
            disagreement: sample.disagreement,
            worst_disagreement: sample.worst_disagreement,
            steps: sample.steps,
            exchanges_completed: sample.exchanges_completed.div_ceil(SIDES),
            failed_sides: sample.failed_sides,
            control_messages: sample.traffic.control_messages,
            control_bytes: sample.traffic.control_bytes,
            payload_bytes: sample.traffic.payload_bytes,
            running: sample.running,
        }
    }
}

impl Summary {
    /// From the points of a run, and the rounds that its nodes began: the mean steps between exchanges that a node starts make
    /// one, as long as they were at the time.
    pub fn new(plan: &Plan, series: &[Point], rounds: f64) -> Summary {
        let Some(last) = series.last() else { return Summary::default() };
        let learned = series.iter().rev().find(|point| point.seconds <= plan.faults_end.as_secs_f64());
        // Once a run is over there are no rounds any more, and some messages still.
        let trained = series.iter().find(|point| point.steps == last.steps).unwrap_or(last);
        let per_round = |count: u64| if rounds > 0.0 { count as f64 / rounds } else { 0.0 };
        Summary {
            loss: last.loss,
            worst_loss: last.worst_loss,
            disagreement: learned.unwrap_or(last).disagreement,
            worst_disagreement_at_end: last.worst_disagreement,
            exchanges_completed: last.exchanges_completed,
            failed_sides: last.failed_sides,
            control_messages_per_node_and_round: per_round(trained.control_messages),
            control_bytes_per_node_and_round: per_round(trained.control_bytes),
            payload_bytes_per_node_and_round: per_round(trained.payload_bytes),
            payload_bytes: last.payload_bytes,
        }
    }
}
