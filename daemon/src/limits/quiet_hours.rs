//! Hours of the day and time zones, as a node's owner writes them.

use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;

const DAY_MINUTES: u32 = 24 * 60;

/// Part of every day, in minutes from midnight; may span midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuietHours {
    from: u32,
    to: u32,
}

impl QuietHours {
    /// Reads "22:00-07:00". The outer `None`: malformed; the inner one: empty, so never.
    pub(crate) fn parse(text: &str) -> Option<Option<QuietHours>> {
        if text.is_empty() {
            return Some(None);
        }
        let (from, to) = text.split_once('-')?;
        let (from, to) = (parse_time(from)?, parse_time(to)?);
        (from != to && from < DAY_MINUTES && to <= DAY_MINUTES).then_some(Some(QuietHours { from, to }))
    }

    /// When they end, in minutes from midnight.
    pub(super) fn until(self) -> u32 {
        self.to
    }

    /// How long they are, in minutes.
    pub(super) fn minutes(self) -> u32 {
        if self.from < self.to { self.to - self.from } else { self.to + DAY_MINUTES - self.from }
    }

    pub(super) fn contains(self, minute: u32) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

/// Reads "Europe/Berlin" (the IANA time zone database), "+02:00" or "UTC"; empty: this machine's, or UTC where it has
/// none.
pub(crate) fn parse_time_zone(text: &str) -> Option<TimeZone> {
    if text.is_empty() { Some(TimeZone::system()) } else { DateTimeParser::new().parse_time_zone(text).ok() }
}

/// Reads "07:30" as minutes from midnight.
pub(crate) fn parse_time(text: &str) -> Option<u32> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |digits: &str| -> Option<u32> {
        (digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60 && hours * 60 + minutes <= DAY_MINUTES).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_as_long_as_they_are() {
        let minutes = |text| QuietHours::parse(text).flatten().map(QuietHours::minutes);
        assert_eq!(minutes("22:00-07:00"), Some(540));
        assert_eq!((minutes("07:00-07:30"), minutes("00:00-24:00")), (Some(30), Some(1440)));
    }

    #[test]
    fn malformed_hours_and_time_zones_are_refused() {
        for text in ["22-7", "22:00", "22:00-25:00", "22:60-07:00", "07:00-07:00", "2:00-3:00", "a-b"] {
            assert_eq!(QuietHours::parse(text), None, "{text}");
        }
        for text in ["Mars/Phobos", "two", "02:00", "+99:00", "+é:00", "../../etc/passwd"] {
            assert_eq!(parse_time_zone(text), None, "{text}");
        }
    }
}
