//! Tables and numbers for people: columns that line up, no colour, three or four digits that matter.

use murmur_training::median;

use super::{RunReport, html};

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Between two columns.
const GAP: &str = "  ";

/// Rows of cells.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one; the first column is left-aligned, the others are right-aligned.
    pub fn new(head: &[&str]) -> Table {
        let align = |index| if index == 0 { Align::Left } else { Align::Right };
        let head = head.iter().enumerate().map(|(index, title)| ((*title).to_owned(), align(index)));
        Table { head: head.collect(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The cells of each row, the head first.
    pub fn rows(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        let head: Vec<&str> = self.head.iter().map(|(title, _)| title.as_str()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(String::as_str).collect());
        std::iter::once(head).chain(rows).map(Vec::into_iter)
    }

    /// As a table of a page.
    pub fn to_html(&self) -> String {
        let head: Vec<&str> = self.head.iter().map(|(title, _)| title.as_str()).collect();
        html::table(&head, &self.rows)
    }

    /// The lines, the head first.
    pub fn lines(&self) -> Vec<String> {
        self.lines_of(&(0..self.head.len()).collect::<Vec<_>>())
    }

    /// The lines, no wider than so many columns of a terminal where a cell itself is not: what does not fit beside the rest comes below
    /// it, as a table of its own after an empty line, with the first column again. Behind the first one, so many neighbours are
    /// never parted.
    pub fn lines_within(&self, columns: usize, neighbours: usize) -> Vec<String> {
        let first = self.width(0);
        let others: Vec<usize> = (1..self.head.len()).collect();
        let (mut parts, mut width) = (vec![vec![0]], first);
        for together in others.chunks(neighbours.max(1)) {
            let own: usize = together.iter().map(|column| GAP.len() + self.width(*column)).sum();
            if width + own > columns && parts.last().is_some_and(|part| part.len() > 1) {
                parts.push(vec![0]);
                width = first;
            }
            parts.last_mut().expect("there is one").extend_from_slice(together);
            width += own;
        }
        parts.iter().map(|part| self.lines_of(part)).collect::<Vec<_>>().join(&String::new())
    }

    /// Of a column, in characters.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let head = self.head.get(column).map(|(title, _)| title);
        head.into_iter().chain(cells).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// The lines of these columns alone.
    fn lines_of(&self, columns: &[usize]) -> Vec<String> {
        let widths: Vec<usize> = columns.iter().map(|column| self.width(*column)).collect();
        let line = |row: Vec<&str>| {
            let cells = columns.iter().zip(&widths).map(|(column, width)| {
                let cell = row.get(*column).copied().unwrap_or_default();
                match self.head[*column].1 {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                }
            });
            cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        };
        self.rows().map(|row| line(row.collect())).collect()
    }
}

/// How often each check was asked, and how often it failed; those last that no run could fail.
pub fn check_counts(report: &RunReport) -> Table {
    let mut table = Table::new(&["check", "seeds", "fail"]);
    let mut checks: Vec<&str> = Vec::new();
    let verdicts = || report.seeds.iter().flat_map(|seed| &seed.verdicts);
    for verdict in verdicts() {
        if !checks.contains(&verdict.check.as_str()) {
            checks.push(&verdict.check);
        }
    }
    for seed in &report.seeds {
        for check in &seed.not_asked {
            if !checks.contains(&check.as_str()) {
                checks.push(check);
            }
        }
    }
    for check in checks {
        let asked = verdicts().filter(|verdict| verdict.check == check);
        let failed = asked.clone().filter(|verdict| verdict.finding.is_some()).count();
        table.row(vec![check.to_owned(), asked.count().to_string(), failed.to_string()]);
    }
    table
}

/// Median, smallest and largest over the seeds of everything that a run is asked for; of one seed its values.
pub fn summary(report: &RunReport) -> Table {
    let ended: Vec<_> = report.seeds.iter().filter(|seed| !seed.series.is_empty()).collect();
    let one = ended.len() == 1;
    let mut table =
        Table::new(if one { &["the seed", ""] } else { &["over the seeds", "median", "smallest", "largest"] });
    let mut row = |title: &str, format: fn(f64) -> String, value: &dyn Fn(&super::SeedReport) -> f64| {
        let mut values: Vec<f64> = ended.iter().map(|seed| value(seed)).collect();
        values.sort_by(f64::total_cmp);
        if let (Some(first), Some(last)) = (values.first(), values.last()) {
            let cells = [
                title.to_owned(),
                format(median(values.iter().copied()).unwrap_or(f64::NAN)),
                format(*first),
                format(*last),
            ];
            table.row(cells.into_iter().take(if one { 2 } else { 4 }).collect());
        }
    };
    row("nodes", count, &|seed| seed.nodes as f64);
    row("loss, mean of the nodes", number, &|seed| seed.summary.loss);
    row("loss, worst node", number, &|seed| seed.summary.worst_loss);
    row("disagreement when learning ends", number, &|seed| seed.summary.disagreement);
    row("disagreement after the calm, worst", number, &|seed| seed.summary.worst_disagreement_at_end);
    row("exchanges completed", count, &|seed| seed.summary.exchanges_completed as f64);
    row("sides of exchanges that gave up", count, &|seed| seed.summary.failed_sides as f64);
    row("control messages / node and round", number, &|seed| seed.summary.control_messages_per_node_and_round);
    row("control bytes / node and round", bytes, &|seed| seed.summary.control_bytes_per_node_and_round);
    row("payload bytes / node and round", bytes, &|seed| seed.summary.payload_bytes_per_node_and_round);
    row("payload bytes", bytes, &|seed| seed.summary.payload_bytes as f64);
    row("simulated seconds", count, &|seed| seed.simulated_seconds);
    row("real seconds", number, &|seed| seed.real_seconds);
    table
}

/// A number with four digits that matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => value.to_string(),
        0.0 => "0".to_owned(),
        size if !(1e-4..1e6).contains(&size) => format!("{value:.2e}"),
        size if size < 1.0 => format!("{value:.5}"),
        size if size < 100.0 => format!("{value:.3}"),
        _ => format!("{value:.0}"),
    }
}

/// A whole number, with a comma between thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
    let is_before_comma = |index: usize| index > 0 && (digits.len() - index).is_multiple_of(3) && value.is_finite();
    let shown: String = digits
        .chars()
        .enumerate()
        .flat_map(|(index, digit)| is_before_comma(index).then_some(',').into_iter().chain([digit]))
        .collect();
    format!("{sign}{shown}")
}

/// A count of things: 1 node, 3 nodes.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number as f64), if number == 1 { "" } else { "s" })
}

/// Bytes for people.
pub fn bytes(value: f64) -> String {
    match value {
        _ if !value.is_finite() => value.to_string(),
        _ if value < 1e3 => format!("{value:.0} B"),
        _ if value < 1e6 => format!("{:.1} kB", value / 1e3),
        _ if value < 1e9 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Point, SeedReport, Summary};

    #[test]
    fn columns_line_up_also_with_letters_of_several_bytes() {
        let mut table = Table::new(&["name", "loss"]);
        table.row(vec!["größe".to_owned(), "1".to_owned()]);
        table.row(vec!["b".to_owned(), "12.5".to_owned()]);
        assert_eq!(table.lines(), ["name   loss", "größe     1", "b      12.5"]);
    }

    #[test]
    fn what_does_not_fit_beside_the_rest_comes_below_it_and_neighbours_stay_together() {
        let mut table = Table::new(&["name", "loss", "kill", "was"]);
        table.row(["größe", "1", "never", "none"].map(str::to_owned).into());
        assert_eq!(table.lines()[0], "name   loss   kill   was");
        assert_eq!(table.lines_within(24, 1), table.lines());
        let alone = ["name   loss   kill", "größe     1  never", "", "name    was", "größe  none"];
        assert_eq!(table.lines_within(23, 1), alone);
        let mut pairs = Table::new(&["name", "loss", "was", "kill", "was"]);
        pairs.row(["größe", "1", "2", "never", "none"].map(str::to_owned).into());
        let parted = ["name   loss  was", "größe     1    2", "", "name    kill   was", "größe  never  none"];
        assert_eq!(pairs.lines_within(24, 2), parted);
        assert!(pairs.lines_within(1, 1).len() == 4 * 3 - 1 && Table::new(&["name"]).lines_within(80, 1) == ["name"]);
    }

    #[test]
    fn of_two_seeds_the_median_is_between_them_and_exchanges_are_those_of_the_json() {
        let seed = |exchanges_completed, loss| {
            let summary = Summary { exchanges_completed, loss, ..Summary::default() };
            SeedReport { summary, series: vec![Point::default()], ..SeedReport::default() }
        };
        let report = RunReport { seeds: vec![seed(10, 1.0), seed(20, 2.0)], ..RunReport::default() };
        let lines = summary(&report).lines();
        let cells = |title: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(title)).expect("a row");
            line[title.len()..].split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(cells("exchanges completed"), ["15", "10", "20"]);
        assert_eq!(cells("loss, mean of the nodes"), ["1.500", "1.000", "2.000"]);
    }

    #[test]
    fn numbers_show_the_digits_that_matter() {
        let shown: Vec<String> = [0.0, 1e-7, 0.012_345, 12.3456, 1234.5, 5e9].map(number).into();
        assert_eq!(shown, ["0", "1.00e-7", "0.01235", "12.346", "1234", "5.00e9"]);
        assert_eq!([999.0, 1500.0, 2.5e6, 3e9].map(bytes), ["999 B", "1.5 kB", "2.5 MB", "3.00 GB"]);
        assert_eq!(bytes(f64::NAN), "NaN");
        assert_eq!([0.0, 999.0, 2313.0, -1e6, f64::INFINITY].map(count), ["0", "999", "2,313", "-1,000,000", "inf"]);
        assert_eq!(counted(2313, "step"), "2,313 steps");
    }
}
