//! What has happened: warnings and errors that nobody has seen yet on top, the rest below, the newest first.

use ratatui::layout::Rect;

use super::{Painter, Scene, Tone};
use crate::console::figures::counted;
use crate::observe::NodePicture;
use crate::observe::picture::Event;
use crate::observe::record::Level;

/// Columns of a clock and the space after it.
const CLOCK_COLUMNS: u16 = 9;

pub(super) fn render(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let events = sorted(scene, node);
    let most = events.len().saturating_sub(usize::from(area.height.saturating_sub(1)) / 2);
    list(scene, node, painter, area, scene.view.scroll.min(most), true);
}

/// A few lines of it.
pub(super) fn brief(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    list(scene, node, painter, area, 0, false);
}

fn list(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect, first: usize, is_whole: bool) {
    if area.height == 0 {
        return;
    }
    let events = sorted(scene, node);
    let unseen = events.iter().filter(|event| is_unseen(scene, event)).count() as u64;
    let mut notes = Vec::new();
    if unseen > 0 {
        notes.push(format!("{} not seen (e)", counted(unseen, "warning")));
    }
    if node.missed > 0 {
        notes.push(format!("{} lost", counted(node.missed, "record")));
    }
    painter.title(area, "events", &notes.join(" · "));
    if events.is_empty() {
        let words = if node.events.is_empty() { "nothing has happened" } else { "no event passes the filter" };
        painter.text(area, 0, 1, words, Tone::Faint);
    }
    let mut row = 1;
    for event in events.into_iter().skip(first) {
        if row >= area.height {
            break;
        }
        let tone = match event.facts.level {
            Level::Error => Tone::Bad,
            Level::Warning => Tone::Doubtful,
            Level::Info => Tone::Plain,
        };
        let word = match event.facts.level {
            Level::Error => "error: ",
            Level::Warning => "warning: ",
            Level::Info => "",
        };
        let times = if event.times > 1 { format!(" ({} times)", event.times) } else { String::new() };
        painter.text(area, 0, row, &scene.clock(event.wall), Tone::Faint);
        let hint = event.facts.hint.as_ref().filter(|_| is_whole).map(|hint| (format!("hint: {hint}"), Tone::Faint));
        for (text, tone) in std::iter::once((format!("{word}{}{times}", event.facts.text), tone)).chain(hint) {
            for line in lines(painter, area, &text, is_whole) {
                painter.text(area, CLOCK_COLUMNS, row, &line, tone);
                row += 1;
            }
        }
    }
}

/// The lines of a text beside the clock: all of them, or the beginning.
fn lines(painter: &Painter<'_>, area: Rect, text: &str, is_whole: bool) -> Vec<String> {
    let columns = usize::from(area.width.saturating_sub(CLOCK_COLUMNS));
    if !is_whole || columns < 10 {
        return vec![text.to_owned()];
    }
    let shown = painter.plain(text);
    textwrap::wrap(&shown, columns).into_iter().map(std::borrow::Cow::into_owned).collect()
}

/// Those that the filter lets through: unseen warnings and errors first, then by time, the newest first.
fn sorted<'a>(scene: &Scene<'_>, node: &'a NodePicture) -> Vec<&'a Event> {
    let mut events: Vec<&Event> =
        node.events.iter().rev().filter(|event| scene.view.lets_through(&event.facts.text)).collect();
    events.sort_by_key(|event| !is_unseen(scene, event));
    events
}

fn is_unseen(scene: &Scene<'_>, event: &Event) -> bool {
    let seen = scene.chosen_id().and_then(|id| scene.view.seen.get(id)).copied().unwrap_or(0);
    event.facts.level != Level::Info && event.seq > seen
}
