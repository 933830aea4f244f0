//! A copy between the host and a device that is under way while the device computes.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use candle_core::{Error, Result};

/// What a copy will give.
pub(crate) struct Transfer<T> {
    arrival: Receiver<Result<T>>,
    arrived: Option<Result<T>>,
}

impl<T: Send + 'static> Transfer<T> {
    /// Waits for the copy in a thread of its own.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "on the CPU nothing is under way"))]
    pub(crate) fn waiting(copy: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Transfer<T>> {
        let (sender, arrival) = channel();
        // Who no longer wants it has dropped the receiver.
        let wait = move || drop(sender.send(copy()));
        std::thread::Builder::new().name("transfer".to_owned()).spawn(wait).map_err(Error::wrap)?;
        Ok(Transfer { arrival, arrived: None })
    }

    /// Whether [`Transfer::wait`] returns at once.
    pub(crate) fn is_here(&mut self) -> bool {
        if self.arrived.is_none() {
            self.arrived = match self.arrival.try_recv() {
                Ok(arrived) => Some(arrived),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(lost())),
            };
        }
        self.arrived.is_some()
    }

    /// The result, once it is here.
    ///
    /// # Errors
    /// When the device failed.
    pub(crate) fn wait(self) -> Result<T> {
        self.arrived.unwrap_or_else(|| self.arrival.recv().unwrap_or_else(|_| Err(lost())))
    }
}

fn lost() -> Error {
    Error::Msg("a copy between device and host was given up".to_owned())
}
