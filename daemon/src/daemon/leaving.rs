//! Leaving within the seconds that the owner gives (`stay.leave_seconds`): machines that are taken back at short notice.
//!
//! A checkpoint is written as soon as the wish to stop is there, beside the node's last exchange, and one more after it if
//! time is left. There is no last evaluation.

use std::time::Duration;

use murmur_protocol::bounds::LEAVE_TIMEOUT;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::drivers::{CheckpointRequests, NotSaved, SavedCheckpoint};

/// What is left for the training thread to end, after the last checkpoint, and for network and journal to close.
pub(super) const CLOSING: Duration = Duration::from_secs(1);

/// The longest that a last exchange is waited for. A guess.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);

/// How long a last exchange is waited for by a node that may take so many seconds to leave; 0: no limit is set. Two thirds of
/// what is left before closing, so that there is time for a checkpoint of what it has brought; a minute at most, since a
/// partner that has not answered by then does not.
pub(super) fn exchange_max(leave_seconds: f64) -> Duration {
    if leave_seconds <= 0.0 {
        return LEAVE_TIMEOUT;
    }
    let left = Duration::try_from_secs_f64(leave_seconds).unwrap_or(EXCHANGE_MAX).saturating_sub(CLOSING);
    (2 * left / 3).min(EXCHANGE_MAX)
}

/// A node that has to be gone in time.
pub(super) struct Hurry {
    first: JoinHandle<(Instant, Result<SavedCheckpoint, NotSaved>)>,
    checkpoints: CheckpointRequests,
}

impl Hurry {
    /// Waits for the wish to stop, and has `limit` from then on.
    pub(super) fn prepare(mut stop: watch::Receiver<bool>, limit: Duration, checkpoints: CheckpointRequests) -> Hurry {
        let requests = checkpoints.clone();
        let first = tokio::spawn(async move {
            if stop.wait_for(|stop| *stop).await.is_err() {
                // The node has ended by itself.
                std::future::pending::<()>().await;
            }
            let deadline = Instant::now() + limit.saturating_sub(CLOSING);
            let saved = timeout_at(deadline, requests.write()).await;
            (deadline, saved.unwrap_or(Err(NotSaved::Busy)))
        });
        Hurry { first, checkpoints }
    }

    /// The last checkpoint, for a node that has left its swarm.
    ///
    /// # Errors
    /// Where neither this one nor the one before it was written in time.
    pub(super) async fn save(self) -> Result<(), String> {
        let (deadline, first) = self.first.await.map_err(|error| error.to_string())?;
        let last = timeout_at(deadline, self.checkpoints.write()).await.unwrap_or(Err(NotSaved::Busy));
        match (first, last) {
            // A joiner, or a model that may be broken: there is nothing to keep.
            (_, Ok(_) | Err(NotSaved::NoModel | NotSaved::Broken)) | (Ok(_), Err(_)) => Ok(()),
            (Err(first), Err(_)) => {
                Err(format!("no checkpoint was written within the time that stay.leave_seconds leaves: {first}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hurry(checkpoints: CheckpointRequests) -> (watch::Sender<bool>, Hurry) {
        let (stop, view) = watch::channel(false);
        (stop, Hurry::prepare(view, CLOSING + Duration::from_millis(200), checkpoints))
    }

    #[test]
    fn a_last_exchange_has_the_time_that_the_owner_gives() {
        let seconds = |given: f64| exchange_max(given).as_secs_f64();
        assert_eq!((seconds(0.0), seconds(1000.0)), (3.0, 60.0));
        assert!(seconds(30.0) > 19.0 && seconds(5.0) < 3.0, "{} {}", seconds(30.0), seconds(5.0));
    }

    #[tokio::test]
    async fn a_checkpoint_is_asked_for_at_the_notice_and_one_that_comes_too_late_is_not_waited_for() {
        let (checkpoints, mut asked) = CheckpointRequests::of_a_test();
        let (stop, hurried) = hurry(checkpoints);
        tokio::task::yield_now().await;
        assert!(asked.try_recv().is_err(), "nobody has given notice");
        stop.send_replace(true);
        let first = asked.recv().await.expect("asked before the node has left");
        let saved = SavedCheckpoint { path: "step-7".into(), steps: 7 };
        first.send(Ok(saved)).expect("waited for");
        let begin = Instant::now();
        assert_eq!(hurried.save().await, Ok(()), "the first one is there, the last one is not");
        assert!(begin.elapsed() < Duration::from_secs(30), "it ends by its deadline");
        assert!(asked.recv().await.is_some(), "another was asked for, of what the last exchange has brought");
    }

    #[tokio::test]
    async fn a_node_without_a_checkpoint_says_so_unless_it_had_no_model() {
        let (stop, hurried) = hurry(CheckpointRequests::of_nobody());
        stop.send_replace(true);
        assert!(hurried.save().await.expect_err("a trainer that has gone").contains("stay.leave_seconds"));
        let (checkpoints, mut asked) = CheckpointRequests::of_a_test();
        let (stop, joiner) = hurry(checkpoints);
        stop.send_replace(true);
        let answering = tokio::spawn(async move {
            while let Some(reply) = asked.recv().await {
                let _ = reply.send(Err(NotSaved::NoModel));
            }
        });
        assert_eq!(joiner.save().await, Ok(()));
        answering.abort();
    }
}
