//! Law: "an honest node is never taken for a hostile one", however badly the network treats its words.

use super::Violation;
use crate::record::Record;

/// Checks what honest nodes say of honest nodes.
///
/// # Errors
/// The first accusation.
pub fn nobody_accused(record: &Record) -> Result<(), Violation> {
    match record.accusations.iter().find(|accusation| accusation.is_among_honest) {
        None => Ok(()),
        Some(accusation) => {
            let (at, by, of, what) = (accusation.at, accusation.by, accusation.of, &accusation.misbehaviour);
            let finding = format!("at {at:?} host {by} said of the honest host {of:?}: {what}");
            Err(Violation::new("nobody accused", finding))
        }
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::Misbehaviour;
    use murmur_protocol::Time;

    use super::*;
    use crate::record::Accusation;

    #[test]
    fn an_accusation_of_an_honest_host_is_found() {
        let mut accusation = Accusation {
            at: Time::ZERO,
            by: 1,
            of: Some(0),
            is_among_honest: true,
            misbehaviour: Misbehaviour::Unsolicited,
        };
        let record = |accusation| Record { accusations: vec![accusation], ..Record::default() };
        assert!(nobody_accused(&record(accusation.clone())).is_err());
        accusation.is_among_honest = false;
        assert_eq!(nobody_accused(&record(accusation)), Ok(()));
    }
}
