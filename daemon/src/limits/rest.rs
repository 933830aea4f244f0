//! When a node leaves the network alone: in quiet hours, and once a day's bytes are used up.
//!
//! Hours and days are those of the owner's time zone, summer time included.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Zoned;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use murmur_network::Traffic;
use murmur_protocol::{Event, Phase, Status};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::console::{ToldOnce, note};
use crate::engine::Picture;
use crate::limits::clock::WallClock;
use crate::limits::quiet_hours::{QuietHours, parse_time_zone};
use crate::settings::LimitsSettings;
use crate::store::write_atomically;

/// How often the clock and the bytes are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How often the day's bytes are written: a killed node loses the count of as long.
const WRITE_PERIOD: Duration = Duration::from_secs(10);

/// They are written sooner where this part of the day's budget has come: a fast link uses much of it in that time, and a node that
/// is killed may be started again and again.
const WRITE_PART: u64 = 100;

/// Days are counted from here.
const DAY_ZERO: Date = date(1970, 1, 1);

/// The owner's clock at this time.
pub(crate) fn owners_clock(limits: &LimitsSettings, now: SystemTime) -> Zoned {
    Rules::new(limits).clock(now)
}

/// A node's rules.
#[derive(Clone, Debug)]
struct Rules {
    quiet: Option<QuietHours>,
    /// Bytes a day.
    budget: Option<u64>,
    time_zone: TimeZone,
}

impl Rules {
    fn new(limits: &LimitsSettings) -> Rules {
        Rules {
            quiet: QuietHours::parse(&limits.quiet_hours).flatten(),
            budget: (limits.daily_gigabytes > 0.0).then_some((limits.daily_gigabytes * 1e9) as u64),
            time_zone: parse_time_zone(&limits.time_zone).unwrap_or(TimeZone::UTC),
        }
    }

    /// The owner's clock.
    fn clock(&self, now: SystemTime) -> Zoned {
        // A clock beyond the year 9999 is wrong anyway.
        let now = jiff::Timestamp::try_from(now).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        now.to_zoned(self.time_zone.clone())
    }

    fn is_spent(&self, bytes_today: u64) -> bool {
        self.budget.is_some_and(|budget| bytes_today >= budget)
    }

    /// With which flag the node would not rest now.
    fn flag_against(&self, bytes_today: u64) -> &'static str {
        if self.is_spent(bytes_today) { "--daily-gigabytes 0" } else { "--quiet-hours \"\"" }
    }

    /// Why the node rests, and until when, for people.
    fn reason(&self, now: &Zoned, bytes_today: u64) -> Option<String> {
        if self.is_spent(bytes_today) {
            return Some(format!("daily budget used up until 00:00 {}", now.strftime("%Z")));
        }
        let minute = 60 * u32::from(now.hour().unsigned_abs()) + u32::from(now.minute().unsigned_abs());
        let quiet = self.quiet.filter(|quiet| quiet.contains(minute))?;
        Some(format!(
            "quiet hours until {:02}:{:02} {}",
            quiet.until() / 60 % 24,
            quiet.until() % 60,
            now.strftime("%Z")
        ))
    }
}

/// Which day it is, from [`DAY_ZERO`].
fn day_of(now: &Zoned) -> i32 {
    DAY_ZERO.duration_until(now.date()).as_hours() as i32 / 24
}

/// Days whose bytes are known beside those of the day that it is: a clock may be wrong for a while and be set right again, as on
/// machines that keep no time while they are off.
const OTHER_DAYS_MAX: usize = 3;

/// The bytes of one day, as they are kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DayCount {
    /// Days since 1970, in the owner's time.
    day: i32,
    bytes: u64,
    /// Days that it has been, and their bytes, the latest first.
    #[serde(default)]
    others: Vec<(i32, u64)>,
}

impl DayCount {
    /// A damaged count is no reason not to start: the day begins anew.
    fn read(path: &Path) -> DayCount {
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// The count of this day from now on.
    fn on(mut self, day: i32) -> DayCount {
        // Not `<`: where the clock was set back, the budget of a day that has not come yet would be used up.
        if self.day != day {
            if self.bytes > 0 {
                self.others.insert(0, (self.day, self.bytes));
            }
            let known = self.others.iter().position(|(other, _)| *other == day);
            let bytes = known.map_or(0, |place| self.others.remove(place).1);
            self.others.truncate(OTHER_DAYS_MAX);
            (self.day, self.bytes) = (day, bytes);
        }
        self
    }
}

/// Watches the clock and the bytes.
pub(crate) struct Rest {
    rules: Rules,
    path: PathBuf,
    count: DayCount,
    seen: Traffic,
}

/// What is shown of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestView {
    /// Why the node rests, where it does.
    pub(crate) reason: Option<String>,
    /// The day that it was then, in days since 1970.
    day: i32,
    /// Bytes of the day, both ways.
    pub(crate) bytes_today: u64,
}

impl Rest {
    pub(crate) fn new(limits: &LimitsSettings, path: PathBuf) -> Rest {
        Rest { rules: Rules::new(limits), count: DayCount::read(&path), path, seen: Traffic::default() }
    }

    /// Takes in the traffic so far, and tells how things stand.
    pub(crate) fn look(&mut self, now: SystemTime, traffic: Traffic) -> RestView {
        let now = self.rules.clock(now);
        let sum = |traffic: Traffic| traffic.sent + traffic.received;
        self.count = std::mem::take(&mut self.count).on(day_of(&now));
        self.count.bytes += sum(traffic).saturating_sub(sum(self.seen));
        self.seen = traffic;
        let DayCount { day, bytes, .. } = self.count;
        RestView { reason: self.rules.reason(&now, bytes), day, bytes_today: bytes }
    }

    /// Whether the count is to be written, where this one was so long ago.
    fn is_to_write(&self, written: &DayCount, ago: Duration) -> bool {
        let more = self.count.bytes.saturating_sub(written.bytes);
        let is_much = self.rules.budget.is_some_and(|budget| more >= budget / WRITE_PART);
        self.count != *written && (is_much || ago >= WRITE_PERIOD)
    }

    /// Writes the count as last looked at.
    pub(crate) fn write_count(&self) {
        Rest::write(&self.path, &self.count);
    }

    fn write(path: &Path, count: &DayCount) {
        let bytes = serde_json::to_vec(count).expect("numbers are serialisable");
        static TOLD: ToldOnce = ToldOnce::new();
        TOLD.look("the day's bytes", write_atomically(path, &bytes));
    }

    /// Tells the core when a rest begins and ends, until the other end of `end` is dropped. Nothing is written after it returns.
    pub(crate) async fn watch(
        mut self,
        pictures: watch::Receiver<Picture>,
        events: mpsc::Sender<Event>,
        view: watch::Sender<RestView>,
        mut end: oneshot::Receiver<()>,
    ) {
        let mut ticks = tokio::time::interval(LOOK_PERIOD);
        let (mut written, mut written_at) = (self.count.clone(), Instant::now());
        let mut is_resting = false;
        let mut clock = WallClock::new();
        loop {
            tokio::select! {
                _ = &mut end => return,
                _ = ticks.tick() => {}
            }
            if let Some(jump) = clock.look() {
                note(&format!(
                    "warning: this machine's clock {}\nhint: quiet hours, the day's budget and --until go by it, and \
                     nothing else; keep it by NTP, for example with `timedatectl set-ntp true`",
                    jump.described()
                ));
            }
            let traffic = pictures.borrow().traffic;
            let looked = self.look(SystemTime::now(), traffic);
            if looked.reason.is_some() != is_resting {
                is_resting = looked.reason.is_some();
                let event = if is_resting { Event::RestBegan } else { Event::RestEnded };
                let flag = self.rules.flag_against(looked.bytes_today);
                let means = Means::of(&pictures.borrow().status);
                note(&describe(looked.reason.as_deref(), means, flag));
                if events.send(event).await.is_err() {
                    return;
                }
            }
            view.send_replace(looked);
            if self.is_to_write(&written, written_at.elapsed()) {
                (written, written_at) = (self.count.clone(), Instant::now());
                let (path, count) = (self.path.clone(), self.count.clone());
                let _ = tokio::task::spawn_blocking(move || Rest::write(&path, &count)).await;
            }
        }
    }

    /// Writes the count at the end: `bytes_today` as last looked at, of the day that it was then.
    pub(crate) fn keep(path: &Path, view: &RestView) {
        Rest::write(path, &DayCount { bytes: view.bytes_today, ..DayCount::read(path).on(view.day) });
    }
}

/// What a rest means for a node.
#[derive(Clone, Copy, Debug)]
enum Means {
    /// It has nothing to train: it would have to copy the model first, which is what its owner does not want to spend now.
    JoiningWaits,
    /// It trains only together with the others.
    TrainingWaits,
    TrainingGoesOn,
}

impl Means {
    fn of(status: &Status) -> Means {
        match status.phase {
            Phase::Joining => Means::JoiningWaits,
            Phase::Training if status.synchronous.is_some() => Means::TrainingWaits,
            _ => Means::TrainingGoesOn,
        }
    }
}

/// That a rest has begun, and what it means, or that it is over.
fn describe(reason: Option<&str>, means: Means, flag: &str) -> String {
    match (reason, means) {
        (Some(reason), Means::TrainingGoesOn) => format!("resting     {reason}; training goes on"),
        (Some(reason), Means::TrainingWaits) => {
            format!("resting     {reason}; training stands still, since all members of this run step together")
        }
        (Some(reason), Means::JoiningWaits) => format!(
            "resting     {reason}; joining waits until then, and nothing is trained before\nhint: to join now, start \
             again with {flag}"
        ),
        (None, Means::TrainingGoesOn) => "rested      exchanges go on".to_owned(),
        (None, Means::TrainingWaits) => "rested      training goes on".to_owned(),
        (None, Means::JoiningWaits) => "rested      joining goes on".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use murmur_protocol::PeerId;
    use murmur_protocol::status::SynchronousStatus;

    use super::*;

    fn at(hours: u64, minutes: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 + hours * 3600 + minutes * 60)
    }

    fn utc() -> LimitsSettings {
        LimitsSettings { time_zone: "UTC".to_owned(), ..LimitsSettings::default() }
    }

    fn traffic(sent: u64, received: u64) -> Traffic {
        Traffic { sent, received }
    }

    #[test]
    fn quiet_hours_may_span_midnight_and_follow_the_time_zone() {
        let hours = "22:00-07:00".to_owned();
        let limits = LimitsSettings { quiet_hours: hours, ..utc() };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut rest = Rest::new(&limits, folder.path().join("traffic.json"));
        let mut reason = |hours, minutes| rest.look(at(hours, minutes), traffic(0, 0)).reason;
        assert_eq!(reason(21, 59), None);
        assert_eq!(reason(22, 0).as_deref(), Some("quiet hours until 07:00 UTC"));
        assert_eq!(reason(6, 59).as_deref(), Some("quiet hours until 07:00 UTC"));
        assert_eq!(reason(7, 0), None);
        let limits = LimitsSettings { time_zone: "+02:00".to_owned(), ..limits };
        let mut rest = Rest::new(&limits, folder.path().join("traffic.json"));
        let mut reason = |hours, minutes| rest.look(at(hours, minutes), traffic(0, 0)).reason;
        assert_eq!(reason(20, 0).as_deref(), Some("quiet hours until 07:00 +02"));
        assert_eq!(reason(5, 0), None);
    }

    #[test]
    fn quiet_hours_follow_summer_time() {
        let zone = |time_zone: &str| LimitsSettings {
            quiet_hours: "22:00-07:00".to_owned(),
            time_zone: time_zone.to_owned(),
            ..LimitsSettings::default()
        };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut rest = Rest::new(&zone("Europe/Berlin"), folder.path().join("traffic.json"));
        let mut reason = |text: &str| {
            let time: jiff::Timestamp = text.parse().expect("a time");
            rest.look(time.into(), traffic(0, 0)).reason
        };
        assert_eq!(reason("2026-07-01T05:30:00Z"), None, "half past seven in summer");
        assert_eq!(reason("2026-12-01T05:30:00Z").as_deref(), Some("quiet hours until 07:00 CET"), "half past six");
        // The night in which the clock goes from two to three.
        assert_eq!(reason("2026-03-29T04:59:00Z").as_deref(), Some("quiet hours until 07:00 CEST"));
        assert_eq!(reason("2026-03-29T05:00:00Z"), None);
    }

    #[test]
    fn a_days_budget_survives_a_restart_and_ends_at_midnight() {
        let limits = LimitsSettings { daily_gigabytes: 0.001, ..utc() };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("traffic.json");
        let mut rest = Rest::new(&limits, path.clone());
        assert_eq!(rest.look(at(9, 0), traffic(300_000, 300_000)).reason, None);
        Rest::write(&path, &rest.count);
        let mut again = Rest::new(&limits, path.clone());
        assert_eq!(again.look(at(10, 0), traffic(0, 0)).bytes_today, 600_000);
        let looked = again.look(at(10, 1), traffic(200_000, 200_000));
        assert_eq!(looked.reason.as_deref(), Some("daily budget used up until 00:00 UTC"));
        let looked = again.look(at(24, 0), traffic(200_000, 200_010));
        assert_eq!((looked.reason, looked.bytes_today), (None, 10));
        // A clock that is set right again: the day has what it had.
        let mut day = |hours| again.look(at(hours, 0), traffic(200_000, 200_010)).bytes_today;
        assert_eq!([day(2000), day(48), day(11), day(24), day(25)], [0, 0, 1_000_000, 10, 10]);
        std::fs::write(&path, b"{").expect("written");
        assert_eq!(Rest::new(&limits, path).count, DayCount::default(), "a damaged count is forgotten");
    }

    #[test]
    fn who_leaves_just_after_midnight_has_used_nothing_of_the_new_day() {
        let limits = LimitsSettings { daily_gigabytes: 0.001, ..utc() };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("traffic.json");
        let mut rest = Rest::new(&limits, path.clone());
        rest.look(at(9, 0), traffic(600_000, 0));
        rest.write_count();
        let last = rest.look(at(23, 59), traffic(999_000, 0));
        Rest::keep(&path, &last);
        let again = |hours| Rest::new(&limits, path.clone()).look(at(hours, 0), traffic(0, 0)).bytes_today;
        assert_eq!([again(23), again(24), again(23)], [999_000, 0, 999_000]);
    }

    #[test]
    fn much_of_the_days_budget_is_written_at_once_and_the_rest_now_and_then() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let is_to_write = |daily_gigabytes, bytes, ago| {
            let limits = LimitsSettings { daily_gigabytes, ..utc() };
            let mut rest = Rest::new(&limits, folder.path().join("traffic.json"));
            rest.look(at(9, 0), traffic(0, 0));
            let written = rest.count.clone();
            rest.look(at(9, 0), traffic(bytes, 0));
            rest.is_to_write(&written, Duration::from_secs(ago))
        };
        assert!(is_to_write(1.0, 10_000_000, 1) && !is_to_write(1.0, 9_000_000, 1));
        assert!(is_to_write(1.0, 9_000_000, 10) && !is_to_write(1.0, 0, 10));
        assert!(!is_to_write(0.0, 10_000_000, 1), "there is no budget");
    }

    #[test]
    fn a_joiner_is_told_that_it_waits_until_when_and_how_to_join_now() {
        let told = describe(Some("quiet hours until 07:00 UTC"), Means::JoiningWaits, "--quiet-hours \"\"");
        assert!(told.contains("until 07:00 UTC; joining waits until then"), "{told}");
        assert!(told.ends_with("hint: to join now, start again with --quiet-hours \"\""), "{told}");
        assert!(!told.contains("training goes on"), "{told}");
        assert!(describe(Some("quiet hours until 07:00 UTC"), Means::TrainingGoesOn, "").ends_with("training goes on"));
        let mut status = Status { phase: Phase::Training, ..Status::of(PeerId::from_public_key([1; 32])) };
        assert!(describe(Some("a reason"), Means::of(&status), "").contains("training goes on"));
        status.synchronous = Some(SynchronousStatus::default());
        assert!(describe(Some("a reason"), Means::of(&status), "").contains("training stands still"));
        let limits = LimitsSettings { daily_gigabytes: 1.0, quiet_hours: "22:00-07:00".to_owned(), ..utc() };
        let rules = Rules::new(&limits);
        assert_eq!(rules.flag_against(0), "--quiet-hours \"\"");
        assert_eq!(rules.flag_against(1_000_000_000), "--daily-gigabytes 0");
    }
}
