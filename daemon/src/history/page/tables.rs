//! What machines gave and took, what failed, what was said, and the settings.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use murmur_protocol::RunManifest;
use murmur_sim::report::{html, svg::escaped};

use super::{heading, moment, paragraph};
use crate::console::figures::{count, counted, duration, human_bytes, share};
use crate::history::comparison::Compared;
use crate::history::estimate::Estimate;
use crate::history::{History, Names, NodeHistory};
use crate::observe::failures::failure_words;
use crate::observe::record::Level;

/// Columns of the traffic matrix at most; what went to further members is in one column more.
const COLUMNS_MAX: usize = 12;

/// What stands where nothing is known.
const UNKNOWN: &str = "not known";

fn spoken(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Tokens, steps, bytes and time of each node.
pub(super) fn given(text: &mut String, history: &History, names: &Names) {
    heading(text, "What each machine gave");
    let total: f64 = history.nodes.values().map(|node| node.place.tokens).sum();
    let is_single = history.nodes.len() == 1;
    let is_priced = history.nodes.values().any(|node| node.cost() > 0.0);
    let row = |(id, node): (&String, &NodeHistory)| {
        let part = node.place.tokens / total;
        let alone = node.training_seconds - node.accompanied_seconds;
        let useful = node.watched.training_seconds / node.watched.seconds;
        let mut row = vec![names.label(id), count(node.place.tokens as u64)];
        if !is_single {
            row.push(if part.is_finite() { share(part) } else { UNKNOWN.to_owned() });
        }
        row.extend([
            count(node.steps_done),
            spoken(3600.0 * node.hours()),
            if useful.is_finite() { share(useful.min(1.0)) } else { UNKNOWN.to_owned() },
            spoken(alone),
            human_bytes(node.place.sent),
            human_bytes(node.received),
        ]);
        if is_priced {
            let (cost, millions) = (node.cost(), node.place.tokens / 1e6);
            row.push(if cost > 0.0 { format!("{cost:.2}") } else { UNKNOWN.to_owned() });
            row.push(if cost > 0.0 && millions > 0.0 { format!("{:.3}", cost / millions) } else { UNKNOWN.to_owned() });
        }
        row
    };
    let rows: Vec<Vec<String>> = history.nodes.iter().map(row).collect();
    let mut head = vec!["node", "tokens or images"];
    head.extend((!is_single).then_some("share"));
    head.extend(["steps", "was there", "of it training", "trained alone", "sent", "received"]);
    if is_priced {
        head.extend(["cost", "cost of a million"]);
    }
    text.push_str(&html::table(&head, &rows));
    let swarm: f64 = history
        .nodes
        .values()
        .filter(|node| node.watched.training_seconds > 0.0)
        .map(|node| node.watched.tokens / node.watched.training_seconds)
        .sum();
    let (together, who) = if is_single { ("", "it trains") } else { ("Together ", "all of them train") };
    let mut words = format!(
        "{together}{} in training, which is {} a second while {who}. Steps that were lost with a process and done again \
         are counted both times.",
        count(total as u64),
        count(swarm as u64)
    );
    if is_priced {
        words.push_str(
            " Costs are hours times the price of an hour in each node's file (stay.price_per_hour), in its currency.",
        );
    }
    if history.nodes.values().any(|node| !node.are_tokens_counted) {
        words.push_str(" Tokens are estimated from the speed: the journals do not say how many a step has.");
    }
    paragraph(text, "soft", &words);
}

/// What can be said of whether joining helped.
pub(super) fn joining(text: &mut String, history: &History, names: &Names, against: Option<&Result<Compared, String>>) {
    heading(text, "Did joining help?");
    if let Some(Err(reason)) = against {
        let words = "What `murmur local --against alone` has measured is here, but cannot be read";
        paragraph(text, "", &format!("{words}: {reason}."));
    }
    if let Some(Ok(compared)) = against {
        paragraph(text, "", &compared.sentence());
        let head = ["", "together", "alone", "difference", "least", "most", "measurable"];
        text.push_str(&html::table(&head, &compared.rows()));
        paragraph(
            text,
            "soft",
            "Measured by `murmur local --against alone`: the same daemons with the same data, threads and length, once together and \
             once each for itself. Differences are together less alone; least and most are over the seeds.",
        );
        return;
    }
    paragraph(
        text,
        "",
        "Nobody knows how a node would have gone on alone, so this is an estimate: a line through its losses on held-out data from \
         the time before its first exchange, drawn on to later steps. To measure it, `murmur local --against alone` trains the \
         same once together and once alone.",
    );
    let words = |node: &NodeHistory| match Estimate::of(node) {
        _ if node.is_synchronous => "cannot be estimated: in a synchronous run nobody trains alone".to_owned(),
        Estimate::Copied => "cannot be estimated: it began with a model of the others".to_owned(),
        Estimate::NeverTogether => "cannot be estimated: it completed no exchange".to_owned(),
        Estimate::HardlyAlone => {
            "cannot be estimated: it was alone for too short a time before its first exchange".to_owned()
        }
        Estimate::HardlyTogether => {
            "cannot be estimated: too little is known of the time after its first exchange".to_owned()
        }
        Estimate::Known { steps, alone, error, measured } => {
            let gained = alone - measured;
            let figures = format!(
                "at step {} the loss was {measured:.3}, and alone it would have been about {alone:.3}, give or take {error:.3}",
                count(steps)
            );
            match gained {
                gained if gained > error => format!("an estimate: it helped; {figures}"),
                gained if gained < -error => format!("an estimate: it did harm; {figures}"),
                _ => format!("an estimate: no difference can be told; {figures}"),
            }
        }
    };
    let rows: Vec<Vec<String>> = history.nodes.iter().map(|(id, node)| vec![names.label(id), words(node)]).collect();
    left_table(text, &["node", "estimate"], &rows);
}

/// A table whose last column is sentences.
fn left_table(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let cells = |tag: &str, cells: &[String]| -> String {
        let cell = |(index, cell): (usize, &String)| {
            let class = if index + 1 == cells.len() { " class=\"box\" style=\"text-align:left\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escaped(cell))
        };
        cells.iter().enumerate().map(cell).collect()
    };
    let head: Vec<String> = head.iter().map(|&word| word.to_owned()).collect();
    let _ = writeln!(text, "<div class=\"wide\"><table><tr>{}</tr>", cells("th", &head));
    for row in rows {
        let _ = writeln!(text, "<tr>{}</tr>", cells("td", row));
    }
    text.push_str("</table></div>\n");
}

/// Bytes from each node to each member.
pub(super) fn traffic(text: &mut String, history: &History, names: &Names) {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (peer, partner) in history.nodes.values().flat_map(|node| &node.partners) {
        if let Some((sent, received)) = partner.bytes {
            *totals.entry(peer).or_default() += sent + received;
        }
    }
    if history.nodes.len() == 1 && totals.values().all(|bytes| *bytes == 0) {
        return;
    }
    heading(text, "Who sent how much to whom");
    if totals.is_empty() {
        paragraph(text, "", "It is not known: no member was told of.");
        return;
    }
    let mut columns: Vec<(&str, u64)> = totals.into_iter().collect();
    columns.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
    let further: Vec<&str> = columns.split_off(columns.len().min(COLUMNS_MAX)).into_iter().map(|(id, _)| id).collect();
    let columns: Vec<&str> = columns.into_iter().map(|(id, _)| id).collect();
    paragraph(
        text,
        "",
        "Bytes of models and exchanges, from the node of a row to the member of a column, as the sender counted them. Encryption and \
         what holds the swarm together come on top.",
    );
    let mut head = vec!["from \\ to".to_owned()];
    head.extend(columns.iter().map(|id| names.label(id)));
    if !further.is_empty() {
        head.push(format!("{} more", further.len()));
    }
    let row = |(id, node): (&String, &NodeHistory)| {
        let sent = |peer: &&str| node.partners.get(*peer).and_then(|partner| Some(partner.bytes?.0));
        let cell = |peer: &&str| match sent(peer) {
            _ if *peer == id => "\u{2013}".to_owned(),
            Some(bytes) => human_bytes(bytes),
            None => "not told".to_owned(),
        };
        let mut row = vec![names.label(id)];
        row.extend(columns.iter().map(cell));
        if !further.is_empty() {
            row.push(human_bytes(further.iter().filter_map(sent).sum()));
        }
        row
    };
    let rows: Vec<Vec<String>> = history.nodes.iter().map(row).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    text.push_str(&html::table(&head, &rows));
}

/// Exchanges and why some came to nothing.
pub(super) fn exchanges(text: &mut String, history: &History) {
    heading(text, "Exchanges, and what came to nothing");
    let counts: Vec<(u64, u64)> = history.nodes.values().map(NodeHistory::exchanges).collect();
    let (done, failed) = counts.iter().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for partner in history.nodes.values().flat_map(|node| node.partners.values()) {
        for (reason, count) in &partner.failed {
            *reasons.entry(reason).or_default() += count;
        }
    }
    paragraph(
        text,
        "",
        &format!(
            "{} completed, {} broken off.{}",
            count(done),
            count(failed),
            match history.nodes.len() {
                1 => "",
                _ =>
                    " Each node counts those that it took part in, so that one between two nodes above is counted by both.",
            }
        ),
    );
    if reasons.is_empty() {
        return;
    }
    let rows: Vec<Vec<String>> =
        reasons.into_iter().map(|(reason, number)| vec![count(number), failure_words(reason).to_owned()]).collect();
    left_table(text, &["times", "why"], &rows);
}

/// Processor, memory and disk.
pub(super) fn resources(text: &mut String, history: &History, names: &Names) {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| UNKNOWN.to_owned());
    let row = |(id, node): (&String, &NodeHistory)| {
        let device = if node.run.device.is_empty() { UNKNOWN.to_owned() } else { names.text(&node.run.device) };
        let boundary = node.boundary_share().map(|share| format!("{:.2} %", 100.0 * share));
        vec![
            names.label(id),
            device,
            or_unknown(node.cpu_seconds.map(spoken)),
            or_unknown(node.memory_max.map(human_bytes)),
            or_unknown(node.disk_min.map(human_bytes)),
            or_unknown(boundary),
        ]
    };
    let rows: Vec<Vec<String>> = history.nodes.iter().map(row).collect();
    let head = ["node", "trains on", "processor time", "memory at most", "disk free at least", "between steps"];
    text.push_str(&html::table(&head, &rows));
    paragraph(
        text,
        "soft",
        "Between steps: the share of the time in training in which models are averaged and training stands still.",
    );
}

/// Warnings and errors.
pub(super) fn events(text: &mut String, history: &History, names: &Names) {
    heading(text, "What nodes warned of");
    let mut all: Vec<(f64, &String, &crate::observe::record::EventFacts)> = history
        .nodes
        .iter()
        .flat_map(|(id, node)| node.events.iter().map(move |(time, facts)| (*time, id, facts)))
        .collect();
    if all.is_empty() {
        paragraph(text, "", "Of nothing.");
        return;
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let row = |(time, id, facts): (f64, &String, &crate::observe::record::EventFacts)| {
        let level = if facts.level == Level::Error { "error: " } else { "" };
        let hint = facts.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
        vec![moment(time), names.label(id), names.text(&format!("{level}{}{hint}", facts.text))]
    };
    let rows: Vec<Vec<String>> = all.into_iter().map(row).collect();
    left_table(text, &["when", "node", "what"], &rows);
    let more: u64 = history.nodes.values().map(|node| node.events_left_out).sum();
    if more > 0 {
        paragraph(text, "soft", &format!("{} are not shown; the journals have them.", counted(more, "later warning")));
    }
}

/// What of the run file is not the default, and all of it.
pub(super) fn settings(text: &mut String, history: &History, names: &Names) {
    heading(text, "Settings of the run");
    let Some(run) = history.nodes.values().map(|node| &node.run).find(|run| !run.run_file.is_empty()) else {
        paragraph(text, "", "They are not in these journals: an earlier version of murmur wrote them.");
        return;
    };
    paragraph(
        text,
        "",
        &format!(
            "A model of {} parameters. What is not said here has the value that a run file has where it leaves the key out.",
            count(run.parameters)
        ),
    );
    let defaults = RunManifest::default().canonical_text();
    let is_default = |line: &&str| defaults.lines().any(|other| other == *line);
    // Whose run it is, what it is called, and what its data holds: columns, categories, classes.
    let hidden = ["run.name", "finish.", "data.", "table."];
    let is_told = |line: &&str| !names.is_redacted() || !hidden.iter().any(|key| line.starts_with(key));
    let own: Vec<&str> = run.run_file.lines().filter(|line| !is_default(line)).filter(is_told).collect();
    let own = if own.is_empty() { "Nothing else is set.".to_owned() } else { own.join("\n") };
    let _ = writeln!(text, "<pre class=\"box\">{}</pre>", escaped(&names.text(&own)));
    let all: Vec<&str> = run.run_file.lines().filter(is_told).collect();
    let _ = writeln!(
        text,
        "<details><summary>The whole run file</summary><pre class=\"box\">{}</pre></details>",
        escaped(&names.text(&all.join("\n")))
    );
}
