//! `[stay]` of a node file: how long this node stays with its swarm.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::limits::quiet_hours::parse_time;

/// How long a node stays, for machines that are lent, paid by the hour, or taken back at short notice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StaySettings {
    /// The node leaves when a clock in `limits.time_zone` next shows this, such as "06:00"; empty: it sets no time.
    pub until: String,
    /// Hours after which it leaves, counted from the start of the process; 0 sets no limit, at most 8784 (a year).
    pub max_hours: f64,
    /// Gigabytes (10⁹ bytes), both ways together and since the start of the process, after which it leaves; 0 sets no limit.
    pub max_gigabytes: f64,
    /// Seconds that leaving may take, 5 to 3600: a checkpoint is written first, then the last exchange, without a last
    /// evaluation. 0 sets no limit.
    pub leave_seconds: f64,
    /// The node leaves once there is such a file; empty: none.
    pub notice_file: PathBuf,
    /// A program with its arguments that is run every five seconds; the node leaves once it ends with success. Empty: none.
    pub notice_command: Vec<String>,
    /// What an hour of this machine costs, in any currency: it is told with what the machine has done. 0: not known.
    pub price_per_hour: f64,
}

impl StaySettings {
    /// What a time of day has to be.
    pub(crate) const UNTIL_RULE: &str = "a time of day such as 06:00, or nothing";

    /// What a number of hours has to be.
    pub(crate) const HOURS_RULE: &str = "0 (no limit), or up to 8784 hours (a year)";

    /// What a number of gigabytes has to be.
    pub(crate) const GIGABYTES_RULE: &str = "0 (no limit) to 1000000";

    /// Whether a node can leave at this time of day.
    pub(crate) fn is_until(text: &str) -> bool {
        text.is_empty() || parse_time(text).is_some()
    }

    /// Whether a stay can last so many hours.
    pub(crate) fn is_hours(hours: f64) -> bool {
        (0.0..=8784.0).contains(&hours)
    }

    /// Whether a stay can have so many gigabytes.
    pub(crate) fn is_gigabytes(gigabytes: f64) -> bool {
        (0.0..=1e6).contains(&gigabytes)
    }

    /// The first value out of its range, as (field, value, rule).
    pub(super) fn validate(&self) -> Result<(), (&'static str, String, &'static str)> {
        if !StaySettings::is_until(&self.until) {
            return Err(("stay.until", format!("{:?}", self.until), StaySettings::UNTIL_RULE));
        }
        if !StaySettings::is_hours(self.max_hours) {
            return Err(("stay.max_hours", self.max_hours.to_string(), StaySettings::HOURS_RULE));
        }
        if !StaySettings::is_gigabytes(self.max_gigabytes) {
            return Err(("stay.max_gigabytes", self.max_gigabytes.to_string(), StaySettings::GIGABYTES_RULE));
        }
        if !(self.leave_seconds == 0.0 || (5.0..=3600.0).contains(&self.leave_seconds)) {
            return Err(("stay.leave_seconds", self.leave_seconds.to_string(), "0 (no limit), or 5 to 3600"));
        }
        if self.notice_command.first().is_some_and(String::is_empty) {
            let rule = "a program with its arguments, such as [\"curl\", \"-sf\", \"http://…\"], or nothing";
            return Err(("stay.notice_command", format!("{:?}", self.notice_command), rule));
        }
        if !(0.0..=1e9).contains(&self.price_per_hour) {
            return Err(("stay.price_per_hour", self.price_per_hour.to_string(), "0 (not known) to 1000000000"));
        }
        Ok(())
    }
}
