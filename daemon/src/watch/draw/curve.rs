//! Curves: values over time in a part of the screen, with the greatest and the least value beside them.

use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{Canvas, Line};

use super::{Painter, Tone};
use crate::observe::rings::Point;

/// Columns of the numbers beside a curve, with the space after them.
const LABEL_COLUMNS: u16 = 9;

/// Where values lie further apart in time than this many of the window's parts, there is a gap.
const GAP_PARTS: f64 = 20.0;

/// Values over time, and how they look.
pub(super) struct Curve {
    pub(super) points: Vec<Point>,
    pub(super) tone: Tone,
}

/// The part of the values that is healthy, shaded by lines at its ends.
#[derive(Clone, Copy)]
pub(super) struct Band {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Draws curves between two times. `shown` writes a value beside them.
pub(super) fn draw(
    painter: &mut Painter<'_>,
    area: Rect,
    (from, to): (f64, f64),
    curves: &[Curve],
    band: Option<Band>,
    shown: impl Fn(f64) -> String,
) {
    if area.width <= LABEL_COLUMNS + 2 || area.height == 0 {
        return;
    }
    let values = || curves.iter().flat_map(|curve| &curve.points).flat_map(|point| [point.min, point.max]);
    let ends = band.map(|band| [0.0, band.high * 1.25]);
    let all = || values().chain(ends.into_iter().flatten());
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    let plot = Rect { x: area.x + LABEL_COLUMNS, width: area.width - LABEL_COLUMNS, ..area };
    if values().next().is_none() {
        painter.text(plot, 0, area.height / 2, "nothing yet", Tone::Faint);
        return;
    }
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-9);
    let (low, high) = (if band.is_some() { low } else { low - margin }, high + margin);
    label(painter, area, 0, &shown(high));
    if area.height > 1 {
        label(painter, area, area.height - 1, &shown(low));
    }
    if let Some(band) = band.filter(|_| area.height > 2) {
        for value in [band.low, band.high] {
            let row = row_of(value, low, high, area.height);
            if row > 0 && row + 1 < area.height {
                label(painter, area, row, &shown(value));
            }
            let rule = if painter.look.is_ascii { "." } else { "┄" };
            painter.text(plot, 0, row, &rule.repeat(plot.width.into()), Tone::Faint);
        }
    }
    let gap = (to - from) / GAP_PARTS;
    for curve in curves {
        let style = painter.style(curve.tone);
        let marker = if painter.look.is_ascii { Marker::Custom(mark_of(curve.tone)) } else { Marker::Braille };
        let points = &curve.points;
        let paint = |context: &mut ratatui::widgets::canvas::Context<'_>| {
            let colour = style.fg.unwrap_or_default();
            let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| context.draw(&Line { x1, y1, x2, y2, color: colour });
            for point in points {
                line(point.time, point.min, point.time, point.max);
            }
            for pair in points.windows(2).filter(|pair| pair[1].time - pair[0].time <= gap.max(pair_gap(points))) {
                line(pair[0].time, pair[0].mean, pair[1].time, pair[1].mean);
            }
        };
        Canvas::default()
            .marker(marker)
            .x_bounds([from, to])
            .y_bounds([low, high])
            .paint(paint)
            .render(plot, painter.buffer);
    }
}

/// The usual distance of two points in time, doubled: what is further apart has a gap between.
fn pair_gap(points: &[Point]) -> f64 {
    let mut distances: Vec<f64> = points.windows(2).map(|pair| pair[1].time - pair[0].time).collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).map_or(0.0, |median| 2.0 * median)
}

fn label(painter: &mut Painter<'_>, area: Rect, row: u16, text: &str) {
    let room = Rect { width: LABEL_COLUMNS - 1, ..area };
    painter.text_at_end(room, row, text, Tone::Faint);
}

fn row_of(value: f64, low: f64, high: f64, rows: u16) -> u16 {
    let share = ((high - value) / (high - low)).clamp(0.0, 1.0);
    ((share * f64::from(rows)) as u16).min(rows.saturating_sub(1))
}

fn mark_of(tone: Tone) -> char {
    if tone == Tone::Other { '+' } else { '*' }
}
