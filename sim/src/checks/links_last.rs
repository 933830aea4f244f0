//! Law: "links last": both ends of a link keep the same reference, so that only few exchanges send a new one.

use murmur_protocol::bounds::LINKS_MAX;

use super::Violation;
use crate::record::Record;

/// Exchanges may fail, and then one side alone has merged: new references in at most one of so many merges.
const MERGES_OF_A_REFERENCE: u64 = 10;

/// A life begins links, and its partners begin others when it ends.
const REFERENCES_OF_A_LIFE: u64 = 2 * LINKS_MAX as u64;

/// Checks how often a starter had to send a new reference. With a liar it may be in each exchange: what it sends is not what
/// it believes to have sent.
///
/// # Errors
/// When that was more than in one of ten merges, for the links of all lives, and in the liars' exchanges.
pub fn links_last(record: &Record) -> Result<(), Violation> {
    let (begun, on_links) = (record.exchanges.begun_anew, record.exchanges.on_links);
    let of_lives = record.lives.len() as u64 * record.fragments * REFERENCES_OF_A_LIFE;
    let liars = record.lives.iter().filter(|life| !life.is_honest).count() as u64;
    // Of what a liar starts and answers: both ends of an exchange are in the number of merges.
    let of_liars = 2 * on_links * liars / record.lives.len().max(1) as u64;
    if begun <= of_lives + on_links / MERGES_OF_A_REFERENCE + of_liars {
        return Ok(());
    }
    Err(Violation::new("links last", format!("{begun} of {on_links} merges on links were with a new reference")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn references_that_do_not_last_are_found() {
        let lives = vec![life(0, [0.0; 2]); 10];
        let mut record = Record { lives, fragments: 2, ..Record::default() };
        (record.exchanges.on_links, record.exchanges.begun_anew) = (10_000, 1200);
        assert_eq!(links_last(&record), Ok(()));
        record.exchanges.begun_anew += 1;
        assert!(links_last(&record).is_err());
        record.lives[0].is_honest = false;
        record.exchanges.begun_anew = 3200;
        assert_eq!(links_last(&record), Ok(()), "one of ten takes part in a fifth of the exchanges");
        record.exchanges.begun_anew += 1;
        assert!(links_last(&record).is_err());
    }
}
