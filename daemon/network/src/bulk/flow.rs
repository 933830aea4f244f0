//! How much may be on its way to a peer: what its line carries in about a second.
//!
//! Without it megabytes wait in the buffers of this machine, and with them pings, messages, and whatever else goes to the
//! peer; nor would a sender know whether anything arrives. The window doubles while confirmations come within that second, as
//! in TCP's slow start, and shrinks to what was carried in a second where they are later than [`FLOW_DELAY_MAX`] (Vegas, LEDBAT:
//! delay tells of queues). Delay also tells of machines that are busy: in between the window stays as it is, and one that a pause
//! of the other machine has made small grows again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bounds::{
    CHUNK_BYTES, FLOW_DELAY, FLOW_DELAY_MAX, FLOW_WINDOW_MAX, FLOW_WINDOW_MIN, FLOW_WINDOW_START, PROGRESS_TIMEOUT,
    SLOWEST_OF_LEARNED, TRANSFER_RATE_MIN,
};

/// The window of all transfers to one peer.
#[derive(Debug)]
pub(crate) struct Flow {
    window: Mutex<Window>,
    freed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: usize,
    in_flight: usize,
}

impl Flow {
    pub(crate) fn new() -> Flow {
        Flow { window: Mutex::new(Window { bytes: FLOW_WINDOW_START, in_flight: 0 }), freed: Notify::new() }
    }

    /// One more transfer.
    pub(crate) fn begin(self: &Arc<Flow>) -> InFlight {
        let now = Instant::now();
        let learned = self.window().bytes as f64 / FLOW_DELAY.as_secs_f64() / SLOWEST_OF_LEARNED;
        InFlight {
            flow: self.clone(),
            rate_min: learned.max(TRANSFER_RATE_MIN),
            state: Mutex::new(State {
                pieces: VecDeque::new(),
                confirmed: 0,
                heard_at: now,
                busy: Busy::default(),
                is_written: false,
            }),
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The bytes now on their way with this piece, where it fits; a piece alone always does.
    fn admit(&self, bytes: usize) -> Option<usize> {
        let mut window = self.window();
        let fits = window.in_flight == 0 || window.in_flight + bytes <= window.bytes;
        fits.then(|| {
            window.in_flight += bytes;
            window.in_flight
        })
    }

    fn release(&self, bytes: usize) {
        self.window().in_flight -= bytes;
        self.freed.notify_waiters();
    }

    /// A piece was confirmed after `delay`; `ahead`: the bytes that were on their way when it left, its own among them.
    fn learn(&self, bytes: usize, ahead: usize, delay: Duration) {
        self.window().learn(bytes, ahead, delay);
    }
}

impl Window {
    fn learn(&mut self, bytes: usize, ahead: usize, delay: Duration) {
        if delay > FLOW_DELAY_MAX {
            let carried = ahead as f64 * FLOW_DELAY.as_secs_f64() / delay.as_secs_f64();
            self.bytes = self.bytes.min((carried as usize).max(self.bytes / 2));
        } else if delay < FLOW_DELAY && 2 * ahead >= self.bytes {
            self.bytes += bytes;
        }
        self.bytes = self.bytes.clamp(FLOW_WINDOW_MIN, FLOW_WINDOW_MAX);
    }
}

/// What of one transfer is on its way. Whatever is left of it when it ends is let go.
#[derive(Debug)]
pub(crate) struct InFlight {
    flow: Arc<Flow>,
    /// Bytes a second that the peer has to take in the long run.
    rate_min: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The oldest first.
    pieces: VecDeque<Piece>,
    confirmed: u64,
    /// When the peer last confirmed something.
    heard_at: Instant,
    busy: Busy,
    /// Whether all has been written.
    is_written: bool,
}

#[derive(Debug)]
struct Piece {
    bytes: usize,
    unconfirmed: usize,
    ahead: usize,
    left_at: Instant,
}

/// For how long there was something for the peer to take.
#[derive(Debug, Default)]
struct Busy {
    before: Duration,
    since: Option<Instant>,
}

/// How a transfer fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferProgress {
    /// It moves, or nothing is on its way.
    Moving,
    /// Nothing has been confirmed for [`PROGRESS_TIMEOUT`].
    Stalled,
    /// The peer takes less than any link needs.
    TooSlow,
}

/// More was confirmed than was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overconfirmed;

impl InFlight {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// How many of the next bytes to write at once: half of the window, so that it is never empty. Each piece costs a packet
    /// that is not full.
    pub(crate) fn piece(&self) -> usize {
        (self.window() / 2).min(CHUNK_BYTES)
    }

    /// How many bytes may be on their way to the peer.
    pub(crate) fn window(&self) -> usize {
        self.flow.window().bytes
    }

    /// Takes these bytes in, where they fit into the window.
    pub(crate) fn try_admit(&self, bytes: usize) -> bool {
        let Some(ahead) = self.flow.admit(bytes) else { return false };
        let now = Instant::now();
        let mut state = self.state();
        state.busy.since.get_or_insert(now);
        state.pieces.push_back(Piece { bytes, unconfirmed: bytes, ahead, left_at: now });
        true
    }

    /// Waits until they fit.
    pub(crate) async fn admit(&self, bytes: usize) {
        loop {
            let freed = self.flow.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.try_admit(bytes) {
                return;
            }
            freed.await;
        }
    }

    /// All has been written: now the peer has the last word.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_written = true;
        state.heard_at = Instant::now();
    }

    /// Whether all has been written and confirmed.
    pub(crate) fn is_written(&self) -> bool {
        self.state().is_written
    }

    /// So many more bytes have arrived.
    pub(crate) fn confirm(&self, mut bytes: usize) -> Result<(), Overconfirmed> {
        let (now, mut state) = (Instant::now(), self.state());
        state.heard_at = now;
        while bytes > 0 {
            let Some(piece) = state.pieces.front_mut() else { return Err(Overconfirmed) };
            let arrived = piece.unconfirmed.min(bytes);
            piece.unconfirmed -= arrived;
            bytes -= arrived;
            if piece.unconfirmed == 0 {
                self.flow.learn(piece.bytes, piece.ahead, now - piece.left_at);
                state.pieces.pop_front();
            }
            state.confirmed += arrived as u64;
            self.flow.release(arrived);
        }
        if state.pieces.is_empty() {
            let busy = state.busy.since.take().map_or(Duration::ZERO, |since| now - since);
            state.busy.before += busy;
        }
        Ok(())
    }

    /// How it fares, and when to look again.
    pub(crate) fn progress(&self) -> (TransferProgress, Instant) {
        let (now, state) = (Instant::now(), self.state());
        let waits_since = match state.pieces.front() {
            Some(oldest) => Some(oldest.left_at.max(state.heard_at)),
            None => state.is_written.then_some(state.heard_at),
        };
        let busy = state.busy.before + state.busy.since.map_or(Duration::ZERO, |since| now - since);
        let due = self.rate_min * busy.saturating_sub(PROGRESS_TIMEOUT).as_secs_f64();
        let pace = match waits_since {
            Some(since) if now >= since + PROGRESS_TIMEOUT => TransferProgress::Stalled,
            _ if (state.confirmed as f64) < due => TransferProgress::TooSlow,
            _ => TransferProgress::Moving,
        };
        (pace, waits_since.unwrap_or(now) + PROGRESS_TIMEOUT)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left: usize = self.state().pieces.iter().map(|piece| piece.unconfirmed).sum();
        self.flow.release(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a window comes to on a line of so many bytes a second and a round trip of 50 ms, with a queue as long as it
    /// gets.
    fn settled(bytes_per_second: f64) -> usize {
        let mut window = Window { bytes: FLOW_WINDOW_START, in_flight: 0 };
        for _ in 0..10_000 {
            let (piece, ahead) = ((window.bytes / 2).min(CHUNK_BYTES), window.bytes);
            let delay = Duration::from_secs_f64(0.05 + ahead as f64 / bytes_per_second);
            window.learn(piece, ahead, delay);
        }
        window.bytes
    }

    #[test]
    fn as_much_is_on_its_way_as_the_line_carries_in_about_a_second() {
        assert_eq!(settled(8e3), FLOW_WINDOW_MIN);
        for rate in [125e3, 1e6] {
            let seconds = settled(rate) as f64 / rate;
            assert!((0.8..1.1).contains(&seconds), "{seconds} s at {rate} bytes a second");
        }
        assert_eq!(settled(1e9), FLOW_WINDOW_MAX);
    }

    /// On a busy machine every confirmation waits for a processor. Where the window did not grow again after a pause, half of the
    /// line was idle from then on.
    #[test]
    fn a_window_that_a_pause_has_made_small_fills_the_line_again_although_confirmations_wait() {
        let (rate, wait) = (40e3, 0.4);
        let mut window = Window { bytes: FLOW_WINDOW_START, in_flight: 0 };
        let confirm = |window: &mut Window, pause: f64| {
            let (piece, ahead) = ((window.bytes / 2).min(CHUNK_BYTES), window.bytes);
            // What is ahead keeps the line busy, or the piece is alone and all wait for its way.
            let delay = pause + (ahead as f64 / rate).max(wait + piece as f64 / rate);
            window.learn(piece, ahead, Duration::from_secs_f64(delay));
            // Of the line's time.
            ahead as f64 / rate / delay
        };
        for _ in 0..4 {
            confirm(&mut window, 5.0);
        }
        assert_eq!(window.bytes, FLOW_WINDOW_MIN);
        for _ in 0..20 {
            confirm(&mut window, 0.0);
        }
        let share = confirm(&mut window, 0.0);
        assert!(share > 0.95, "{share} of the line with {} bytes on their way", window.bytes);
    }

    #[test]
    fn what_was_on_its_way_is_let_go_when_a_transfer_ends() {
        let flow = Arc::new(Flow::new());
        let transfer = flow.begin();
        assert!(transfer.try_admit(FLOW_WINDOW_START) && !transfer.try_admit(1));
        assert_eq!(transfer.confirm(1000), Ok(()));
        assert!(transfer.try_admit(1000) && !transfer.try_admit(1));
        drop(transfer);
        assert_eq!(flow.window().in_flight, 0);
        assert_eq!(flow.begin().confirm(1), Err(Overconfirmed));
    }
}
