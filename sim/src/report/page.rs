//! A run as one page over its seeds: the verdict, a table, charts, and a section for each seed; and its points as
//! comma-separated values.

use std::fmt::Write;

use super::html::{self, linked_table};
use super::plots::{SEEDS_SHADED, plots, plots_of};
use super::row::Row;
use super::svg::escaped;
use super::{COLUMNS, RunReport, SeedReport, bytes, count, counted, number, summary};

/// Seeds with a section of their own, those with a failed check first: the others are a row of the table.
const SECTIONS_MAX: usize = 20;

/// Rows of the table of seeds, those with a failed check first: `series.csv` and `results.json` have all.
const ROWS_MAX: usize = 1000;

const STYLE: &str = "\
.phase { background: rgba(110, 118, 129, .25); } .window { background: rgba(213, 94, 0, .45); } \
td:last-child, td.words { white-space: normal; } .fails { font-weight: 600; }
";

/// What a page says besides the numbers.
#[derive(Clone, Debug)]
pub struct About {
    /// The line that does all of it again.
    pub command: String,
    /// The scenario file.
    pub settings: String,
}

/// The page; `replay` gives the line that runs a seed again.
pub fn page(report: &RunReport, about: &About, replay: impl Fn(u64) -> String) -> String {
    let mut page = html::begin(&format!("Simulation of {}", report.scenario), STYLE);
    verdict(&mut page, report, &replay);
    let (shown, sections) = (chosen(report, ROWS_MAX), chosen(report, SECTIONS_MAX));
    page.push_str("<h2>Seeds</h2>\n");
    let with_section: Vec<u64> = sections.iter().map(|seed| seed.seed).collect();
    let row = |seed: &&SeedReport| {
        let place =
            if with_section.contains(&seed.seed) { format!("#seed-{}", seed.seed) } else { "series.csv".into() };
        (place, cells(seed))
    };
    let head = ["seed", "nodes", "loss", "disagreement", "after the calm", "exchanges", "payloads", "checks"];
    page.push_str(&linked_table(&head, &shown.iter().map(row).collect::<Vec<_>>()));
    page.push_str(
        "<p class=\"soft\">Loss: mean of the nodes at the end. Disagreement: root mean square distance of the models from \
         their mean when learning ends; after the calm, the worst distance. Payloads: bytes sent by all nodes.</p>\n",
    );
    if shown.len() < report.seeds.len() {
        let _ =
            writeln!(page, "<p>{} of {} seeds are shown; results.json has all.</p>", shown.len(), report.seeds.len());
    }
    charts(&mut page, report);
    if report.seeds.len() > 1 {
        page.push_str("<h2>Over the seeds</h2>\n<pre>");
        summary(report).lines().iter().for_each(|line| page.push_str(&format!("{}\n", escaped(line))));
        page.push_str("</pre>\n");
    }
    sections.iter().for_each(|seed| section(&mut page, report, seed, &replay(seed.seed)));
    let settings: Vec<&str> =
        about.settings.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')).collect();
    let _ = writeln!(
        page,
        "<h2>The scenario</h2>\n<pre>{}</pre>\n<p>A range [from, to] is drawn anew for each seed; keys that are not \
         here have their defaults.</p>\n<p>The command: <code>{}</code></p>",
        escaped(&settings.join("\n")),
        escaped(&about.command)
    );
    page + html::END
}

fn verdict(page: &mut String, report: &RunReport, replay: &impl Fn(u64) -> String) {
    let failed: Vec<&SeedReport> = report.failed().collect();
    let all = report.seeds.len();
    let words = match (&failed[..], &report.seeds[..]) {
        (_, []) => "No seed has come to its end.".to_owned(),
        ([], [seed]) => format!("Seed {} holds its {}.", seed.seed, counted(seed.verdicts.len() as u64, "check")),
        ([], _) => format!("All {all} seeds hold their checks."),
        _ => {
            let named: Vec<String> =
                failed.iter().take(10).map(|seed| format!("seed {} ({})", seed.seed, seed.failed_checks())).collect();
            let others = if failed.len() > 10 { ", and others" } else { "" };
            format!("{} of {all} seeds hold; {} fail: {}{others}.", all - failed.len(), failed.len(), named.join(", "))
        }
    };
    let _ = writeln!(page, "<p class=\"verdict\">{}</p>", escaped(&words));
    if report.interrupted {
        let (from, to) = report.seeds_asked;
        let _ = writeln!(page, "<p>Interrupted: {all} of the seeds {from}..{to} have ended.</p>");
    }
    if let Some(seed) = failed.first().copied().or(report.seeds.first()) {
        let which = if failed.is_empty() { "A seed" } else { "The first that fails" };
        let _ = writeln!(page, "<p>{which}, again: <code>{}</code></p>", escaped(&replay(seed.seed)));
    }
}

/// So many seeds in order; those that fail go before others.
fn chosen(report: &RunReport, most: usize) -> Vec<&SeedReport> {
    let passed = report.seeds.iter().filter(|seed| seed.has_passed());
    let mut chosen: Vec<&SeedReport> = report.failed().chain(passed).take(most).collect();
    chosen.sort_by_key(|seed| seed.seed);
    chosen
}

fn cells(seed: &SeedReport) -> Vec<String> {
    let (end, failed) = (&seed.summary, seed.failed_checks());
    let checks = if failed.is_empty() { format!("{} hold", seed.verdicts.len()) } else { format!("FAILS {failed}") };
    let (name, nodes) = (seed.seed.to_string(), seed.nodes.to_string());
    if seed.series.is_empty() {
        let none = || "–".to_owned();
        return vec![name, nodes, none(), none(), none(), none(), none(), checks];
    }
    vec![
        name,
        nodes,
        number(end.loss),
        number(end.disagreement),
        number(end.worst_disagreement_at_end),
        count(end.exchanges_completed as f64),
        bytes(end.payload_bytes as f64),
        checks,
    ]
}

fn charts(page: &mut String, report: &RunReport) {
    let plots = plots(report);
    if plots.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Over simulated time</h2>\n<p><span class=\"key phase\"></span>the phase of faults\
         <span class=\"key window\"></span>the network is split (full height); anything else goes wrong, or nodes \
         join (strip at the bottom; point at it for what it is). The calm that follows takes no more than half of the axis.</p>\n",
    );
    if report.seeds.len() > SEEDS_SHADED {
        let _ = writeln!(page, "<p class=\"soft\">Windows of the first {SEEDS_SHADED} seeds.</p>");
    }
    plots.iter().for_each(|plot| page.push_str(&html::drawing(&plot.svg)));
}

fn section(page: &mut String, report: &RunReport, seed: &SeedReport, replay: &str) {
    let number = seed.seed;
    let _ = writeln!(page, "<h2 id=\"seed-{number}\">Seed {number}</h2>\n<p><code>{}</code></p>", escaped(replay));
    for verdict in &seed.verdicts {
        if let Some(finding) = &verdict.finding {
            let _ = writeln!(page, "<p class=\"fails\">FAILS {}: {}</p>", escaped(&verdict.check), escaped(finding));
        }
    }
    let held: Vec<&str> =
        seed.verdicts.iter().filter(|verdict| verdict.finding.is_none()).map(|verdict| &*verdict.check).collect();
    let _ = writeln!(page, "<p class=\"soft\">Holds: {}.</p>", escaped(&held.join(", ")));
    if !seed.not_asked.is_empty() {
        let _ = writeln!(
            page,
            "<p class=\"soft\">Not asked, as this run cannot fail: {}.</p>",
            escaped(&seed.not_asked.join(", "))
        );
    }
    if !seed.drawn.is_empty() {
        let drawn: Vec<String> = seed.drawn.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let _ = writeln!(page, "<p class=\"soft\">Drawn: {}.</p>", escaped(&drawn.join(", ")));
    }
    if !seed.windows.is_empty() {
        let row = |window: &super::Window| {
            let (from, to) = (format!("{:.1} s", window.from_seconds), format!("{:.1} s", window.to_seconds));
            vec![window.what.clone(), from, to, window.nodes.to_string()]
        };
        let rows: Vec<Vec<String>> = seed.windows.iter().map(row).collect();
        let table = html::table(&["what goes wrong", "from", "to", "nodes"], &rows);
        let _ = writeln!(page, "<details><summary>{}</summary>{table}</details>", counted(rows.len() as u64, "window"));
    }
    // Of one seed the charts stand above.
    if report.seeds.len() > 1 {
        plots_of(&report.scenario, &[seed]).iter().for_each(|plot| page.push_str(&html::drawing(&plot.svg)));
    }
}

/// All points of all seeds, a line each: the seed, then [`COLUMNS`]. What is no finite number is empty.
pub fn series(report: &RunReport) -> String {
    let mut text = format!("seed,{}\n", COLUMNS.join(","));
    for seed in &report.seeds {
        for point in &seed.series {
            let values = Row::from(point.clone()).map(|value| value.map_or(String::new(), |value| value.to_string()));
            let _ = writeln!(text, "{},{}", seed.seed, values.join(","));
        }
    }
    text
}

impl SeedReport {
    /// The checks that fail, with commas; empty where all hold.
    fn failed_checks(&self) -> String {
        let failed = self.verdicts.iter().filter(|verdict| verdict.finding.is_some());
        failed.map(|verdict| &*verdict.check).collect::<Vec<&str>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Point, Verdict, Window};

    fn report() -> RunReport {
        let point = |seconds, running| Point { seconds, nodes: 4, running, loss: 0.5, ..Point::default() };
        let seed = |seed, finding: Option<&str>| SeedReport {
            seed,
            faults_end_seconds: 40.0,
            windows: vec![Window { what: "killed <i>".to_owned(), from_seconds: 5.0, to_seconds: 9.0, nodes: 1 }],
            verdicts: vec![Verdict { check: "converged".to_owned(), finding: finding.map(str::to_owned) }],
            series: vec![point(0.0, 6), Point { loss: f64::NAN, ..point(865.0, 5) }],
            ..SeedReport::default()
        };
        let seeds = vec![seed(3, None), seed(4, Some("a model is <b>off</b>"))];
        RunReport { scenario: "a & <script>".to_owned(), seeds, ..RunReport::default() }
    }

    #[test]
    fn a_page_names_what_fails_links_to_it_and_shows_the_windows_as_text_alone() {
        let about = About { command: "murmur sim run <x>".to_owned(), settings: "# no\n[swarm]\nnodes = 4".to_owned() };
        let page = page(&report(), &about, |seed| format!("murmur sim replay it --seed {seed}"));
        for part in [
            "1 of 2 seeds hold; 1 fail: seed 4 (converged).",
            "The first that fails, again: <code>murmur sim replay it --seed 4</code>",
            "<a href=\"#seed-4\">4</a>",
            "<h2 id=\"seed-4\">",
            "a model is &lt;b&gt;off",
            "murmur sim run &lt;x&gt;",
            "phase of faults</title>",
            "killed &lt;i&gt; from 5.0 s</title>",
            "<pre>[swarm]\nnodes = 4</pre>",
            ">alive</text>",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("NaN"), "{page}");
    }

    #[test]
    fn the_series_has_a_line_a_point_and_a_value_a_column() {
        let series = series(&report());
        let lines: Vec<&str> = series.lines().collect();
        assert_eq!(lines.len(), 5, "{series}");
        assert!(lines[0].starts_with("seed,seconds,nodes,loss,") && lines[0].ends_with(",payload_bytes,running"));
        assert_eq!(lines[1], "3,0,4,0.5,0,0,0,0,0,0,0,0,0,6");
        assert_eq!(lines[4], "4,865,4,,0,0,0,0,0,0,0,0,0,5");
    }
}
