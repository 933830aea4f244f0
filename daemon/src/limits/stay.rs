//! How long a node stays: until a time of day, for so many hours or gigabytes, or until the machine's provider gives notice
//! that it takes the machine back (spot and preemptible machines).

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use jiff::Zoned;
use jiff::civil::Time;
use jiff::tz::{Disambiguation, TimeZone};
use murmur_network::Traffic;
use tokio::process::Command;

use crate::console::{examples, human_bytes, note};
use crate::limits::clock::{Jump, WallClock};
use crate::limits::quiet_hours::parse_time;
use crate::limits::rest::owners_clock;
use crate::observe::report::NodeReport;
use crate::settings::{LimitsSettings, StaySettings};

/// How often clock, bytes and the notice's file are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How often the provider is asked, and how long it may take to answer: five seconds is what Amazon advises for its spot
/// machines, whose notice comes two minutes before the end; Google's and Microsoft's come 30 s before.
const ASK_PERIOD: Duration = Duration::from_secs(5);

/// Whoever sets a clock forward by less still means the same time of day.
const DAY: Duration = Duration::from_hours(24);

/// What ends a node's stay.
#[derive(Debug)]
pub(crate) struct Stay {
    ends_at: Option<End>,
    hours: Option<f64>,
    gigabytes: Option<f64>,
    notice_file: Option<PathBuf>,
    notice_command: Vec<String>,
    begun: Instant,
}

impl Stay {
    /// A stay that begins now.
    pub(crate) fn begin(settings: &StaySettings, limits: &LimitsSettings, now: SystemTime) -> Stay {
        let ends_at = parse_time(&settings.until).and_then(|minute| {
            let zone = owners_clock(limits, now).time_zone().clone();
            End::after(now, minute, settings.until.clone(), zone)
        });
        Stay {
            ends_at,
            hours: (settings.max_hours > 0.0).then_some(settings.max_hours),
            gigabytes: (settings.max_gigabytes > 0.0).then_some(settings.max_gigabytes),
            notice_file: (!settings.notice_file.as_os_str().is_empty()).then(|| settings.notice_file.clone()),
            notice_command: settings.notice_command.clone(),
            begun: Instant::now(),
        }
    }

    /// Waits until it is over, and says why. `traffic`: of the process so far.
    pub(crate) async fn over(self, traffic: impl Fn() -> Traffic) -> String {
        tokio::select! {
            why = self.limit(traffic) => why,
            why = self.notice() => why,
        }
    }

    async fn limit(&self, traffic: impl Fn() -> Traffic) -> String {
        let (mut clock, mut ends_at) = (WallClock::new(), self.ends_at.clone());
        loop {
            if let Some(jump) = clock.look() {
                ends_at = ends_at.and_then(|end| end.after_jump(jump, SystemTime::now()));
            }
            if let Some(why) = self.why(ends_at.as_ref(), SystemTime::now(), self.begun.elapsed(), traffic()) {
                return why;
            }
            if let Some(file) = self.notice_file.as_ref().filter(|file| file.exists()) {
                return format!("notice from {}", file.display());
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// Which limit is reached, in words.
    fn why(&self, ends_at: Option<&End>, now: SystemTime, stayed: Duration, traffic: Traffic) -> Option<String> {
        if let Some(end) = ends_at.filter(|end| now >= end.at) {
            return Some(end.words.clone());
        }
        if let Some(hours) = self.hours.filter(|hours| stayed.as_secs_f64() >= 3600.0 * hours) {
            return Some(format!("{hours} h are over"));
        }
        let bytes = (traffic.sent + traffic.received) as f64;
        let gigabytes = self.gigabytes.filter(|gigabytes| bytes >= 1e9 * gigabytes)?;
        Some(format!("{gigabytes} GB are used up"))
    }

    /// Asks the provider until it gives notice.
    async fn notice(&self) -> String {
        let Some((program, arguments)) = self.notice_command.split_first() else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(ASK_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_warned = false;
        loop {
            ticks.tick().await;
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let why = match ask(command, ASK_PERIOD).await {
                Ok(status) if status.success() => return format!("notice from {program}"),
                Ok(_) => continue,
                Err(error) => error,
            };
            if !is_warned {
                is_warned = true;
                note(&format!("warning: cannot run stay.notice_command ({program}): {why}; it is tried again"));
            }
        }
    }
}

/// Runs a command, and ends it, with all that it has started, where it has not answered in time.
async fn ask(mut command: Command, limit: Duration) -> std::io::Result<ExitStatus> {
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.kill_on_drop(true).spawn()?;
    if let Ok(status) = tokio::time::timeout(limit, child.wait()).await {
        return status;
    }
    #[cfg(unix)]
    if let Some(group) = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    child.kill().await?;
    Err(std::io::Error::other(format!("it has not answered within {} s", limit.as_secs())))
}

/// A time of day at which a stay ends.
#[derive(Clone, Debug)]
struct End {
    at: SystemTime,
    /// As the owner has said it, and in minutes.
    said: String,
    minute: u32,
    zone: TimeZone,
    /// Why the stay ends then.
    words: String,
}

impl End {
    /// The next one.
    fn after(now: SystemTime, minute: u32, said: String, zone: TimeZone) -> Option<End> {
        let clock = jiff::Timestamp::try_from(now).ok()?.to_zoned(zone.clone());
        let at = next(minute, &clock)?.timestamp().into();
        Some(End { at, words: format!("it is {said} {}", clock.strftime("%Z")), said, minute, zone })
    }

    /// Where the clock was set: it may have been wrong by more than a day when the stay began.
    fn after_jump(self, jump: Jump, now: SystemTime) -> Option<End> {
        match jump {
            Jump::Forward(by) if by < DAY => Some(self),
            Jump::Forward(_) | Jump::Back(_) => End::after(now, self.minute, self.said, self.zone),
        }
    }
}

/// What has to be known to tell what came of a stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StayFacts {
    /// Of an hour, in any currency; 0: not known.
    price_per_hour: f64,
}

impl StayFacts {
    /// Of a stay that has a limit or a price.
    pub(crate) fn of(settings: &StaySettings) -> Option<StayFacts> {
        (*settings != StaySettings::default()).then_some(StayFacts { price_per_hour: settings.price_per_hour })
    }

    /// What the node has done, and what that costs.
    pub(crate) fn described(self, report: &NodeReport) -> String {
        let hours = report.seconds / 3600.0;
        let tokens = report.times.tokens_trained as f64;
        let training = 100.0 * (report.times.seconds_in_training / report.seconds.max(1e-9)).min(1.0);
        let predictions = examples(&report.prediction);
        let bytes = human_bytes(report.bytes_sent + report.bytes_received);
        let mut text = format!(
            "{hours:.2} h, {training:.0} % of them in training; {:.2} million {predictions} trained on; {bytes} sent and \
             received",
            tokens / 1e6
        );
        if self.price_per_hour > 0.0 {
            let cost = self.price_per_hour * hours;
            text += &format!("; costs {cost:.2}");
            if tokens > 0.0 {
                text += &format!(", {:.3} a million", cost / (tokens / 1e6));
            }
        }
        text
    }
}

/// When the owner's clock next shows this minute of the day, where it does so twice (summer time ends) the next of both. Where the clock
/// skips it (summer time begins), a moment later.
fn next(minute: u32, now: &Zoned) -> Option<Zoned> {
    let (hour, minute) = (i8::try_from(minute / 60 % 24).ok()?, i8::try_from(minute % 60).ok()?);
    let at = |date: jiff::civil::Date, which: Disambiguation| {
        let time = date.to_datetime(Time::new(hour, minute, 0, 0).ok()?);
        now.time_zone().to_ambiguous_zoned(time).disambiguate(which).ok()
    };
    let [first, second] = [Disambiguation::Compatible, Disambiguation::Later].map(|which| at(now.date(), which));
    let today = [first, second].into_iter().flatten().find(|today| today > now);
    today.or_else(|| at(now.date().tomorrow().ok()?, Disambiguation::Compatible))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::StepTimes;

    fn stay(settings: StaySettings, now: &str) -> Stay {
        let limits = LimitsSettings { time_zone: "Europe/Berlin".to_owned(), ..LimitsSettings::default() };
        Stay::begin(&settings, &limits, at(now))
    }

    fn at(text: &str) -> SystemTime {
        text.parse::<jiff::Timestamp>().expect("a time").into()
    }

    const NOTHING: Traffic = Traffic { sent: 0, received: 0 };

    #[test]
    fn a_time_of_day_is_the_next_one_of_the_owners_clock() {
        let until =
            |text: &str, now: &str| stay(StaySettings { until: text.to_owned(), ..StaySettings::default() }, now);
        // 23:30 in Berlin.
        let night = until("06:00", "2026-01-10T22:30:00Z");
        let why = |stay: &Stay, now: &str| stay.why(stay.ends_at.as_ref(), at(now), Duration::ZERO, NOTHING);
        assert_eq!(why(&night, "2026-01-11T04:59:59Z"), None);
        assert_eq!(why(&night, "2026-01-11T05:00:00Z").as_deref(), Some("it is 06:00 CET"));
        assert!(why(&night, "2026-01-11T09:00:00Z").is_some(), "the machine slept past it");
        let early = until("06:00", "2026-01-11T04:00:00Z");
        assert!(why(&early, "2026-01-11T05:00:00Z").is_some());
        let exactly = until("06:00", "2026-01-11T05:00:00Z");
        assert_eq!(why(&exactly, "2026-01-11T05:00:01Z"), None, "tomorrow's is meant");
        // The clock shows 02:10 for the second time: 02:30 is in twenty minutes.
        let twice = until("02:30", "2026-10-25T01:10:00Z");
        assert_eq!(why(&twice, "2026-10-25T01:29:59Z"), None);
        assert!(why(&twice, "2026-10-25T01:30:00Z").is_some());
        let both = until("02:30", "2026-10-25T00:10:00Z");
        assert!(why(&both, "2026-10-25T00:30:00Z").is_some(), "the first of both");
        // The clock goes from 02:00 to 03:00.
        let skipped = until("02:30", "2026-03-28T23:00:00Z");
        assert_eq!(why(&skipped, "2026-03-29T01:29:00Z"), None);
        assert!(why(&skipped, "2026-03-29T01:30:00Z").is_some());
        let midnight = until("24:00", "2026-01-10T20:00:00Z");
        assert_eq!(why(&midnight, "2026-01-10T22:59:59Z"), None);
        assert!(why(&midnight, "2026-01-10T23:00:00Z").is_some());
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_end_a_stay_at_once_or_never() {
        let until = |now: &str| {
            let settings = StaySettings { until: "06:00".to_owned(), ..StaySettings::default() };
            stay(settings, now).ends_at.expect("an end")
        };
        let end = |end: Option<End>| end.expect("an end").at;
        // A machine without a clock of its own begins in 1970, and one that lives ahead comes back.
        for (wrong, jump) in
            [("1970-01-01T20:00:00Z", Jump::Forward(50 * 365 * DAY)), ("2027-01-10T22:30:00Z", Jump::Back(365 * DAY))]
        {
            let now = at("2026-01-10T22:30:00Z");
            assert_eq!(end(until(wrong).after_jump(jump, now)), at("2026-01-11T05:00:00Z"), "{wrong}");
        }
        // 06:30 in Berlin: that time is over.
        let (jump, now) = (Jump::Forward(Duration::from_hours(2)), at("2026-01-11T05:30:00Z"));
        assert!(end(until("2026-01-11T03:30:00Z").after_jump(jump, now)) < now);
    }

    #[test]
    fn hours_and_gigabytes_of_both_ways_end_a_stay() {
        let limited = stay(
            StaySettings { max_hours: 3.0, max_gigabytes: 0.001, ..StaySettings::default() },
            "2026-01-10T22:30:00Z",
        );
        let why = |seconds, sent, received| {
            limited.why(None, at("2026-01-10T22:30:00Z"), Duration::from_secs(seconds), Traffic { sent, received })
        };
        assert_eq!(why(10_799, 499_999, 500_000), None);
        assert_eq!(why(10_800, 0, 0).as_deref(), Some("3 h are over"));
        assert_eq!(why(0, 500_000, 500_000).as_deref(), Some("0.001 GB are used up"));
        let free = stay(StaySettings::default(), "2026-01-10T22:30:00Z");
        assert_eq!(
            free.why(
                None,
                at("2036-01-10T22:30:00Z"),
                Duration::from_secs(1 << 30),
                Traffic { sent: 1 << 60, received: 0 }
            ),
            None
        );
    }

    #[test]
    fn what_a_machine_has_done_is_told_with_what_it_costs() {
        let report = NodeReport {
            seconds: 7200.0,
            times: StepTimes { seconds_in_training: 6480.0, tokens_trained: 1_000_000, ..StepTimes::default() },
            prediction: "byte".to_owned(),
            bytes_sent: 3_000_000_000,
            bytes_received: 2_000_000_000,
            ..NodeReport::default()
        };
        let described = |report: &NodeReport, price_per_hour| StayFacts { price_per_hour }.described(report);
        let text = described(&report, 0.35);
        assert_eq!(
            text,
            "2.00 h, 90 % of them in training; 1.00 million tokens trained on; 5.00 GB sent and received; costs 0.70, 0.700 a \
             million"
        );
        assert!(described(&report, 0.0).ends_with("5.00 GB sent and received"));
        let nothing = described(&NodeReport::default(), 1.0);
        assert!(nothing.ends_with("costs 0.00"), "{nothing}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_command_that_hangs_is_ended_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("child");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sleep 100 & echo $! > {0}.new && mv {0}.new {0}; sleep 100", file.display()));
        let error = super::ask(command, Duration::from_secs(2)).await.expect_err("no answer");
        assert_eq!(error.to_string(), "it has not answered within 2 s");
        let child = std::fs::read_to_string(&file).expect("written");
        let stat = format!("/proc/{}/stat", child.trim());
        // Its new parent may not have looked at it yet.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_over() {
            assert!(Instant::now() < deadline, "{stat}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_providers_notice_ends_a_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("notice");
        let command = |script: String| vec!["sh".to_owned(), "-c".to_owned(), script];
        let by_command = stay(
            StaySettings { notice_command: command(format!("test -e {}", file.display())), ..StaySettings::default() },
            "2026-01-10T22:30:00Z",
        );
        let by_file =
            stay(StaySettings { notice_file: file.clone(), ..StaySettings::default() }, "2026-01-10T22:30:00Z");
        let within = |seconds, stay: Stay| tokio::time::timeout(Duration::from_secs(seconds), stay.over(|| NOTHING));
        let settings = StaySettings { notice_command: command("exit 1".to_owned()), ..StaySettings::default() };
        assert!(within(1, stay(settings, "2026-01-10T22:30:00Z")).await.is_err(), "no notice");
        std::fs::write(&file, "").expect("written");
        assert_eq!(within(60, by_command).await.as_deref(), Ok("notice from sh"));
        assert_eq!(within(60, by_file).await, Ok(format!("notice from {}", file.display())));
    }
}
