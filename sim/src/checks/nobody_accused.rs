//! An honest node is never taken for a hostile one, however badly the network treats its words.

use super::Violation;
use crate::record::Record;

/// Checks a run of honest nodes.
///
/// # Errors
/// The first accusation.
pub fn nobody_accused(record: &Record) -> Result<(), Violation> {
    match record.accusations.first() {
        None => Ok(()),
        Some(accusation) => {
            let (at, by, what) = (accusation.at, accusation.by, &accusation.misbehaviour);
            let finding = format!("at {at:?} host {by} said of an honest peer: {what}");
            Err(Violation::new("nobody accused", finding))
        }
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::Time;
    use murmur_protocol::event::Misbehaviour;

    use super::*;
    use crate::record::Accusation;

    #[test]
    fn an_accusation_is_found() {
        let accusation = Accusation { at: Time::ZERO, by: 1, misbehaviour: Misbehaviour::Unsolicited };
        assert!(nobody_accused(&Record { accusations: vec![accusation], ..Record::default() }).is_err());
    }
}
