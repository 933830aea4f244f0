//! Law: "links last": both ends of a link keep the same reference, so that only few exchanges send a new one.

use super::Violation;
use crate::record::Record;

/// New references at the beginning of a run, and where faults take one from an end: in each of so many merges.
const MERGES_OF_A_REFERENCE: u64 = 10;

/// The first references of a swarm, before exchanges on them could have been many.
const FIRST_FEW: u64 = 500;

/// Checks how often a starter had to send a new reference.
///
/// # Errors
/// When that was more than in one of ten merges.
pub fn links_last(record: &Record) -> Result<(), Violation> {
    let (begun, on_links) = (record.exchanges.begun_anew, record.exchanges.on_links);
    if begun <= FIRST_FEW || begun * MERGES_OF_A_REFERENCE <= on_links {
        return Ok(());
    }
    Err(Violation::new("links last", format!("{begun} of {on_links} merges on links were with a new reference")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_that_do_not_last_are_found() {
        let mut record = Record::default();
        (record.exchanges.on_links, record.exchanges.begun_anew) = (10_000, 1000);
        assert_eq!(links_last(&record), Ok(()));
        record.exchanges.begun_anew += 1;
        assert!(links_last(&record).is_err());
        (record.exchanges.on_links, record.exchanges.begun_anew) = (500, 500);
        assert_eq!(links_last(&record), Ok(()), "a swarm's first links");
    }
}
