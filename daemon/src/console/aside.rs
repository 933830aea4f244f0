//! Output of a process that waits for none of its readers, such as a daemon's: a thread of its own writes it, in order. What
//! comes while that thread waits for a reader and has no room left is lost and counted.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{counted, note};

/// Pieces of output that wait, at most: a minute of 8 daemons that each tell of themselves twice a second.
const WAITING_MAX: usize = 1024;

/// A reader that takes nothing for so long is not waited for at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked whether all has been written.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Writes a piece of output.
type Piece = Box<dyn FnOnce() + Send>;

/// Of this process, once it waits for no reader.
static QUEUE: OnceLock<Queue> = OnceLock::new();

thread_local! {
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

/// From now on nothing in this process waits for who reads its output.
pub(crate) fn wait_for_no_reader() {
    let tell = |lost| note(&format!("warning: {} missing here: nobody read what came before", was(lost)));
    if QUEUE.get().is_none()
        && let Ok(queue) = Queue::start(WAITING_MAX, tell)
    {
        let _ = QUEUE.set(queue);
    }
}

/// Writes now, or where this process waits for no reader, in its turn. What is lost is counted.
pub(super) fn write(piece: impl FnOnce() + Send + 'static) {
    if let Some(queue) = queue() {
        queue.take(Box::new(piece));
    } else {
        piece();
    }
}

/// The same of what need not be told where it is lost. Whether it was not.
pub(super) fn write_passing(piece: impl FnOnce() + Send + 'static) -> bool {
    let Some(queue) = queue() else {
        piece();
        return true;
    };
    queue.try_take(Box::new(piece))
}

/// Waits until all is written, or no reader takes anything any more: for the last words of a process.
pub fn settle() {
    settle_within(PATIENCE);
}

/// The same with another patience.
pub(crate) fn settle_within(patience: Duration) {
    if let Some(queue) = queue() {
        queue.settle(patience);
    }
}

/// What takes the pieces; none where they are written at once. What the writing thread itself has to say is not for the queue.
fn queue() -> Option<&'static Queue> {
    QUEUE.get().filter(|_| !IS_WRITER.get())
}

fn was(lost: u64) -> String {
    format!("{} {}", counted(lost, "line"), if lost == 1 { "is" } else { "are" })
}

/// Pieces on their way to the thread that writes them.
struct Queue {
    pieces: SyncSender<Piece>,
    taken: AtomicU64,
    written: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    /// How many were written when it was last waited for more in vain.
    in_vain_at: AtomicU64,
}

impl Queue {
    /// Starts the thread. `tell` is called on it with how many were lost, once something is written again.
    fn start(room: usize, tell: impl Fn(u64) + Send + 'static) -> io::Result<Queue> {
        let (pieces, waiting) = sync_channel::<Piece>(room);
        let (written, lost) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (count, missing) = (written.clone(), lost.clone());
        std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            IS_WRITER.set(true);
            for piece in waiting {
                piece();
                let lost = missing.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tell(lost);
                }
                count.fetch_add(1, Ordering::Release);
            }
        })?;
        Ok(Queue { pieces, taken: AtomicU64::new(0), written, lost, in_vain_at: AtomicU64::new(u64::MAX) })
    }

    fn take(&self, piece: Piece) {
        if !self.try_take(piece) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether there was room.
    fn try_take(&self, piece: Piece) -> bool {
        let is_taken = self.pieces.try_send(piece).is_ok();
        self.taken.fetch_add(is_taken.into(), Ordering::Relaxed);
        is_taken
    }

    fn settle(&self, patience: Duration) {
        let taken = self.taken.load(Ordering::Relaxed);
        let mut seen = (self.written.load(Ordering::Acquire), Instant::now());
        // Nobody is waited for twice.
        while seen.0 < taken && seen.0 != self.in_vain_at.load(Ordering::Relaxed) {
            if seen.1.elapsed() >= patience {
                self.in_vain_at.store(seen.0, Ordering::Relaxed);
            }
            std::thread::sleep(LOOK_PERIOD);
            let written = self.written.load(Ordering::Acquire);
            if written > seen.0 {
                seen = (written, Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_reads_nothing_holds_nobody_up_and_what_is_lost_is_told_in_its_place() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let say = |text: String| {
            let written = written.clone();
            move || written.lock().expect("sound").push(text)
        };
        let tell = {
            let written = written.clone();
            move |lost| written.lock().expect("sound").push(format!("{} gone", was(lost)))
        };
        let queue = Queue::start(4, tell).expect("a thread");
        let (reads, begins) = channel::<()>();
        let (begun, is_begun) = channel();
        // The reader that takes nothing.
        queue.take(Box::new(move || {
            begun.send(()).expect("waited for");
            let _ = begins.recv();
        }));
        is_begun.recv().expect("begun");
        for number in 0..10 {
            queue.take(Box::new(say(number.to_string())));
        }
        assert!(!queue.try_take(Box::new(|| {})), "there is no room");
        let begin = Instant::now();
        queue.settle(Duration::from_millis(50));
        queue.settle(Duration::from_hours(1));
        assert!(begin.elapsed() < Duration::from_mins(1) && written.lock().expect("sound").is_empty());
        drop(reads);
        while queue.written.load(Ordering::Acquire) < 5 {
            std::thread::sleep(LOOK_PERIOD);
        }
        assert_eq!(*written.lock().expect("sound"), ["6 lines are gone", "0", "1", "2", "3"]);
    }
}
