//! The page of `murmur report`: one file without scripts, for somebody who knows nothing of gossip.
//!
//! It says what came of the run first, and how it was measured last. What is not known is said, never drawn as zero.

mod bars;
mod charts;
mod tables;

use std::fmt::Write;

use jiff::Timestamp;
use murmur_sim::report::html;
use murmur_sim::report::svg::escaped;

use super::comparison::Compared;
use super::{History, Names};
use crate::console::figures::{count, counted};

/// What the bars add to the page's style.
const STYLE: &str = "\
:root { --bar: #0072b2; --seen: #9fb6c6; --bad: #b3003c; }
@media screen and (prefers-color-scheme: dark) { :root { --bar: #56b4e9; --seen: #4d6373; --bad: #ff7a9c; } }
.bar { fill: var(--bar); } .seen { fill: var(--seen); } .bad { stroke: var(--bad); stroke-width: 2.5; fill: none; } \
.tick { stroke: var(--line); } .box { white-space: pre-wrap; overflow-wrap: anywhere; } td.box { text-align: left; min-width: 16rem; }
";

/// How a report came to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// What was typed.
    pub(crate) command: String,
    /// When, in seconds since 1970.
    pub(crate) now: f64,
    /// The journals that were read, and how many records each has.
    pub(crate) journals: Vec<(String, u64)>,
    /// Lines that were no records.
    pub(crate) unreadable: u64,
    /// What `murmur local --against alone` has found, where the journals are of it; or why that cannot be read.
    pub(crate) against: Option<Result<Compared, String>>,
}

/// The whole page.
pub(crate) fn page(history: &History, names: &Names, measured: &Measured) -> String {
    let run_name = history.nodes.values().next().map_or("", |node| node.run.run_name.as_str());
    let title = if names.is_redacted() { "A run".to_owned() } else { format!("The run \u{201c}{run_name}\u{201d}") };
    let mut text = html::begin(&title, STYLE);
    paragraph(&mut text, "verdict", &names.verdict(history));
    paragraph(&mut text, "soft", &when(history, measured));
    charts::losses(&mut text, history, names);
    charts::scores(&mut text, history, names);
    charts::agreement(&mut text, history, names);
    bars::presence(&mut text, history, names);
    tables::given(&mut text, history, names);
    tables::joining(&mut text, history, names, measured.against.as_ref());
    tables::traffic(&mut text, history, names);
    tables::exchanges(&mut text, history);
    charts::speed(&mut text, history, names);
    tables::resources(&mut text, history, names);
    tables::events(&mut text, history, names);
    tables::settings(&mut text, history, names);
    how(&mut text, history, names, measured);
    text + html::END
}

fn when(history: &History, measured: &Measured) -> String {
    let (begin, end) = history.times();
    format!("From {} to {}; this page was made at {}.", moment(begin), moment(end), moment(measured.now))
}

/// A time in seconds since 1970, in universal time.
fn moment(seconds: f64) -> String {
    let time = Timestamp::from_second(seconds as i64).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn heading(text: &mut String, words: &str) {
    let _ = writeln!(text, "<h2>{}</h2>", escaped(words));
}

fn paragraph(text: &mut String, class: &str, words: &str) {
    let _ = writeln!(text, "<p class=\"{class}\">{}</p>", escaped(words));
}

fn how(text: &mut String, history: &History, names: &Names, measured: &Measured) {
    heading(text, "How this was measured");
    let versions: std::collections::BTreeSet<&str> =
        history.nodes.values().map(|node| node.run.version.as_str()).filter(|version| !version.is_empty()).collect();
    let versions: Vec<&str> = versions.into_iter().collect();
    paragraph(
        text,
        "",
        &format!(
            "Each node writes a journal of what it does and of what it sees of others. This page was made from {} and \
             nothing else; what others did while none of these nodes was connected to them is not known. Times of nodes on \
             several machines are as exact as their clocks. Nodes ran murmur {}.",
            counted(measured.journals.len() as u64, "journal"),
            if versions.is_empty() { "of an unknown version".to_owned() } else { versions.join(" and ") },
        ),
    );
    let rows: Vec<Vec<String>> =
        measured.journals.iter().map(|(path, records)| vec![names.path(path), count(*records)]).collect();
    text.push_str(&html::table(&["journal", "records"], &rows));
    let lost: u64 = history.nodes.values().map(|node| node.lost).sum();
    let mut missing = Vec::new();
    if lost > 0 {
        missing
            .push(format!("{} missing: old files were dropped, or a disk was full or slow", counted(lost, "record")));
    }
    if measured.unreadable > 0 {
        missing.push(format!(
            "{} could not be read, such as the last one of a process that was killed",
            counted(measured.unreadable, "line")
        ));
    }
    if history.left_out > 0 {
        missing.push(format!("{} of further nodes were left out", counted(history.left_out, "record")));
    }
    let complete = "No record is missing.".to_owned();
    paragraph(text, "soft", &if missing.is_empty() { complete } else { missing.join(". ") + "." });
    let _ = writeln!(text, "<p>The command: <code>{}</code></p>", escaped(&measured.command));
}
