//! What `murmur doctor` looks at before a machine joins: each check is a file, each finding a line with its remedy.

mod averaging;
mod clock;
mod machine;
mod privacy;
mod storage;
mod swarm;
mod team;
mod verdict;

pub use averaging::judge_averaging;
pub use clock::check_clock;
pub(crate) use machine::measure_briefly;
pub use machine::{Measured, check_machine};
pub use privacy::check_privacy;
pub use storage::check_storage;
pub use swarm::{Found, WATCHING, ask_swarm, check_ports};
pub(crate) use team::{check_team, own_speed};
pub use verdict::verdict;

use serde::Serialize;

use crate::failure::{ExitCode, Failure};

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Good,
    /// It works, but could be better.
    Warning,
    /// Taking part will not work.
    Problem,
}

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The thing looked at, one word.
    pub check: &'static str,
    /// How it is.
    pub health: Health,
    /// The facts, with their numbers.
    pub text: String,
    /// What to do about it; empty where nothing needs doing.
    pub fix: String,
    /// With what a daemon would end that meets this problem.
    #[serde(skip)]
    pub code: ExitCode,
}

impl Finding {
    pub(crate) fn good(check: &'static str, text: String) -> Finding {
        Finding { check, health: Health::Good, text, fix: String::new(), code: ExitCode::Failure }
    }

    /// What would keep a daemon from starting.
    pub(crate) fn of_failure(check: &'static str, failure: &Failure) -> Finding {
        let problem = Finding::problem(check, failure.to_string(), failure.remedy());
        Finding { code: failure.code(), ..problem }
    }

    pub(crate) fn warning(check: &'static str, text: String, fix: impl Into<String>) -> Finding {
        Finding { check, health: Health::Warning, text, fix: fix.into(), code: ExitCode::Failure }
    }

    pub(crate) fn problem(check: &'static str, text: String, fix: impl Into<String>) -> Finding {
        let code = match check {
            "ports" | "swarm" | "reachable" => ExitCode::Network,
            "disk" => ExitCode::Files,
            _ => ExitCode::Failure,
        };
        Finding { check, health: Health::Problem, text, fix: fix.into(), code }
    }
}
