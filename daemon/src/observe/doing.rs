//! What a node does now.

use murmur_protocol::{Phase, Status};

use crate::console::figures::{counted, human_bytes};
use crate::drivers::{DataReport, TrainingView};
use crate::store::Saving;
use crate::team::report::TeamReport;

/// Whether a member of a synchronous run has nobody to average with.
pub(crate) fn is_seeking(status: &Status) -> bool {
    status.synchronous.as_ref().is_some_and(|synchronous| synchronous.members == 0 && !synchronous.is_left_out)
}

/// Whether a member of a synchronous run waits for the model of the others.
fn is_copying_replica(status: &Status) -> bool {
    status.synchronous.as_ref().is_some_and(|synchronous| synchronous.is_copying)
}

/// Whether it makes steps: not while it waits for members, their model or helpers, nor while it rests in a synchronous run.
pub(super) fn is_stepping(status: &Status, team: Option<&TeamReport>) -> bool {
    let stands_still =
        is_seeking(status) || is_copying_replica(status) || (status.is_resting && status.synchronous.is_some());
    status.phase == Phase::Training && !stands_still && team.and_then(TeamReport::doing).is_none()
}

/// Whether too little of the data that the swarm shares is here to train: nobody connected may have it.
pub(crate) fn lacks_data(data: Option<&DataReport>) -> bool {
    data.is_some_and(|data| !data.suffices)
}

/// In words, for people. `state_bytes`: of a model on its way to a joiner.
pub(super) fn doing(
    status: &Status,
    (training, saving, data): (&TrainingView, Saving, Option<&DataReport>),
    team: Option<&TeamReport>,
    state_bytes: u64,
) -> String {
    if let Some(copy) = status.copying.as_ref().filter(|copy| copy.chunks > 0 || !copy.donors.is_empty()) {
        let share = copy.chunks as f64 / copy.of.max(1) as f64;
        let bytes = (share * state_bytes as f64) as u64;
        let members = counted(copy.donors.len() as u64, "member");
        return format!("copying the model: {} of {} from {members}", human_bytes(bytes), human_bytes(state_bytes));
    }
    if let Some(doing) = team.and_then(TeamReport::doing).filter(|_| status.phase == Phase::Training) {
        return doing;
    }
    let doing = match status.phase {
        Phase::Joining => "looking for a member that gives the model",
        Phase::Training | Phase::Settling | Phase::Completed if training.is_evaluating => "evaluating",
        Phase::Training | Phase::Settling | Phase::Completed if saving == Saving::UnderWay => "writing a checkpoint",
        Phase::Training if is_copying_replica(status) => "copying the model of the others",
        Phase::Training if is_seeking(status) => "waiting for members to average with",
        Phase::Training if lacks_data(data) => "waiting for shards of the run's data",
        Phase::Training => "training",
        Phase::Settling => "last exchanges",
        Phase::Completed if saving == Saving::Failed => {
            "training is over, but the model could not be saved (its log says why)"
        }
        Phase::Completed => "training is over; it answers the others",
        Phase::Leaving => "leaving",
        Phase::Left => "gone",
    };
    doing.to_owned()
}

#[cfg(test)]
mod tests {
    use murmur_protocol::PeerId;
    use murmur_protocol::status::SynchronousStatus;

    use super::*;

    #[test]
    fn who_waits_or_rests_in_a_synchronous_run_makes_no_steps() {
        let training = Status { phase: Phase::Training, ..Status::of(PeerId::from_public_key([1; 32])) };
        let synchronous = |members, is_resting| {
            let synchronous = SynchronousStatus { members, ..SynchronousStatus::default() };
            Status { synchronous: Some(synchronous), is_resting, ..training.clone() }
        };
        assert!(is_stepping(&training, None) && is_stepping(&synchronous(2, false), None));
        assert!(is_stepping(&Status { is_resting: true, ..training.clone() }, None), "it trains on by itself");
        assert!(!is_stepping(&synchronous(0, false), None) && !is_stepping(&synchronous(2, true), None));
        let mut copying = synchronous(2, false);
        copying.synchronous.as_mut().expect("it is").is_copying = true;
        assert!(!is_stepping(&copying, None));
        let doing_with = |status, saving, data: Option<DataReport>| {
            doing(status, (&TrainingView::default(), saving, data.as_ref()), None, 0)
        };
        let told = |status, data| doing_with(status, Saving::Done, data);
        assert_eq!(told(&copying, None), "copying the model of the others");
        let data = |suffices| DataReport { suffices, ..DataReport::default() };
        assert_eq!(told(&training, Some(data(false))), "waiting for shards of the run's data");
        assert_eq!([told(&training, Some(data(true))), told(&training, None)], ["training"; 2]);
        let completed = Status { phase: Phase::Completed, ..training.clone() };
        let saved = [Saving::Done, Saving::UnderWay, Saving::Failed].map(|saving| doing_with(&completed, saving, None));
        assert_eq!(saved[1], "writing a checkpoint");
        assert!(!saved[0].contains("saved") && saved[2].contains("could not be saved"), "{saved:?}");
        assert!(!is_stepping(&Status { phase: Phase::Settling, ..training.clone() }, None));
        let team = |state: &str| TeamReport { state: state.to_owned(), ..TeamReport::default() };
        assert!(is_stepping(&training, Some(&team("training"))) && !is_stepping(&training, Some(&team("waiting"))));
    }
}
