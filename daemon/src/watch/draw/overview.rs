//! The first page: is it training, with whom, do they agree, what does it cost, and what has happened.

use ratatui::layout::Rect;

use super::curve::{self, Band, Curve};
use super::{Painter, Scene, Tone, events, peers, traffic, verdict};
use crate::console::figures;
use crate::observe::rings::Point;
use crate::observe::{Metric, NodePicture};

/// Rows of the curves at least, with their title.
const CURVES_MIN: u16 = 5;

/// Columns from which on loss and agreement stand side by side.
const SIDE_BY_SIDE: u16 = 56;

/// Points of a curve for each column of the screen at most.
const POINTS_PER_COLUMN: usize = 8;

pub(super) fn render(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let rows = area.height;
    if rows < CURVES_MIN {
        // What counts, a line each: with whom, what it costs, what was wrong.
        let lines = [with_whom(node), traffic::summary(node, area.width), traffic::machine(node, area.width)];
        for (row, line) in (0..).zip(lines) {
            painter.text(area, 0, row, &line, Tone::Plain);
        }
        return;
    }
    let listed = u16::try_from(peers::listed(scene, node).len().clamp(1, 16)).unwrap_or(16);
    let events = match rows {
        0..10 => 0,
        10..14 => 2,
        14..24 => 4,
        _ => 6 + (rows - 24) / 4,
    };
    let cost = if rows >= 8 { 2 } else { 0 };
    let left = rows - events - cost;
    // The curves have at least half of what is left.
    let members = (listed + 2).min(left / 2);
    let members = if members < 3 { 0 } else { members };
    let curves = left - members;
    let mut y = area.y;
    let mut part = |height: u16| {
        let part = Rect { y, height, ..area };
        y += height;
        part
    };
    draw_curves(scene, node, painter, part(curves));
    peers::table(scene, node, painter, part(members), 0);
    let cost = part(cost);
    painter.text(cost, 0, 0, &traffic::summary(node, area.width), Tone::Plain);
    painter.text(cost, 0, 1, &traffic::machine(node, area.width), Tone::Plain);
    events::brief(scene, node, painter, part(events));
}

fn with_whom(node: &NodePicture) -> String {
    let Some(sample) = &node.sample else { return String::new() };
    let members = figures::counted(sample.peers, "member");
    format!("{members} · {} · {} failed", figures::counted(sample.exchanges, "exchange"), sample.exchanges_failed)
}

fn draw_curves(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    if area.width < SIDE_BY_SIDE {
        loss(scene, node, painter, area);
        return;
    }
    let wide = area.width * 3 / 5;
    loss(scene, node, painter, Rect { width: wide - 1, ..area });
    agreement(scene, node, painter, Rect { x: area.x + wide, width: area.width - wide, ..area });
}

/// The losses: the node's own, and beside it the swarm's where several of its nodes are watched, else that of the last
/// evaluations.
fn loss(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let window = scene.window(node);
    let own = points(scene, node, Metric::Loss, area);
    let others = swarm(scene, node, area);
    let (name, second) = match others {
        Some(others) => ("swarm", others),
        None => ("validation", points(scene, node, Metric::ValidationLoss, area)),
    };
    let last = |points: &[Point]| points.last().map_or("–".to_owned(), |point| format!("{:.3}", point.mean));
    let score = node.sample.as_ref().and_then(|sample| {
        let accuracy = sample.accuracy.map(|share| format!(" · {:.2} % right", 100.0 * share));
        accuracy.or_else(|| sample.r_squared.map(|share| format!(" · R² {share:.3}")))
    });
    // All three fit where the screen is 80 columns wide.
    let name = if score.is_some() && name == "validation" { "valid." } else { name };
    let note = format!("own {} · {name} {}{}", last(&own), last(&second), score.unwrap_or_default());
    painter.title(area, "loss", &note);
    let curves = [Curve { points: second, tone: Tone::Other }, Curve { points: own, tone: Tone::Good }];
    let plot = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    curve::draw(painter, plot, window, &curves, None, |value| format!("{value:.3}"));
}

/// The mean loss of all nodes of the same run, where more than one of them is watched.
fn swarm(scene: &Scene<'_>, node: &NodePicture, area: Rect) -> Option<Vec<Point>> {
    let of_run: Vec<&NodePicture> =
        scene.picture.nodes.values().filter(|other| other.run.run == node.run.run).collect();
    if of_run.len() < 2 {
        return None;
    }
    let of_nodes: Vec<Vec<Point>> = of_run.iter().map(|node| points(scene, node, Metric::Loss, area)).collect();
    Some(mean(&of_nodes, scene.window(node), area.width))
}

/// The mean of nodes in each of so many equal parts of a window: each node counts as one, however often it tells.
fn mean(of_nodes: &[Vec<Point>], (from, to): (f64, f64), parts: u16) -> Vec<Point> {
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let part = |part: u16| {
        let share = |part: u16| f64::from(part) / f64::from(parts);
        let (begin, end) = (share(part), share(part + 1));
        let is_inside = |point: &&Point| (begin..end).contains(&((point.time - from) / (to - from)));
        let inside =
            |points: &Vec<Point>| -> Vec<f64> { points.iter().filter(is_inside).map(|point| point.mean).collect() };
        let means: Vec<f64> = of_nodes.iter().filter_map(|points| mean(&inside(points))).collect();
        let value = mean(&means)?;
        let time = from + (begin + end) / 2.0 * (to - from);
        Some(Point { time, min: value, mean: value, max: value })
    };
    (0..parts).filter_map(part).collect()
}

/// How far the models are apart, with what is healthy.
pub(super) fn agreement(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let ratio = node.sample.as_ref().and_then(|sample| sample.ratio);
    let healthy = node.run.ratio_band;
    let word = match ratio {
        None => "not known yet".to_owned(),
        Some(ratio) if ratio < healthy.low => format!("{ratio:.2}, closer than needed"),
        Some(ratio) if ratio <= healthy.high => format!("{ratio:.2}, good"),
        Some(ratio) => format!("{ratio:.2} ({})", verdict::healthy(healthy)),
    };
    // All of it fits where the screen is 80 columns wide.
    let title = "disagreement ratio";
    let is_short = title.len() + 1 + word.chars().count() > usize::from(area.width);
    painter.title(area, if is_short { "ratio" } else { title }, &word);
    let curves = [Curve { points: points(scene, node, Metric::Ratio, area), tone: Tone::Good }];
    let plot = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let band = Some(Band { low: healthy.low, high: healthy.high });
    curve::draw(painter, plot, scene.window(node), &curves, band, |value| format!("{value:.2}"));
}

/// What a curve of that width shows.
pub(super) fn points(scene: &Scene<'_>, node: &NodePicture, metric: Metric, area: Rect) -> Vec<Point> {
    let (from, to) = scene.window(node);
    let most = POINTS_PER_COLUMN * usize::from(area.width);
    node.series.get(&metric).map_or_else(Vec::new, |series| series.between(from, to, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_nodes_is_not_one_of_their_points() {
        let point = |time: f64, value: f64| Point { time, min: value, mean: value, max: value };
        let often: Vec<Point> = (0..4).map(|second| point(f64::from(second), 1.0)).collect();
        let seldom = vec![point(1.0, 4.0)];
        let values: Vec<(f64, f64)> =
            mean(&[often, seldom], (0.0, 8.0), 2).iter().map(|point| (point.time, point.mean)).collect();
        assert_eq!(values, [(2.0, 2.5)]);
    }
}
