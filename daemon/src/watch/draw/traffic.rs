//! What a swarm costs: bytes each way, now and so far, and with whom exchanges were made.

use ratatui::layout::Rect;

use super::curve::{self, Curve};
use super::overview::points;
use super::verdict::spoken;
use super::{Painter, Scene, Tone, peers};
use crate::console::figures::fitted;
use crate::console::{human_bytes, short};
use crate::observe::{Metric, NodePicture};

/// A line: what goes over the wire.
pub(super) fn summary(node: &NodePicture, columns: u16) -> String {
    let Some(sample) = &node.sample else { return String::new() };
    let rate = |metric| human_bytes(node.now(metric).unwrap_or(0.0).max(0.0) as u64);
    let averaging = match sample.waited_seconds {
        Some(seconds) => format!("waited {seconds:.0} s for others"),
        None => format!("gossip {:.1} % of the time", 100.0 * sample.boundary_share),
    };
    let parts = [
        format!("traffic ↑ {}/s ↓ {}/s", rate(Metric::SentPerSecond), rate(Metric::ReceivedPerSecond)),
        format!("sent {} got {}", human_bytes(sample.sent), human_bytes(sample.received)),
        averaging,
        format!("today {}", human_bytes(sample.today)),
    ];
    fitted(parts, columns.into())
}

/// A line: what it takes of the machine.
pub(super) fn machine(node: &NodePicture, columns: u16) -> String {
    let Some(sample) = &node.sample else { return String::new() };
    let bytes = |bytes: Option<u64>| bytes.map_or("–".to_owned(), human_bytes);
    let processors = node.now(Metric::Processors).map_or("–".to_owned(), |used| format!("{used:.1}"));
    let parts = [
        format!("machine {processors} processors"),
        format!("memory {} (most {})", bytes(sample.memory), bytes(sample.peak_memory)),
        format!("disk {} free", bytes(sample.disk_free)),
        format!("up {}", spoken(node.up)),
    ];
    fitted(parts, columns.into())
}

pub(super) fn render(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let curves = (area.height / 2).max(4).min(area.height);
    let top = Rect { height: curves, ..area };
    let rate = |metric| human_bytes(node.now(metric).unwrap_or(0.0).max(0.0) as u64);
    let note = format!("↑ {}/s ↓ {}/s", rate(Metric::SentPerSecond), rate(Metric::ReceivedPerSecond));
    painter.title(top, "bytes a second", &note);
    let plot = Rect { y: top.y + 1, height: top.height.saturating_sub(1), ..top };
    let both = [
        Curve { points: points(scene, node, Metric::ReceivedPerSecond, plot), tone: Tone::Other },
        Curve { points: points(scene, node, Metric::SentPerSecond, plot), tone: Tone::Good },
    ];
    curve::draw(painter, plot, scene.window(node), &both, None, |value| human_bytes(value.max(0.0) as u64));
    let list = Rect { y: area.y + curves, height: area.height - curves, ..area };
    exchanges(scene, node, painter, list);
}

/// The last exchanges, the newest first.
fn exchanges(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let (done, failed) = node.sample.as_ref().map_or((0, 0), |sample| (sample.exchanges, sample.exchanges_failed));
    painter.title(area, "exchanges", &format!("{done} done · {failed} failed"));
    let shown = |partner: &str| {
        let name = node.peers.get(partner).and_then(|peer| peer.facts.name.as_deref());
        name.map_or_else(|| short(partner).to_owned(), |name| format!("{} {name}", short(partner)))
    };
    let passing =
        node.exchanges.iter().rev().filter(|exchange| scene.view.lets_through(&shown(&exchange.facts.partner)));
    for (row, exchange) in (1..area.height).zip(passing.skip(scene.view.scroll.min(node.exchanges.len()))) {
        let facts = &exchange.facts;
        let tone = match facts.result.as_str() {
            "done" | "rejected" => Tone::Plain,
            _ => Tone::Doubtful,
        };
        let number = |value: Option<f64>, shown: &dyn Fn(f64) -> String| value.map_or(String::new(), shown);
        let bytes = match (facts.sent, facts.received) {
            (None, None) => String::new(),
            (sent, received) => {
                format!("↑ {} ↓ {}", human_bytes(sent.unwrap_or(0)), human_bytes(received.unwrap_or(0)))
            }
        };
        let cells = [
            (scene.clock(exchange.wall), 8, Tone::Faint),
            (shown(&facts.partner), 17, tone),
            (peers::outcome(facts), 9, tone),
            (number(facts.distance, &|distance| format!("dist {distance:.4}")), 11, tone),
            (number(facts.seconds, &|seconds| format!("{seconds:.2} s")), 7, tone),
            (bytes, 30, tone),
        ];
        painter.cells(area, row, &cells);
    }
}
