//! Steps that take as long as those of a slower machine: for daemons that share one and stand for machines of their own.

use std::str::FromStr;
use std::time::Duration;

/// How long a step takes at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// A step, above 0.
    pub step: Duration,
    /// How long after the first step each takes longer, and how long it then takes.
    pub later: Option<(Duration, Duration)>,
}

impl Pace {
    /// What is typed.
    pub(crate) const RULE: &str = "SECONDS of a step, or SECONDS,AFTER,THEN: after so many seconds a step takes others";

    /// Time of a step that begins so long after the first one began.
    pub(crate) fn of_step(&self, since_first: Duration) -> Duration {
        match self.later {
            Some((after, then)) if since_first >= after => then,
            _ => self.step,
        }
    }

    /// As it is typed.
    pub(crate) fn typed(&self) -> String {
        let seconds = |duration: Duration| duration.as_secs_f64().to_string();
        let later = self.later.map(|(after, then)| format!(",{},{}", seconds(after), seconds(then)));
        seconds(self.step) + &later.unwrap_or_default()
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Pace, String> {
        let seconds = |part: &str| part.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let parts: Option<Vec<Duration>> = text.split(',').map(seconds).collect();
        match parts.as_deref() {
            Some([step]) => Ok(Pace { step: *step, later: None }),
            Some([step, after, then]) => Ok(Pace { step: *step, later: Some((*after, *then)) }),
            _ => Err(format!("it takes {}", Pace::RULE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_read_as_it_is_typed_and_changes_when_it_says() {
        let second = Duration::from_secs(1);
        let steady = Pace { step: second / 2, later: None };
        let slower = Pace { step: second / 4, later: Some((3 * second, second)) };
        for pace in [steady, slower] {
            assert_eq!(pace.typed().parse(), Ok(pace));
        }
        assert_eq!(slower.typed(), "0.25,3,1");
        assert_eq!([2, 3, 4].map(|after| slower.of_step(after * second)), [second / 4, second, second]);
        assert_eq!(steady.of_step(100 * second), second / 2);
        for wrong in ["", "x", "1,2", "-1", "1,2,3,4", "nan", "1e30"] {
            assert!(wrong.parse::<Pace>().is_err(), "{wrong}");
        }
    }
}
