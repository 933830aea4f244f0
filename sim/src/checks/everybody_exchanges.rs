//! Law: "after calm, everybody exchanges": no node waits for ever for something that will not come.

use std::time::Duration;

use super::Violation;
use crate::record::Record;

/// A node that still trains has exchanged within this, up to the moment from which nobody begins an exchange: a few
/// intervals, and the deadline of one that was lost at the end of the faults.
const SINCE_LAST_MAX: Duration = Duration::from_secs(50);

/// Checks that every honest node that takes part has exchanged lately, where there is somebody to exchange with. Liars are
/// shut out, and rightly; and where the run is over there is nothing to exchange.
///
/// # Errors
/// The first node whose last exchange is too long ago.
pub fn everybody_exchanges(record: &Record) -> Result<(), Violation> {
    let active = || record.lives.iter().filter(|life| life.active);
    if active().count() < 2 {
        return Ok(());
    }
    match active().find(|life| life.is_honest && !life.is_completed && life.last_exchange_ago > SINCE_LAST_MAX) {
        None => Ok(()),
        Some(life) => {
            let finding = format!("host {} has exchanged last {:?} ago", life.host, life.last_exchange_ago);
            Err(Violation::new("everybody exchanges", finding))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn a_node_that_has_fallen_silent_is_refused() {
        let lives = vec![life(0, [0.0; 2]), life(1, [0.0; 2])];
        let mut record = Record { lives, ..Record::default() };
        assert_eq!(everybody_exchanges(&record), Ok(()));
        record.lives[1].last_exchange_ago = SINCE_LAST_MAX * 2;
        assert!(everybody_exchanges(&record).is_err());
        record.lives[1].is_completed = true;
        assert_eq!(everybody_exchanges(&record), Ok(()));
        (record.lives[1].is_completed, record.lives[1].is_honest) = (false, false);
        assert_eq!(everybody_exchanges(&record), Ok(()));
    }
}
