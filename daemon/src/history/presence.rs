//! When somebody was there: spans of time, a bounded number of them.

/// Lists of members are told every five seconds: who is in none of them for so long was away.
const AWAY_SECONDS: f64 = 20.0;

/// Spans kept; one that comes and goes more often is taken to have stayed.
const SPANS_MAX: usize = 200;

/// Spans of time in seconds since 1970, in order and apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spans(Vec<(f64, f64)>);

impl Spans {
    /// It was there at this time, which is no earlier than the last one.
    pub(crate) fn see(&mut self, time: f64) {
        let is_full = self.0.len() >= SPANS_MAX;
        match self.0.last_mut() {
            Some(last) if time - last.1 <= AWAY_SECONDS => last.1 = last.1.max(time),
            Some(last) if is_full => last.1 = time,
            _ => self.0.push((time, time)),
        }
    }

    /// Takes in what another one saw of the same.
    pub(crate) fn join(&mut self, other: &Spans) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(&other.0);
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        for span in all {
            match self.0.last_mut() {
                Some(last) if span.0 - last.1 <= AWAY_SECONDS => last.1 = last.1.max(span.1),
                _ => self.0.push(span),
            }
        }
    }

    /// From and to.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (f64, f64)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times: &[f64]) -> Spans {
        let mut spans = Spans::default();
        times.iter().for_each(|time| spans.see(*time));
        spans
    }

    #[test]
    fn who_is_not_seen_for_long_was_away() {
        let spans = seen(&[0.0, 5.0, 10.0, 60.0, 65.0]);
        assert_eq!(spans.0, [(0.0, 10.0), (60.0, 65.0)]);
        let many: Vec<f64> = (0..1000).map(|turn| f64::from(turn) * 100.0).collect();
        assert_eq!((seen(&many).0.len(), seen(&many).0[SPANS_MAX - 1].1), (SPANS_MAX, 99_900.0));
    }

    #[test]
    fn what_two_have_seen_is_seen() {
        let mut spans = seen(&[0.0, 10.0, 100.0]);
        spans.join(&seen(&[5.0, 25.0, 200.0]));
        assert_eq!(spans.0, [(0.0, 25.0), (100.0, 100.0), (200.0, 200.0)]);
    }
}
