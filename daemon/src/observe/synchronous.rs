//! What a member of a synchronous run tells: who averages, and how long it has waited.

use murmur_protocol::status::SynchronousStatus;
use murmur_protocol::{PeerId, Phase};
use serde::{Deserialize, Serialize};

use crate::console::figures::{counted, duration};

/// All-reduces of a synchronous run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SynchronousReport {
    /// Members that average together, this node counted; 0 while it waits to be taken in, or for more of them, and once it has ended.
    pub members: usize,
    /// Whether its own training is over, so that it averages no more.
    #[serde(default)]
    pub has_ended: bool,
    /// All-reduces that this node has finished.
    pub all_reduces: u64,
    /// Seconds that it has waited for others in all.
    pub seconds_waited: f64,
    /// Peer id of the member that is waited for now.
    pub waits_for: Option<String>,
    /// Whether the others go on without it, because its part was late: what it computes now is replaced by their model.
    pub is_left_out: bool,
    /// All-reduces that were begun anew, because a member was late or gone, or one came.
    pub dropped: u64,
    /// Replicas copied from another member.
    pub copied: u64,
    /// Times that another member's replica had other bits.
    pub differed: u64,
    /// How long an all-reduce is waited for at present, in seconds.
    pub deadline_seconds: f64,
}

impl SynchronousReport {
    pub(crate) fn new(status: &SynchronousStatus, phase: Phase) -> SynchronousReport {
        let has_ended = matches!(phase, Phase::Settling | Phase::Completed | Phase::Leaving | Phase::Left);
        SynchronousReport {
            // The core still knows whom it has averaged with.
            members: if has_ended { 0 } else { status.members },
            has_ended,
            all_reduces: status.finished,
            seconds_waited: status.waited.as_secs_f64(),
            waits_for: status.awaited.map(|peer| peer.to_string()),
            is_left_out: status.is_left_out,
            dropped: status.dropped,
            copied: status.copied,
            differed: status.differed,
            deadline_seconds: status.deadline.as_secs_f64(),
        }
    }

    /// Such as `3 members average together · waited 12.3 s, now for aB3dE5fG`.
    pub(crate) fn summary(&self) -> String {
        let members = match self.members {
            0 if self.has_ended => "averages no more".to_owned(),
            0 if self.is_left_out => "late: the others average without it".to_owned(),
            0 => "waits for members".to_owned(),
            1 => "averages with nobody".to_owned(),
            count => format!("{count} members average together"),
        };
        let awaited: Option<PeerId> = self.waits_for.as_ref().and_then(|peer| peer.parse().ok());
        let now = awaited.map_or(String::new(), |peer| format!(", now for {}", peer.short()));
        let (count, waited) = (counted(self.all_reduces, "all-reduce"), seconds(self.seconds_waited));
        format!("{members} · {count} · waited {waited}{now}")
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    duration(std::time::Duration::from_secs(seconds as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_averages_and_how_long_was_waited_is_said_in_words() {
        let report =
            SynchronousReport { members: 3, all_reduces: 1, seconds_waited: 1.3, ..SynchronousReport::default() };
        assert_eq!(report.summary(), "3 members average together · 1 all-reduce · waited 1.3 s");
        let report = SynchronousReport { seconds_waited: 130.0, ..SynchronousReport::default() };
        assert_eq!(report.summary(), "waits for members · 0 all-reduces · waited 2 min 10 s");
        let peer = PeerId::from_public_key([1; 32]);
        let waiting = SynchronousReport { waits_for: Some(peer.to_string()), ..report.clone() };
        assert!(waiting.summary().ends_with(&format!("waited 2 min 10 s, now for {}", peer.short())));
        let late = SynchronousReport { is_left_out: true, ..report };
        assert!(late.summary().starts_with("late: the others average without it · "), "{}", late.summary());
    }

    #[test]
    fn who_has_ended_averages_with_nobody_though_the_core_knows_the_group() {
        let status = SynchronousStatus { members: 3, finished: 7, ..SynchronousStatus::default() };
        let told = |phase| SynchronousReport::new(&status, phase).summary();
        assert_eq!(told(Phase::Training), "3 members average together · 7 all-reduces · waited 0.0 s");
        assert_eq!(told(Phase::Completed), "averages no more · 7 all-reduces · waited 0.0 s");
        assert_eq!(SynchronousReport::new(&status, Phase::Completed).members, 0);
    }
}
