//! Loss, disagreement, traffic and members over simulated time: the median of the seeds, in a band from the smallest to
//! the largest. The phase of faults is shaded, and what goes wrong for a while in it.

use std::collections::BTreeMap;

use murmur_training::median;

use super::svg::{Chart, Curve, CurvePoint, Shade};
use super::windows::SPLIT;
use super::{Point, RunReport, SeedReport};

/// A finished plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Of the file, with `.svg`.
    pub file_name: &'static str,
    /// Its content.
    pub svg: String,
}

/// What a plot may show of a seed: seconds and values.
type Extract = fn(&SeedReport) -> Vec<(f64, f64)>;

/// A plot before there are seeds to show.
struct Kind {
    file_name: &'static str,
    title: &'static str,
    y_label: &'static str,
    /// Label and values of each curve; the first one is the one of comparisons.
    curves: [(&'static str, Extract); 2],
}

const KINDS: [Kind; 4] = [
    Kind {
        file_name: "loss.svg",
        title: "Loss",
        y_label: "loss",
        curves: [("mean of the nodes", loss), ("worst node", worst_loss)],
    },
    Kind {
        file_name: "disagreement.svg",
        title: "Disagreement of the models",
        y_label: "Euclidean distance from the mean",
        curves: [("root mean square", disagreement), ("worst node", worst_disagreement)],
    },
    Kind {
        file_name: "traffic.svg",
        title: "Traffic of a node",
        y_label: "bytes sent per node and second",
        curves: [("payloads", payload_rate), ("control messages", control_rate)],
    },
    Kind {
        file_name: "members.svg",
        title: "Members",
        y_label: "nodes",
        curves: [("alive", alive), ("honest, with a model", with_model)],
    },
];

/// Of the colours of curves: what shades the phase of faults, and what goes wrong in it.
pub(super) const PHASE_COLOUR: usize = 5;
pub(super) const WINDOW_COLOUR: usize = 1;

/// How much shades hide; those of several seeds share it.
const PHASE_OPACITY: f64 = 0.07;
const WINDOW_OPACITY: f64 = 0.3;

/// Of more seeds, only the first ones' windows are shown.
pub(super) const SEEDS_SHADED: usize = 20;

/// Of a chart's height: windows that are no split of the whole network.
const STRIP: f64 = 0.04;

const X_LABEL: &str = "simulated seconds";

/// The plots of a run; none where no seed came to its end.
pub fn plots(report: &RunReport) -> Vec<Plot> {
    plots_of(&report.scenario, &report.seeds.iter().collect::<Vec<_>>())
}

/// The same of some of its seeds.
pub(super) fn plots_of(scenario: &str, seeds: &[&SeedReport]) -> Vec<Plot> {
    let seeds = ended(seeds.iter().copied());
    let (Some(first), Some(last)) = (seeds.first(), seeds.last()) else { return Vec::new() };
    let which = if seeds.len() == 1 {
        format!("seed {}", first.seed)
    } else {
        format!("{} seeds from {} to {}: median and range", seeds.len(), first.seed, last.seed)
    };
    let one_calm = seeds.iter().all(|seed| seed.faults_end_seconds == first.faults_end_seconds);
    let mark = one_calm.then_some((first.faults_end_seconds, "calm"));
    let longest = seeds.iter().map(|seed| seed.faults_end_seconds).fold(0.0, f64::max);
    let shades = shades(&seeds);
    let plot = |kind: &Kind| {
        let curves = kind.curves.iter().map(|(label, extract)| over_seeds(label, &seeds, *extract)).collect();
        let title = format!("{} · {scenario} · {which}", kind.title);
        let chart = Chart { mark, shades: shades.clone(), half: Some(longest), ..chart(kind, title, curves) };
        Plot { file_name: kind.file_name, svg: chart.to_svg() }
    };
    KINDS.iter().map(plot).collect()
}

/// The phase of faults, then the windows of all seeds: what few seeds have is faint.
fn shades(seeds: &[&SeedReport]) -> Vec<Shade> {
    let longest = seeds.iter().map(|seed| seed.faults_end_seconds).fold(0.0, f64::max);
    let phase = Shade {
        from: 0.0,
        to: longest,
        height: 1.0,
        opacity: PHASE_OPACITY,
        colour: PHASE_COLOUR,
        name: "phase of faults".to_owned(),
    };
    let of_seed = |seed: &&SeedReport| {
        let number = seed.seed;
        let shade = move |window: &super::Window| Shade {
            from: window.from_seconds,
            to: window.to_seconds,
            height: if window.what == SPLIT { 1.0 } else { STRIP },
            opacity: WINDOW_OPACITY / seeds.len().min(SEEDS_SHADED) as f64,
            colour: WINDOW_COLOUR,
            name: format!("seed {number}: {} from {:.1} s", window.what, window.from_seconds),
        };
        seed.windows.iter().map(shade).collect::<Vec<Shade>>()
    };
    std::iter::once(phase).chain(seeds.iter().take(SEEDS_SHADED).flat_map(of_seed)).collect()
}

/// The plots of several runs, a curve each.
pub fn comparison_plots(runs: &[(String, RunReport)]) -> Vec<Plot> {
    let seeds = runs.iter().flat_map(|(_, report)| &report.seeds);
    let longest = seeds.map(|seed| seed.faults_end_seconds).fold(0.0, f64::max);
    let plot = |kind: &Kind| {
        let (what, extract) = kind.curves[0];
        let curve = |(name, report): &(String, RunReport)| over_seeds(name, &ended(&report.seeds), extract);
        let title = format!("{} · {what} · median and range of the seeds", kind.title);
        let curves = runs.iter().map(curve).collect();
        let chart = Chart { half: Some(longest).filter(|end| *end > 0.0), ..chart(kind, title, curves) };
        Plot { file_name: kind.file_name, svg: chart.to_svg() }
    };
    KINDS.iter().map(plot).collect()
}

fn chart(kind: &Kind, title: String, curves: Vec<Curve>) -> Chart {
    Chart { title, x_label: X_LABEL.to_owned(), y_label: kind.y_label.to_owned(), curves, ..Chart::default() }
}

/// Those that came to their end: others have nothing to show, and count for no moment.
fn ended<'a>(seeds: impl IntoIterator<Item = &'a SeedReport>) -> Vec<&'a SeedReport> {
    seeds.into_iter().filter(|seed| !seed.series.is_empty()).collect()
}

fn over_seeds(label: &str, seeds: &[&SeedReport], extract: Extract) -> Curve {
    // By milliseconds: seeds share most of their moments, and one that fewer than half have shows those alone.
    let mut moments: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (seconds, value) in seeds.iter().flat_map(|seed| extract(seed)).filter(|(_, value)| value.is_finite()) {
        moments.entry((seconds * 1e3).round() as u64).or_default().push(value);
    }
    let point = |(milliseconds, mut values): (u64, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        let (smallest, largest) = (*values.first()?, *values.last()?);
        let is_shared = 2 * values.len() >= seeds.len();
        let y = median(values).filter(|_| is_shared)?;
        Some(CurvePoint { x: milliseconds as f64 / 1e3, y, smallest, largest })
    };
    Curve { label: label.to_owned(), points: moments.into_iter().filter_map(point).collect() }
}

fn each(seed: &SeedReport, value: fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let with_nodes = seed.series.iter().filter(|point| point.nodes > 0);
    with_nodes.map(|point| (point.seconds, value(point))).collect()
}

fn loss(seed: &SeedReport) -> Vec<(f64, f64)> {
    each(seed, |point| point.loss)
}

fn worst_loss(seed: &SeedReport) -> Vec<(f64, f64)> {
    each(seed, |point| point.worst_loss)
}

fn disagreement(seed: &SeedReport) -> Vec<(f64, f64)> {
    each(seed, |point| point.disagreement)
}

fn worst_disagreement(seed: &SeedReport) -> Vec<(f64, f64)> {
    each(seed, |point| point.worst_disagreement)
}

fn alive(seed: &SeedReport) -> Vec<(f64, f64)> {
    seed.series.iter().map(|point| (point.seconds, point.running as f64)).collect()
}

fn with_model(seed: &SeedReport) -> Vec<(f64, f64)> {
    seed.series.iter().map(|point| (point.seconds, point.nodes as f64)).collect()
}

fn payload_rate(seed: &SeedReport) -> Vec<(f64, f64)> {
    rate(seed, |point| point.payload_bytes)
}

fn control_rate(seed: &SeedReport) -> Vec<(f64, f64)> {
    rate(seed, |point| point.control_bytes)
}

/// Per node and second, between a moment and the one before.
fn rate(seed: &SeedReport, count: fn(&Point) -> u64) -> Vec<(f64, f64)> {
    let pairs = seed.series.windows(2).filter(|pair| pair[1].nodes > 0 && pair[1].seconds > pair[0].seconds);
    let rate = |pair: &[Point]| {
        let sent = count(&pair[1]).saturating_sub(count(&pair[0])) as f64;
        (pair[1].seconds, sent / (pair[1].seconds - pair[0].seconds) / pair[1].nodes as f64)
    };
    pairs.map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_that_did_not_come_to_their_end_take_no_point_from_those_that_did() {
        let point = |second: u32| Point { seconds: f64::from(second), nodes: 4, loss: 2.0, ..Point::default() };
        let whole = SeedReport { series: (0..3).map(point).collect(), ..SeedReport::default() };
        let seeds = vec![SeedReport::default(), whole, SeedReport::default()];
        let report = RunReport { seeds, ..RunReport::default() };
        let plots = comparison_plots(&[("a".to_owned(), report)]);
        let loss = plots.iter().find(|plot| plot.file_name == "loss.svg").expect("a plot");
        assert!(loss.svg.contains("stroke-linecap=\"round\""), "{}", loss.svg);
    }
}
