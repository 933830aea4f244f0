//! Conversations that have to move: a step of one is over within a time, or the conversation is.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

/// Nothing moved for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing moved for {} s", .0.as_secs())]
pub struct Stalled(pub Duration);

impl From<Stalled> for io::Error {
    fn from(stalled: Stalled) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, stalled)
    }
}

/// Takes a step; it fails where it is not over within `limit`.
pub(crate) async fn within<Output, Failure: From<Stalled>>(
    limit: Duration,
    step: impl Future<Output = Result<Output, Failure>>,
) -> Result<Output, Failure> {
    timeout(limit, step).await.unwrap_or_else(|_| Err(Stalled(limit).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_step_that_does_not_end_fails_and_says_why() {
        let limit = Duration::from_millis(20);
        let error = within(limit, std::future::pending::<io::Result<()>>()).await.expect_err("it never ends");
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::TimedOut, "nothing moved for 0 s".to_owned()));
        let done: io::Result<u8> = within(limit, async { Ok(7) }).await;
        assert_eq!(done.expect("at once"), 7);
    }
}
