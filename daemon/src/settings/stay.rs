//! `[stay]` of a node file: how long this node stays with its swarm.

use std::path::PathBuf;

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::Daemon;
use super::range::Range;
use crate::cli::headings::STAY;
use crate::limits::quiet_hours::parse_time;

section! {
    /// How long a node stays, for machines that are lent, paid by the hour, or taken back at short notice.
    pub struct StaySettings {
        /// Leave when a clock in --time-zone next shows this, such as 06:00 [default: it stays].
        ///
        /// In a file, a clock in `limits.time_zone`; empty: it sets no time.
        until: String = String::new() =>
            form("a time of day such as 06:00, or nothing", |text| text.is_empty() || parse_time(text).is_some()),
            such_as(&["06:00", "18:30", "23:59"]), flag(Flag::new("until", "TIME", STAY).of(&[Daemon]));
        /// Leave after so many hours [default: no limit].
        ///
        /// Counted from the start of the process.
        max_hours: f64 = 0.0 =>
            range(Range::new(0.0, 8784.0).or_zero("no limit").unit(" hours (a year)")),
            flag(Flag::new("max-hours", "N", STAY).of(&[Daemon]));
        /// Leave after so many gigabytes, both ways together [default: no limit].
        ///
        /// Of a billion bytes, since the start of the process.
        max_gigabytes: f64 = 0.0 =>
            range(Range::new(0.0, 1e6).or_zero("no limit")), flag(Flag::new("max-gigabytes", "GB", STAY).of(&[Daemon]));
        /// Seconds that leaving may take: a checkpoint is written beside the last exchange, without a last evaluation.
        leave_seconds: f64 = 0.0 => range(Range::new(5.0, 3600.0).or_zero("no limit"));
        /// The node leaves once there is such a file; empty: none.
        notice_file: PathBuf = PathBuf::new();
        /// A program with its arguments that is run every five seconds; the node leaves once it ends with success. Empty: none.
        notice_command: Vec<String> = Vec::new() => checked(
            "a program with its arguments, such as [\"curl\", \"-sf\", \"http://…\"], or nothing",
            |command: &Vec<String>| command.first().filter(|program| program.is_empty()).map(|_| format!("{command:?}"))
        );
        /// What an hour of this machine costs, in any currency: it is told with what the machine has done.
        price_per_hour: f64 = 0.0 => range(Range::new(0.0, 1e9).or_zero("not known"));
    }
}
