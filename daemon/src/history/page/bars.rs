//! Who was there when: a bar for each node, with what is known of how its processes began and ended.

use std::fmt::Write;
use std::time::Duration;

use murmur_sim::report::{html, svg::escaped};

use super::{heading, moment, paragraph};
use crate::console::figures::duration;
use crate::history::{Ended, History, Names};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 16.0;
const ROW: f64 = 22.0;
const TOP: f64 = 8.0;

/// Bars of members that were seen by others only, at most.
const SEEN_MAX: usize = 40;

/// Characters of a label that fit beside the bars: an id, and the beginning of a name, wide letters too.
const LABEL_MAX: usize = 20;

/// Places on the axis that say their time.
const TICKS: usize = 4;

/// The bars, and the same as a table.
pub(super) fn presence(text: &mut String, history: &History, names: &Names) {
    heading(text, "Who was there when");
    let seen = history.seen();
    paragraph(
        text,
        "",
        "A bar is the time in which a node's own journal tells. A cross is where it ends without a word: the process was killed, \
         the machine went off, or it lost its disk.",
    );
    if !seen.is_empty() {
        paragraph(
            text,
            "soft",
            "Paler bars are members whose journals were not read: drawn is when they were connected to one of the nodes above.",
        );
    }
    drawing(text, history, names);
    let mut rows = Vec::new();
    for (id, node) in &history.nodes {
        for (session, ended) in node.endings() {
            let words = match ended {
                Ended::Running => "still runs".to_owned(),
                Ended::Unknown => "its journal ends here".to_owned(),
                Ended::InOrder(true) => "its part was complete".to_owned(),
                Ended::InOrder(false) => "left in order".to_owned(),
                Ended::Failed(reason) => format!("failed: {}", names.text(reason)),
                Ended::BrokeOff => "broke off".to_owned(),
            };
            rows.push(vec![names.label(id), moment(session.begin), moment(session.end), words]);
        }
    }
    text.push_str(&html::table(&["node", "from", "to", "and then"], &rows));
}

fn drawing(text: &mut String, history: &History, names: &Names) {
    let seen = history.seen();
    let rows = history.nodes.len() + seen.len().min(SEEN_MAX);
    let height = TOP + ROW * rows as f64 + 24.0;
    let (begin, end) = history.times();
    let length = (end - begin).max(1.0);
    let at = |time: f64| LEFT + (WIDTH - LEFT - RIGHT) * ((time - begin) / length).clamp(0.0, 1.0);
    let _ = writeln!(
        text,
        "<div class=\"wide\"><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\"><title>Who was there when</title>"
    );
    let base = height - 6.0;
    for tick in 0..=TICKS {
        let share = tick as f64 / TICKS as f64;
        let (x, anchor) = (at(begin + share * length), if tick == TICKS { "end" } else { "middle" });
        let words = duration(Duration::try_from_secs_f64(share * length).unwrap_or_default());
        let _ = writeln!(text, "<path class=\"tick\" d=\"M{x:.1} {TOP}V{}\"/>", base - 14.0);
        let _ = writeln!(text, "<text class=\"t\" x=\"{x:.1}\" y=\"{base}\" text-anchor=\"{anchor}\">{words}</text>");
    }
    let label = |text: &mut String, row: usize, id: &str| {
        let (right, y) = (LEFT - 8.0, TOP + ROW * row as f64 + 14.0);
        let mut name = names.label(id);
        if let Some((end, _)) = name.char_indices().nth(LABEL_MAX) {
            name.truncate(end);
            name.pop();
            name.push('\u{2026}');
        }
        let _ = writeln!(
            text,
            "<text class=\"t\" x=\"{right}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
            escaped(&name)
        );
    };
    let bar = |text: &mut String, row: usize, class: &str, (from, to): (f64, f64)| {
        let (x, y, width) = (at(from), TOP + ROW * row as f64 + 4.0, (at(to) - at(from)).max(1.5));
        let _ =
            writeln!(text, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"13\"/>");
    };
    for (row, (id, node)) in history.nodes.iter().enumerate() {
        label(text, row, id);
        for (session, ended) in node.endings() {
            bar(text, row, "bar", (session.begin, session.end));
            if matches!(ended, Ended::BrokeOff | Ended::Failed(_)) {
                let (x, y) = (at(session.end), TOP + ROW * row as f64 + 10.5);
                let (left, right, up, down) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
                let _ = writeln!(
                    text,
                    "<path class=\"bad\" d=\"M{left:.1} {up:.1}L{right:.1} {down:.1}M{left:.1} {down:.1}L{right:.1} {up:.1}\"/>"
                );
            }
        }
    }
    for (index, (id, spans)) in seen.iter().take(SEEN_MAX).enumerate() {
        let row = history.nodes.len() + index;
        label(text, row, id);
        spans.iter().for_each(|span| bar(text, row, "seen", span));
    }
    text.push_str("</svg></div>\n");
    if seen.len() > SEEN_MAX {
        paragraph(text, "soft", &format!("{} more members are not drawn.", seen.len() - SEEN_MAX));
    }
}
