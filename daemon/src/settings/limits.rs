//! `[limits]` of a node file: what a node takes of a machine and of a network that it shares with others.

use super::declaration::section;
use super::flag::Flag;
use super::flag::Taker::{Daemon, Lend, Local, Machine};
use super::range::Range;
use crate::cli::headings::LIMITS;
use crate::limits::quiet_hours::{QuietHours, parse_time_zone};

/// Megabits a second: less than the least would not carry what members say to each other.
const CAP: Range<f64> = Range::new(0.2, 1e6).or_zero("no cap");

section! {
    /// What a node takes of a machine and of a network that it shares with others.
    pub struct LimitsSettings {
        /// Share of the time that training may take, in percent: for machines that are used for other things, too.
        ///
        /// It pauses between them.
        training_percent: f64 = 100.0 =>
            range(Range::new(1.0, 100.0)),
            flag(
                Flag::new("training-percent", "PERCENT", LIMITS).of(&[Daemon, Local]).shaped(|arg| arg.display_order(0))
                    .says_of(Local, "Share of the time that training may take in each daemon, in percent")
            );
        /// Megabits a second that it sends at most, over all peers [default: no cap].
        ///
        /// Exchanges may take all of it; without a cap they take a quarter of the uplink as it is measured.
        upload_mbit: f64 = 0.0 =>
            range(CAP), flag(Flag::new("upload-mbit", "MBIT", LIMITS).of(&[Machine, Lend]));
        /// Megabits a second that it receives at most [default: no cap].
        download_mbit: f64 = 0.0 =>
            range(CAP), flag(Flag::new("download-mbit", "MBIT", LIMITS).of(&[Machine, Lend]));
        /// Gigabytes (a billion bytes) a day, both ways together, after which it rests [default: no budget].
        daily_gigabytes: f64 = 0.0 =>
            range(Range::new(0.0, 1e6).or_zero("no budget")),
            flag(Flag::new("daily-gigabytes", "GB", LIMITS).of(&[Daemon]));
        /// When it rests every day, such as 22:00-07:00.
        ///
        /// Empty: never. Training goes on meanwhile, joining waits.
        quiet_hours: String = String::new() =>
            form("hours such as \"22:00-07:00\", or nothing", |text| QuietHours::parse(text).is_some()),
            such_as(&["22:00-07:00", "08:00-12:00", "23:30-06:00"]),
            flag(Flag::new("quiet-hours", "HOURS", LIMITS).of(&[Daemon]));
        /// Of those hours and days, such as Europe/Berlin or +02:00 [default: this machine's].
        time_zone: String = String::new() =>
            form(
                "a time zone such as \"Europe/Berlin\" or \"+02:00\", or nothing for this machine's",
                |text| parse_time_zone(text).is_some()
            ),
            such_as(&["Europe/Berlin", "+02:00", "UTC"]),
            flag(Flag::new("time-zone", "ZONE", LIMITS).of(&[Daemon]).shaped(|arg| arg.allow_hyphen_values(true)));
    }
}

impl LimitsSettings {
    /// The caps in bytes a second.
    pub fn caps(&self) -> murmur_network::Caps {
        let cap = |mbit: f64| (mbit > 0.0).then_some((mbit * 1e6 / 8.0) as u64);
        murmur_network::Caps { upload: cap(self.upload_mbit), download: cap(self.download_mbit) }
    }
}
