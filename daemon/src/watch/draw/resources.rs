//! What a daemon takes of its machine: processors, memory, disk.

use ratatui::layout::Rect;

use super::curve::{self, Curve};
use super::overview::points;
use super::verdict::spoken;
use super::{Painter, Scene, Tone};
use crate::console::figures::counted;
use crate::console::human_bytes;
use crate::observe::{Metric, NodePicture};

/// Rows above the curves, at most.
const FACTS_MAX: usize = 6;

/// A curve: its title, what it is of, and how its values are written.
type Drawn<'a> = (&'a str, Metric, &'a dyn Fn(f64) -> String);

pub(super) fn render(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let Some(sample) = &node.sample else { return };
    let interval = match sample.interval_steps {
        0.0 => String::new(),
        steps => format!(" · an own exchange every {}", counted(steps.round() as u64, "own step")),
    };
    let mut facts = vec![
        format!(
            "device {} · {} · murmur {}",
            node.run.device,
            counted(node.run.parameters, "parameter"),
            node.run.version
        ),
        format!("step {:.3} s · {:.1} % of the time between steps", sample.step_seconds, 100.0 * sample.boundary_share),
        format!("up {}{interval}", spoken(node.up)),
    ];
    // Addresses are long.
    facts.extend(textwrap::wrap(&sample.reachable, usize::from(area.width)).into_iter().map(String::from));
    let rows = if area.height >= 12 { facts.len().min(FACTS_MAX) as u16 } else { 1 };
    for (row, fact) in (0..rows).zip(facts) {
        painter.text(area, 0, row, &fact, Tone::Plain);
    }
    let bytes = |value: f64| human_bytes(value.max(0.0) as u64);
    let curves: [Drawn<'_>; 3] = [
        ("processors in use", Metric::Processors, &|value: f64| format!("{:.1}", value.max(0.0))),
        ("memory", Metric::Memory, &bytes),
        ("disk free", Metric::DiskFree, &bytes),
    ];
    let left = area.height.saturating_sub(rows);
    let count = (left / 3).clamp(1, 3);
    let height = left / count;
    for (index, (name, metric, shown)) in (0..count).zip(curves) {
        let part = Rect { y: area.y + rows + index * height, height, ..area };
        let now = node.now(metric).map_or("not known here".to_owned(), shown);
        painter.title(part, name, &now);
        let plot = Rect { y: part.y + 1, height: part.height.saturating_sub(1), ..part };
        let curve = [Curve { points: points(scene, node, metric, plot), tone: Tone::Good }];
        curve::draw(painter, plot, scene.window(node), &curve, None, shown);
    }
}
