//! What lies behind an error.

use std::error::Error;
use std::io;

/// An error, its cause, the cause of that, and so on. An `io::Error` made from another error does not name that one as
/// its source, but holds it.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        held.map(|held| held as &(dyn Error + 'static)).or_else(|| error.source())
    })
}
