//! The clock: compared with a member's, as NTP does, and asked whether this system keeps it.

use std::time::Duration;

use murmur_protocol::handshake::ClockOffset;
use tokio::process::Command;
use tokio::time::timeout;

use super::Finding;

/// A clock that is further from a member's than this, in seconds, is worth a word: one that is kept by NTP is within
/// tenths, and quiet hours count in minutes.
const OFFSET_SECONDS_MAX: f64 = 5.0;

/// How long the system may take to say whether its clock is kept; its service manager may not run at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// What a wrong clock does, and does not.
const EFFECT: &str = "quiet hours and the day of a budget go by this clock; training and exchanges do not";

/// Judges this machine's clock; `offset` is that of a member, where one was asked.
pub async fn check_clock(offset: Option<ClockOffset>) -> Finding {
    judge(offset, is_kept().await)
}

/// `is_kept`: whether this system says that its clock follows a time server.
fn judge(offset: Option<ClockOffset>, is_kept: Option<bool>) -> Finding {
    let fix = format!("keep it by NTP, for example with `timedatectl set-ntp true`: {EFFECT}");
    let kept = match is_kept {
        Some(true) => "kept by a time server",
        Some(false) => "kept by no time server",
        None => "whether a time server keeps it, this system does not say",
    };
    let Some(ClockOffset { ahead, error }) = offset else {
        return match is_kept {
            Some(false) => Finding::warning("clock", kept.to_owned(), fix),
            _ => Finding::good("clock", kept.to_owned()),
        };
    };
    let (ahead, error) = (1e-6 * ahead as f64, 1e-6 * error as f64);
    // What the way there and back leaves open is not held against it.
    let is_close = ahead.abs() <= OFFSET_SECONDS_MAX + error;
    let direction = if ahead > 0.0 { "behind" } else { "ahead of" };
    let text = format!("{:.3} s {direction} a member's, ± {error:.3} s; {kept}", ahead.abs());
    match (is_close, is_kept) {
        (true, _) => Finding::good("clock", text),
        // Which of both is wrong is plain; there is nothing to mend on this machine.
        (false, Some(true)) => Finding::warning("clock", text, "the member's is wrong: its owner may want to know"),
        (false, _) => Finding::warning("clock", text, fix),
    }
}

/// What the service manager knows of the kernel's own record; nothing where there is none.
async fn is_kept() -> Option<bool> {
    let mut command = Command::new("timedatectl");
    command.args(["show", "--property=NTPSynchronized", "--value"]).kill_on_drop(true);
    let output = timeout(ANSWER_TIMEOUT, command.output()).await.ok()?.ok()?;
    match output.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    fn offset(ahead_seconds: i64, error_seconds: u64) -> Option<ClockOffset> {
        Some(ClockOffset { ahead: ahead_seconds * 1_000_000, error: error_seconds * 1_000_000 })
    }

    #[test]
    fn a_clock_far_from_a_members_comes_with_what_depends_on_it() {
        let finding = judge(offset(3600, 0), None);
        assert_eq!(finding.health, Health::Warning);
        assert!(finding.text.starts_with("3600.000 s behind a member's"), "{}", finding.text);
        assert!(finding.fix.contains("set-ntp true") && finding.fix.contains("quiet hours"), "{}", finding.fix);
        let finding = judge(offset(-3600, 0), Some(true));
        assert!(finding.text.starts_with("3600.000 s ahead of a member's"), "{}", finding.text);
        assert!(finding.health == Health::Warning && finding.fix.starts_with("the member's is wrong"), "{finding:?}");
    }

    #[test]
    fn a_close_clock_is_good_and_a_slow_answer_is_not_held_against_it() {
        assert_eq!(judge(offset(-5, 0), Some(false)).health, Health::Good);
        assert_eq!(judge(offset(12, 10), None).health, Health::Good);
        assert_eq!(judge(offset(16, 10), None).health, Health::Warning);
    }

    #[test]
    fn without_a_member_the_system_is_believed() {
        assert_eq!(judge(None, Some(true)).health, Health::Good);
        assert_eq!(judge(None, None).health, Health::Good);
        assert_eq!(judge(None, Some(false)).health, Health::Warning);
    }
}
