//! `murmur finish`: has the founder's daemon ask the whole swarm for the final decay and the final exchanges.

use std::time::Duration;

use super::client::Client;
use crate::cli::FinishOptions;
use crate::console::figures::{count, duration};
use crate::console::{Console, print_line};
use crate::daemon::finishing::{FinishWish, Finishing};
use crate::observe::report::NodeReport;

pub(super) fn run(options: &FinishOptions) -> anyhow::Result<()> {
    let client = Client::find_founder(options.address.as_deref(), options.run.as_deref())?;
    let finishing: Finishing = client.post("finish", &FinishWish { seconds: options.seconds })?;
    if options.format == Console::Json {
        print_line(&serde_json::to_string(&finishing)?);
        return Ok(());
    }
    let Finishing { ending, seconds, before } = finishing;
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.map_or_else(String::new, |time| format!(", in about {}", duration(time)));
    let step = |progress: f64| count(progress.max(0.0).round() as u64);
    print_line(&format!("finishing    the swarm's learning rate falls from swarm step {} on", step(ending.from)));
    // Members that average all at once have one model already.
    let has_one_model = client.get::<NodeReport>("status").is_ok_and(|report| report.synchronous.is_some());
    let then = if has_one_model { "" } else { "; then the final exchanges" };
    print_line(&format!("complete     at swarm step {}{time}{then}", step(ending.until)));
    if let Some(before) = before {
        print_line(&format!("instead of   swarm step {}, where it was to end before", step(before)));
    }
    Ok(())
}
