//! One scenario with other values of some keys: a row for each combination, in a table, on a page and as
//! comma-separated values.

use std::fmt::Write;

use murmur_training::median;

use super::html::{self, linked_table};
use super::svg::{Chart, Curve, CurvePoint, escaped};
use super::table::{Table, bytes, number};
use super::{About, Compared, RunReport, SeedReport, comparison_plots};

/// More curves in one chart cannot be told apart.
const CURVES_MAX: usize = 9;

/// One combination of values, and what its seeds came to.
#[derive(Clone, Debug)]
pub struct Swept {
    /// Of its own results, beside the page.
    pub folder: String,
    /// With the values that were set.
    pub report: RunReport,
}

impl Swept {
    /// Such as `gossip.gamma=0.5 swarm.nodes=8`.
    pub fn name(&self) -> String {
        self.report.settings.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    /// Of all seeds that came to their end, in no order.
    fn losses(&self) -> impl Iterator<Item = f64> {
        self.ended().map(|seed| seed.summary.loss).filter(|loss| loss.is_finite())
    }

    fn ended(&self) -> impl Iterator<Item = &SeedReport> {
        self.report.seeds.iter().filter(|seed| !seed.series.is_empty())
    }

    /// `varied`: by place, the keys with more than one value.
    fn cells(&self, varied: &[usize]) -> Vec<String> {
        let compared = Compared::new("", &self.report);
        let mut cells: Vec<String> = varied.iter().map(|place| self.report.settings[*place].1.clone()).collect();
        let range = match (self.losses().reduce(f64::min), self.losses().reduce(f64::max)) {
            (Some(smallest), Some(largest)) => format!("{}–{}", number(smallest), number(largest)),
            _ => "–".to_owned(),
        };
        cells.extend([compared.seeds.to_string(), compared.failed.to_string(), shown(compared.loss), range]);
        cells.extend([shown(compared.disagreement), shown(compared.exchanges)]);
        cells.push(bytes(compared.payload_bytes_per_node_and_round));
        cells
    }
}

fn shown(value: f64) -> String {
    if value.is_finite() { number(value) } else { "no number".to_owned() }
}

/// The places of the keys that have more than one value.
fn varied(swept: &[Swept]) -> Vec<usize> {
    let Some(first) = swept.first().map(|one| &one.report.settings) else { return Vec::new() };
    let differs = |place: &usize| swept.iter().any(|one| one.report.settings.get(*place) != first.get(*place));
    (0..first.len()).filter(differs).collect()
}

/// The keys with more than one value, then what was measured; loss and others are means over the seeds.
fn head<'a>(swept: &'a [Swept], varied: &[usize]) -> Vec<&'a str> {
    let keys = varied.iter().map(|place| &*swept[0].report.settings[*place].0);
    keys.chain(["seeds", "fail", "loss", "of the seeds", "disagreement", "exchanges", "payload/round"]).collect()
}

/// What stands in the cells of a table of combinations; a single scenario's summary has medians.
const CAPTION: &str = "means over the seeds, not medians; of the seeds: the smallest and largest loss";

/// The table of all combinations, with what stands in it above.
pub fn sweep_lines(swept: &[Swept]) -> Vec<String> {
    std::iter::once(CAPTION.to_owned()).chain(sweep_table(swept).lines()).collect()
}

/// A line for each combination.
fn sweep_table(swept: &[Swept]) -> Table {
    let varied = varied(swept);
    let mut table = Table::new(&head(swept, &varied));
    swept.iter().for_each(|one| table.row(one.cells(&varied)));
    table
}

/// A line for each seed of each combination: the values that were set, then the end in numbers.
pub fn sweep_series(swept: &[Swept]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let keys = swept.first().into_iter().flat_map(|one| &one.report.settings).map(|(key, _)| quoted(key));
    let measured = ["seed", "failed_checks", "loss", "worst_loss", "disagreement", "exchanges", "payload_bytes"];
    let head: Vec<String> = keys.chain(measured.map(str::to_owned)).collect();
    let mut text = head.join(",") + "\n";
    for one in swept {
        for seed in one.ended() {
            let failed = seed.verdicts.iter().filter(|verdict| verdict.finding.is_some()).count();
            let end = &seed.summary;
            let finite = |value: f64| if value.is_finite() { value.to_string() } else { String::new() };
            let mut cells: Vec<String> = one.report.settings.iter().map(|(_, value)| quoted(value)).collect();
            cells.extend([seed.seed.to_string(), failed.to_string(), finite(end.loss), finite(end.worst_loss)]);
            cells.extend([
                finite(end.disagreement),
                end.exchanges_completed.to_string(),
                end.payload_bytes.to_string(),
            ]);
            let _ = writeln!(text, "{}", cells.join(","));
        }
    }
    text
}

/// The page over all combinations; each leads to the page over its seeds.
pub fn sweep_page(scenario: &str, swept: &[Swept], about: &About) -> String {
    let mut page = html::begin(&format!("Simulation of {scenario}, several settings"), "");
    let failing = swept.iter().filter(|one| one.report.failed().next().is_some()).count();
    let verdict = match failing {
        0 => format!("All seeds of all {} combinations hold their checks.", swept.len()),
        _ => format!("In {failing} of {} combinations a seed fails a check.", swept.len()),
    };
    let _ = writeln!(page, "<p class=\"verdict\">{verdict}</p>");
    if swept.iter().any(|one| one.report.interrupted) {
        page.push_str("<p>Interrupted: the last combination has not all of its seeds, or others are missing.</p>\n");
    }
    let varied = varied(swept);
    let rows: Vec<(String, Vec<String>)> =
        swept.iter().map(|one| (format!("{}/index.html", one.folder), one.cells(&varied))).collect();
    page.push_str(&linked_table(&head(swept, &varied), &rows));
    page.push_str(
        "<p class=\"soft\">Loss: mean of the nodes at the end, mean over the seeds, then its smallest and largest. \
         Disagreement: root mean square distance of the models from their mean when learning ends. Payload: bytes sent by a \
         node in a round, in which it starts one exchange. A seed draws the same \
         numbers in every combination, so rows differ by what was set.</p>\n",
    );
    charts(&mut page, swept);
    let _ = writeln!(
        page,
        "<h2>The scenario</h2>\n<p>With the values of the first combination:</p>\n<pre>{}</pre>\n<p>The command: \
         <code>{}</code></p>",
        escaped(about.settings.trim()),
        escaped(&about.command)
    );
    page + html::END
}

fn charts(page: &mut String, swept: &[Swept]) {
    let over_value = [
        over_values(swept, "Loss at the end", "loss", |seed| seed.summary.loss),
        over_values(swept, "Disagreement when learning ends", "Euclidean distance from the mean", |seed| {
            seed.summary.disagreement
        }),
    ];
    over_value.iter().flatten().for_each(|chart| page.push_str(&html::drawing(&chart.to_svg())));
    if swept.len() > CURVES_MAX {
        page.push_str("<p class=\"soft\">Curves over time are on the page of each combination.</p>\n");
        return;
    }
    let runs: Vec<(String, RunReport)> = swept.iter().map(|one| (one.name(), one.report.clone())).collect();
    page.push_str("<h2>Over simulated time</h2>\n");
    comparison_plots(&runs).iter().for_each(|plot| page.push_str(&plot.svg));
}

/// Where one key alone has several values, all numbers: the median and range of the seeds over its values.
fn over_values(swept: &[Swept], title: &str, y_label: &str, value: fn(&SeedReport) -> f64) -> Option<Chart> {
    let [place] = varied(swept)[..] else { return None };
    let mut key = "";
    let mut points = Vec::new();
    for one in swept {
        let (name, set) = &one.report.settings[place];
        let x: f64 = set.parse().ok()?;
        let values: Vec<f64> = one.ended().map(value).filter(|value| value.is_finite()).collect();
        let (smallest, largest) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        points.push(CurvePoint { x, y: median(values)?, smallest, largest });
        key = name;
    }
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    let curves = vec![Curve { label: "median of the seeds, and their range".to_owned(), points }];
    let title = format!("{title} · by {key}");
    Some(Chart { title, x_label: key.to_owned(), y_label: y_label.to_owned(), curves, ..Chart::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Point, Summary, Verdict};

    fn swept(value: &str, losses: &[f64], finding: Option<&str>) -> Swept {
        let seed = |(seed, loss): (usize, &f64)| SeedReport {
            seed: seed as u64,
            verdicts: vec![Verdict { check: "converged".to_owned(), finding: finding.map(str::to_owned) }],
            summary: Summary { loss: *loss, ..Summary::default() },
            series: vec![Point::default()],
            ..SeedReport::default()
        };
        let report = RunReport {
            settings: vec![("gossip.gamma".to_owned(), value.to_owned())],
            seeds: losses.iter().enumerate().map(seed).collect(),
            ..RunReport::default()
        };
        Swept { folder: format!("gossip.gamma={value}"), report }
    }

    #[test]
    fn every_combination_has_a_row_with_its_values_means_and_ranges() {
        let runs = [swept("0.3", &[1.0, 2.0], None), swept("0.5", &[4.0, 4.0], Some("apart"))];
        let lines = sweep_lines(&runs);
        assert!(lines[0].starts_with("means over the seeds"), "{lines:?}");
        let lines = &lines[1..];
        assert!(lines[0].starts_with("gossip.gamma  seeds  fail"), "{lines:?}");
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(cells(&lines[1])[..5], ["0.3", "2", "0", "1.500", "1.000–2.000"]);
        assert_eq!(cells(&lines[2])[..4], ["0.5", "2", "2", "4.000"]);
        let series = sweep_series(&runs);
        assert_eq!(series.lines().count(), 5);
        assert!(series.contains("\n\"0.5\",1,1,4,"), "{series}");
    }

    #[test]
    fn a_page_links_to_each_combination_and_draws_one_key_s_values_as_an_axis() {
        let about = About { command: "murmur sim run <x>".to_owned(), settings: String::new() };
        let page = sweep_page("a", &[swept("0.3", &[1.0], None), swept("0.5", &[f64::NAN], Some("apart"))], &about);
        assert!(page.contains("In 1 of 2 combinations a seed fails a check."), "{page}");
        assert!(page.contains("<a href=\"gossip.gamma=0.3/index.html\">0.3</a>"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("Loss at the end · by"), "{page}");
        let page = sweep_page("a", &[swept("0.3", &[1.0], None), swept("0.5", &[2.0], None)], &about);
        assert!(page.contains("Loss at the end · by gossip.gamma"), "{page}");
    }
}
