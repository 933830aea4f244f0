//! Figures as people read them: counts, durations, bars, sparklines, and lines that fit a width.

use std::time::Duration;

use unicode_width::UnicodeWidthStr;

use super::screen::cut;

/// Between the parts of a line.
const SEPARATOR: &str = " · ";

/// From the lowest to the highest.
const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Losses kept for a sparkline; when there are more, neighbours become one.
const LOSSES_MAX: usize = 256;

/// A count with a comma between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A count of things, such as "1 peer" or "3 peers".
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {thing}{ending}", count(number))
}

/// What a model that predicts this (a "byte", a "token", an "image" or a "row") is trained on, in the plural.
pub(crate) fn examples(prediction: &str) -> &'static str {
    match prediction {
        "image" => "images",
        "row" => "rows",
        _ => "tokens",
    }
}

/// A duration in at most two units.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The time that is left, in words; nothing where it is over, not known, or beyond all sense.
pub(crate) fn time_left(seconds: Option<f64>) -> String {
    let left = seconds.filter(|seconds| *seconds > 0.0).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    left.map_or(String::new(), |left| format!("{} left", duration(left)))
}

/// What is done, 0 to 1, in whole percent: 100 only at the end, whatever the rounding of a mean.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", (100.0 * share + 1e-6).floor())
}

/// A part of a whole, 0 to 1, in whole percent.
pub(crate) fn share(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// Bytes for people. Whatever would be rounded to a thousand has the next unit.
pub(crate) fn human_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..999_950 => format!("{:.1} kB", bytes as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        999_950_000..999_995_000_000 => format!("{:.2} GB", bytes as f64 / 1e9),
        _ => format!("{:.2} TB", bytes as f64 / 1e12),
    }
}

/// The rate of a link, in megabits a second: of a small one, two digits.
pub(crate) fn megabits(rate: f64) -> String {
    let decimals = match rate {
        9.95.. => 0,
        0.995.. => 1,
        _ => 2,
    };
    format!("{rate:.decimals$} Mbit/s")
}

/// Own steps and the swarm's progress: two counters that must not be taken for each other.
pub(crate) fn steps(own: u64, swarm: f64) -> String {
    format!("own {}, swarm {}", count(own), count(swarm.max(0.0) as u64))
}

/// A progress bar of a share, 0 to 1, so many columns wide without its ends.
pub(crate) fn bar(share: f64, columns: usize) -> String {
    let filled = ((columns as f64 * share) as usize).min(columns);
    format!("[{}{}]", "#".repeat(filled), "·".repeat(columns - filled))
}

/// As many of the parts, from the first on, as fit into a line; the first one is cut if need be.
pub(crate) fn fitted(parts: impl IntoIterator<Item = String>, columns: usize) -> String {
    let mut line = String::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        if line.is_empty() {
            line = cut(&part, columns);
        } else if line.width() + SEPARATOR.width() + part.width() <= columns {
            line.push_str(SEPARATOR);
            line.push_str(&part);
        } else {
            break;
        }
    }
    line
}

/// The way of a loss, from the beginning until now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    kept: Vec<f64>,
    /// Losses that one kept value stands for.
    stride: usize,
    sum: f64,
    summed: usize,
    last_steps: u64,
}

impl Losses {
    /// Takes in the loss after so many steps; the same step again is no news.
    pub(crate) fn observe(&mut self, steps: u64, loss: Option<f64>) {
        let Some(loss) = loss.filter(|loss| loss.is_finite() && steps != self.last_steps) else { return };
        self.last_steps = steps;
        self.stride = self.stride.max(1);
        self.sum += loss;
        self.summed += 1;
        if self.summed == self.stride {
            self.kept.push(self.sum / self.summed as f64);
            (self.sum, self.summed) = (0.0, 0);
        }
        if self.kept.len() > LOSSES_MAX {
            self.kept = self.kept.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
            self.stride *= 2;
        }
    }

    /// The way as a line of blocks, at most so many columns; empty until there is a way.
    pub(crate) fn sparkline(&self, columns: usize) -> String {
        if self.kept.len() < 2 || columns == 0 {
            return String::new();
        }
        let columns = columns.min(self.kept.len());
        let values: Vec<f64> = (0..columns)
            .map(|column| {
                let (from, to) = (column * self.kept.len() / columns, (column + 1) * self.kept.len() / columns);
                self.kept[from..to].iter().sum::<f64>() / (to - from) as f64
            })
            .collect();
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let range = (highest - lowest).max(f64::MIN_POSITIVE);
        let height = |value: f64| ((value - lowest) / range * (SPARKS.len() - 1) as f64).round() as usize;
        values.into_iter().map(|value| SPARKS[height(value).min(SPARKS.len() - 1)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_durations_are_readable() {
        assert_eq!((count(0), count(999), count(8150), count(1_234_567)), tuple(["0", "999", "8,150", "1,234,567"]));
        assert_eq!([human_bytes(999_949), human_bytes(999_950)], ["999.9 kB", "1.0 MB"]);
        assert_eq!([human_bytes(999_949_999), human_bytes(999_950_000)], ["999.9 MB", "1.00 GB"]);
        assert_eq!([human_bytes(999_994_999_999), human_bytes(999_995_000_000)], ["999.99 GB", "1.00 TB"]);
        assert_eq!(
            [120.4, 9.95, 9.94, 0.5, 0.04].map(|rate| megabits(rate).replace(" Mbit/s", "")),
            ["120", "10", "9.9", "0.50", "0.04"]
        );
        assert_eq!(counted(1, "peer"), "1 peer");
        assert_eq!(counted(3, "peer"), "3 peers");
        assert_eq!(counted(102, "batch"), "102 batches");
        let shown = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(
            (shown(59), shown(130), shown(7260), shown(180_000)),
            tuple(["59 s", "2 min 10 s", "2 h 1 min", "2 d 2 h"])
        );
        assert_eq!(
            (percent(0.38 - 1e-12), percent(0.999), percent(1.0)),
            ("38 %".into(), "99 %".into(), "100 %".into())
        );
        assert_eq!(time_left(Some(130.0)), "2 min 10 s left");
        assert_eq!(time_left(Some(0.0)), "");
        assert_eq!((time_left(None), time_left(Some(f64::NAN)), time_left(Some(1e300))), Default::default());
        assert_eq!(steps(154, 8150.4), "own 154, swarm 8,150");
    }

    fn tuple(texts: [&str; 4]) -> (String, String, String, String) {
        let [first, second, third, fourth] = texts.map(str::to_owned);
        (first, second, third, fourth)
    }

    #[test]
    fn a_line_takes_the_first_parts_that_fit() {
        let parts = || ["loss 2.104".to_owned(), "validation 2.2".to_owned(), "9 s".to_owned()];
        assert_eq!(fitted(parts(), 80), "loss 2.104 · validation 2.2 · 9 s");
        assert_eq!(fitted(parts(), 28), "loss 2.104 · validation 2.2");
        assert_eq!(fitted(parts(), 6), "loss …");
    }

    #[test]
    fn a_sparkline_falls_with_the_loss_and_keeps_its_beginning() {
        let mut losses = Losses::default();
        losses.observe(1, Some(5.0));
        losses.observe(1, Some(5.0));
        assert_eq!(losses.sparkline(10), "", "one value is no way");
        for step in 2..=5000 {
            losses.observe(step, Some(5.0 / (step as f64).sqrt()));
        }
        let line = losses.sparkline(20);
        assert_eq!(line.chars().count(), 20);
        assert!(line.starts_with('█') && line.ends_with('▁'), "{line}");
        assert!(losses.kept.len() <= LOSSES_MAX);
        assert_eq!(losses.sparkline(0), "");
        losses.observe(6000, Some(f64::NAN));
        assert!(!losses.sparkline(20).is_empty());
    }

    #[test]
    fn a_bar_is_as_wide_as_asked() {
        assert_eq!(bar(0.25, 24), "[######··················]");
        assert_eq!(bar(2.0, 24).chars().count(), 26);
        assert_eq!(bar(0.5, 0), "[]");
    }
}
