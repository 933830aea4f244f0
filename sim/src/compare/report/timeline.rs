//! What every node does at a time, as SVG: a row a node, computing above and sending below; in between it waits.

use std::fmt::Write;

use crate::compare::{Activity, Outcome};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const ROW: f64 = 18.0;
const TOP: f64 = 8.0;

/// Nodes that are drawn.
const ROWS_MAX: usize = 16;

/// The timeline of a run between two times, in seconds.
pub(super) fn svg(run: &Outcome, from: f64, to: f64) -> String {
    let rows = run.nodes.len().min(ROWS_MAX);
    let height = TOP + ROW * rows as f64 + 24.0;
    let at = |seconds: f64| LEFT + (WIDTH - LEFT - 8.0) * ((seconds.clamp(from, to) - from) / (to - from));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\"><title>{}: what each node does</title>\n",
        run.method.name
    );
    for (node, account) in run.nodes.iter().take(rows).enumerate() {
        let y = TOP + ROW * node as f64;
        let _ = writeln!(
            text,
            "<text class=\"t\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">node {node}</text>",
            LEFT - 6.0,
            y + 11.0
        );
        let lived = at(account.lived);
        let _ = writeln!(
            text,
            "<rect class=\"wait\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"9\"/>",
            lived - LEFT
        );
        // Pieces that touch are one: less to draw.
        for (activity, class, top, thick) in
            [(Activity::Computing, "work", 0.0, 9.0), (Activity::Sending, "send", 10.0, 4.0)]
        {
            let mut pieces: Vec<(f64, f64)> = Vec::new();
            for span in
                account.spans.iter().filter(|span| span.activity == activity && span.to > from && span.from < to)
            {
                let (begin, end) = (at(span.from), at(span.to));
                match pieces.last_mut() {
                    Some(last) if begin - last.1 < 0.3 && activity == Activity::Sending => last.1 = last.1.max(end),
                    _ => pieces.push((begin, end)),
                }
            }
            for (begin, end) in pieces {
                // A gap of half a pixel shows where one step ends.
                let width = (end - begin - 0.5).max(0.5);
                let top = y + top;
                let _ = writeln!(
                    text,
                    "<rect class=\"{class}\" x=\"{begin:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{thick}\"/>"
                );
            }
        }
    }
    let base = height - 6.0;
    for (x, anchor, seconds) in [(LEFT, "start", from), (WIDTH - 8.0, "end", to)] {
        let _ =
            writeln!(text, "<text class=\"t\" x=\"{x}\" y=\"{base}\" text-anchor=\"{anchor}\">{seconds:.0} s</text>");
    }
    text + "</svg>\n"
}
