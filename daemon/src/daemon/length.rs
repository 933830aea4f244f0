//! A run's length in hours, as its founder wishes it: when it is nearly over, the founder's daemon orders the end.

use std::time::Duration;

use crate::console::note;
use crate::finishing::{FinishWish, Finisher, NotFinished};

/// The share of the time that is left for the decay: a sixth, as a fifth of the steps before it.
const DECAY_SHARE: f64 = 1.0 / 6.0;

/// How soon it is tried again where the pace is not known yet.
const RETRY: Duration = Duration::from_secs(1);

/// Orders the end of the run so that it is complete `hours` from now.
pub(super) async fn finish_after(hours: f64, finisher: Finisher) {
    let seconds = 3600.0 * hours;
    tokio::time::sleep(Duration::from_secs_f64((1.0 - DECAY_SHARE) * seconds)).await;
    let wish = FinishWish { seconds: Some(DECAY_SHARE * seconds) };
    loop {
        match finisher.finish(wish).await {
            Ok(_) => return,
            Err(NotFinished::NoPace) => tokio::time::sleep(RETRY).await,
            Err(reason) => {
                note(&format!("warning: --hours cannot end the run: {reason}\nhint: {}", reason.remedy()));
                return;
            }
        }
    }
}
