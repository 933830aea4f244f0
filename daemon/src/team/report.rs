//! A team in reports: who has which layers, and who was waited for.

use std::time::Duration;

use murmur_network::{Traffic, TrafficCounter};
use murmur_protocol::team::{TeamPhase, TeamStatus};
use murmur_training::team::TeamView;
use serde::{Deserialize, Serialize};

use crate::console::{counted, human_bytes};
use crate::observe::record::TeamFacts;

/// A helper that is waited for so long in the middle of a batch or a copy is shown: a piece of work takes less as a rule. A guess.
const WAIT_SHOWN: Duration = Duration::from_secs(5);

/// What reports of a team are made from.
#[derive(Clone, Debug)]
pub(crate) struct TeamSource {
    pub(crate) view: TeamView,
    /// Bytes to helpers and from them.
    pub(crate) counter: TrafficCounter,
}

/// The team of a captain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TeamReport {
    /// waiting, cutting, training or ended.
    pub state: String,
    /// The cut in words; none before there is one.
    pub cut: Option<String>,
    /// Helpers that are there.
    pub helpers: Vec<String>,
    /// Gigabytes that are missing where it waits for a helper.
    pub missing_gigabytes: f64,
    /// Seconds for which training has waited because the team was not whole.
    pub seconds_without: f64,
    /// Seconds for which training has waited for helpers in the middle of batches.
    pub seconds_waiting: f64,
    /// Those, by helper.
    pub waits: Vec<HelperWait>,
    /// Who is waited for right now, where that has lasted for some seconds.
    pub waits_for: Option<HelperWait>,
    /// Batches that all have stepped with.
    pub batches: u64,
    /// Batches that came to nothing and were begun anew.
    pub batches_dropped: u64,
    /// How often a helper was lost.
    pub helpers_lost: u64,
    /// Steps that the layers of a lost helper may have missed.
    pub steps_missed: u64,
    /// Steps that layers of lost helpers have gone back.
    pub steps_lost: u64,
    /// Steps that their optimizer's moments have gone back, which may be more.
    #[serde(default)]
    pub moments_lost: u64,
    /// Bytes sent to helpers; they are none of the swarm's.
    pub bytes_sent: u64,
    /// Bytes received from helpers.
    pub bytes_received: u64,
}

/// How long a helper was waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HelperWait {
    /// Its peer id.
    pub helper: String,
    /// Since when, or how long in all.
    pub seconds: f64,
}

impl TeamSource {
    /// None before training has begun.
    pub(crate) fn report(&self) -> Option<TeamReport> {
        let TeamStatus { phase, cut, helpers, missing_bytes, waited, counts, .. } = self.view.status()?;
        let (waits, Traffic { sent, received }) = (self.view.waits(), self.counter.read());
        let awaits = self.view.awaits().filter(|(_, time)| *time >= WAIT_SHOWN);
        let waits_for =
            awaits.map(|(helper, time)| HelperWait { helper: helper.to_string(), seconds: time.as_secs_f64() });
        let state = match phase {
            TeamPhase::Waiting => "waiting",
            TeamPhase::Cutting => "cutting",
            _ if waits_for.is_some() => "waiting",
            TeamPhase::Ready | TeamPhase::Computing | TeamPhase::Stepping | TeamPhase::Copying => "training",
            TeamPhase::Ended => "ended",
        };
        Some(TeamReport {
            state: state.to_owned(),
            cut: cut.as_ref().map(super::words::described),
            helpers: helpers.iter().map(ToString::to_string).collect(),
            missing_gigabytes: missing_bytes as f64 / 1e9,
            seconds_without: waited.as_secs_f64() + self.view.seconds_without(),
            seconds_waiting: waits.iter().map(|(_, seconds)| seconds).sum(),
            waits: waits
                .iter()
                .map(|(helper, seconds)| HelperWait { helper: helper.to_string(), seconds: *seconds })
                .collect(),
            waits_for,
            batches: counts.stepped,
            batches_dropped: counts.dropped,
            helpers_lost: counts.helpers_lost,
            steps_missed: counts.steps_missed,
            steps_lost: counts.revisions_lost,
            moments_lost: counts.moments_lost,
            bytes_sent: sent,
            bytes_received: received,
        })
    }
}

impl TeamReport {
    /// As it is recorded.
    pub(crate) fn facts(&self) -> TeamFacts {
        let slowest = self.waits.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds));
        TeamFacts {
            state: self.state.clone(),
            cut: self.cut.clone(),
            waited: self.seconds_without + self.seconds_waiting,
            slowest: slowest.map(|wait| wait.helper.clone()),
            lost: self.helpers_lost,
        }
    }

    /// In a line: who has what, and how long was waited.
    pub(crate) fn summary(&self) -> String {
        let cut = self.doing().or_else(|| self.cut.clone()).unwrap_or_else(|| self.state.clone());
        let mut text = format!("{cut} · waited {:.0} s", self.seconds_without + self.seconds_waiting);
        if let Some(slowest) = self.facts().slowest {
            text += &format!(", most for {}", &slowest[slowest.len().saturating_sub(8)..]);
        }
        if self.helpers_lost > 0 {
            text += &format!(" · {} lost", counted(self.helpers_lost, "helper"));
        }
        text
    }

    /// What goes on instead of training; none while it trains.
    pub(crate) fn doing(&self) -> Option<String> {
        if let Some(HelperWait { helper, seconds }) = &self.waits_for {
            return Some(format!("waiting for {} for {seconds:.0} s", &helper[helper.len().saturating_sub(8)..]));
        }
        match self.state.as_str() {
            "waiting" if self.missing_gigabytes > 0.0 => {
                Some(format!("waiting for a helper with {}", human_bytes((1e9 * self.missing_gigabytes) as u64)))
            }
            "waiting" => Some("waiting for helpers".to_owned()),
            "cutting" => Some("sharing the model out among the team".to_owned()),
            _ => None,
        }
    }
}
