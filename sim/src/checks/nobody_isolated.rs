//! Law: "after calm, nobody is left isolated".

use super::Violation;
use crate::record::Record;

/// Checks that everybody who takes part is connected to somebody, where there is somebody.
///
/// # Errors
/// The first node without a connection.
pub fn nobody_isolated(record: &Record) -> Result<(), Violation> {
    let active = || record.lives.iter().filter(|life| life.active);
    if active().count() < 2 {
        return Ok(());
    }
    match active().find(|life| life.connected == 0) {
        None => Ok(()),
        Some(life) => Err(Violation::new("nobody isolated", format!("host {} is connected to nobody", life.host))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::forged::life;

    #[test]
    fn a_lonely_node_is_refused() {
        let lives = vec![life(0, [0.0; 2], [0.0; 2]), life(1, [0.0; 2], [0.0; 2])];
        let mut record = Record { lives, ..Record::default() };
        assert_eq!(nobody_isolated(&record), Ok(()));
        record.lives[1].connected = 0;
        assert!(nobody_isolated(&record).is_err());
        record.lives.remove(0);
        assert_eq!(nobody_isolated(&record), Ok(()), "there is nobody else");
    }
}
