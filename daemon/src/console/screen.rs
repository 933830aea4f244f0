//! Standard error as people see it: lines that stay, and on a terminal a block below them that is drawn over and over.
//!
//! Everything that murmur writes for people passes through here, so that no line lands inside the block. The block never
//! wraps and is never higher than the screen, and takes no terminal mode: there is nothing to put back, however the
//! process ends, and all that was said stays in the scrollback.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crossterm::cursor::{MoveToColumn, MoveUp};
use crossterm::queue;
use crossterm::terminal::{Clear, ClearType};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::fitted::{fitted, set_in};
use super::terminal::{readable, shown, shown_json, shown_log};
use super::{aside, output};

/// Whether the last block has been drawn.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether standard error is no terminal any more, but the log of a process in the background.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Columns and rows of a terminal that does not tell.
const USUAL_SIZE: Size = Size { columns: 80, rows: 24 };

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Size {
    /// The terminal's at this moment.
    pub(crate) fn now() -> Size {
        match crossterm::terminal::size() {
            Ok((columns, rows)) if columns > 0 && rows > 0 => Size { columns: columns.into(), rows: rows.into() },
            _ => USUAL_SIZE,
        }
    }

    /// Lines that a block may have: one row is the cursor's.
    pub(crate) fn block_rows(self) -> usize {
        self.rows.saturating_sub(1)
    }

    /// Columns that its lines may have: in the last one a terminal may already wrap.
    pub(crate) fn block_columns(self) -> usize {
        self.columns.saturating_sub(1)
    }
}

/// Whether a block can be drawn: standard error is a terminal that can move its cursor.
pub(crate) fn is_live() -> bool {
    static LIVE: OnceLock<bool> = OnceLock::new();
    !IS_LOG.load(Ordering::Relaxed) && *LIVE.get_or_init(|| knows_moves() && io::stderr().is_terminal())
}

/// From now on standard error is a log: what is in the block goes from the terminal, and nothing is drawn again.
pub(crate) fn leave_terminal() {
    let mut screen = screen();
    if is_live() {
        let _ = screen.draw(&mut io::stderr().lock(), Vec::new(), Size::now());
    }
    IS_LOG.store(true, Ordering::Relaxed);
}

/// Whether the terminal, if there is one, can move its cursor.
pub(crate) fn knows_moves() -> bool {
    std::env::var("TERM").map_or(cfg!(windows), |term| !term.is_empty() && term != "dumb")
}

/// Whether the owner wants no colours: `NO_COLOR` is set.
pub(crate) fn declines_colours() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether colours may be used: standard error is a terminal, and its owner has not set `NO_COLOR`.
pub fn has_colours() -> bool {
    !declines_colours() && is_live()
}

/// A line of text for people on standard error. A closed pipe at the other end must not end training.
pub(crate) fn note(text: &str) {
    let text = text.to_owned();
    aside::write(move || write_note(&text));
}

fn write_note(text: &str) {
    let shown = readable(shown(text));
    let shown = if is_live() { fitted(&shown, Size::now().columns).into() } else { shown };
    let _ = screen().say(&mut io::stderr().lock(), shown.as_bytes(), Size::now);
}

/// The same after Ctrl-C, of which a terminal shows two characters where the cursor is: they go.
pub(crate) fn note_after_ctrl_c(text: &str) {
    let text = text.to_owned();
    aside::write(move || {
        if is_live() {
            let _ = queue!(io::stderr().lock(), MoveToColumn(0), Clear(ClearType::CurrentLine));
        }
        write_note(&text);
    });
}

/// A line on standard output: text for people, or one object of JSON. Where it cannot be written, see [`output`].
pub(crate) fn print_line(line: &str) {
    let line = if line.starts_with('{') { shown_json(line) } else { readable(shown(line)) };
    print_bytes(format!("{line}\n").into_bytes());
}

/// A line of text for people on standard output: on a terminal, what does not fit goes on below its text, which begins after so
/// many columns.
pub(crate) fn print_fitted(line: &str, begins: usize) {
    let columns = if io::stdout().is_terminal() { Size::now().columns } else { usize::MAX };
    print_line(&set_in(line, begins, columns));
}

/// Bytes on standard output, as they are.
pub(crate) fn print_bytes(bytes: Vec<u8>) {
    aside::write(move || write_bytes(&bytes));
}

fn write_bytes(bytes: &[u8]) {
    let mut screen = screen();
    let is_shared = screen.is_drawn() && io::stdout().is_terminal();
    if is_shared {
        let _ = screen.erase(&mut io::stderr().lock(), Size::now());
    }
    let mut output = io::stdout().lock();
    let written = output.write_all(bytes).and_then(|()| output.flush());
    drop(output);
    if is_shared {
        let _ = screen.restore(&mut io::stderr().lock(), Size::now());
    }
    // Whatever follows may have something to say, and needs the screen.
    drop(screen);
    written.unwrap_or_else(|error| output::failed(&error));
}

/// Draws the block anew, in place of what it was. Nothing happens where standard error is no terminal.
pub(crate) fn draw(lines: Vec<String>) {
    // A terminal that is held has only the last of them to catch up with.
    let is_due = next_block().replace(lines).is_some();
    if !is_due && !aside::write_passing(draw_next) {
        *next_block() = None;
    }
}

fn draw_next() {
    if let Some(lines) = next_block().take() {
        write_block(lines);
    }
}

fn write_block(lines: Vec<String>) {
    let mut screen = screen();
    if is_live() && !ENDED.load(Ordering::Relaxed) {
        let _ = screen.draw(&mut io::stderr().lock(), lines, Size::now());
    }
}

/// Takes the block away for good: whoever draws it may still be about to.
pub(crate) fn end() {
    aside::write(|| {
        write_block(Vec::new());
        ENDED.store(true, Ordering::Relaxed);
    });
}

/// What is in the block stays there as text, and nothing is drawn over it again.
pub(crate) fn keep() {
    aside::write(|| screen().drawn.clear());
}

/// Where a logger writes: each event is one line above the block.
#[derive(Debug, Default)]
pub struct LogLine {
    line: Vec<u8>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if !line.is_empty() {
            let line = shown_log(line);
            aside::write(move || drop(screen().say(&mut io::stderr().lock(), line.as_bytes(), Size::now)));
        }
    }
}

/// The block that is drawn next.
fn next_block() -> MutexGuard<'static, Option<Vec<String>>> {
    static NEXT: Mutex<Option<Vec<String>>> = Mutex::new(None);
    NEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One lock for whole lines: two threads must not write into each other's.
fn screen() -> MutexGuard<'static, Screen> {
    static SCREEN: Mutex<Screen> = Mutex::new(Screen { drawn: Vec::new(), columns: 0 });
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is drawn below the lines that stay; the cursor is at the beginning of the row after it.
#[derive(Debug, Default)]
struct Screen {
    drawn: Vec<String>,
    /// Of the terminal when it was drawn.
    columns: usize,
}

impl Screen {
    fn is_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// A line that stays, above the block. `size` is asked only where there is one.
    fn say(&mut self, output: &mut impl Write, line: &[u8], size: impl Fn() -> Size) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        if self.is_drawn() {
            self.erase(&mut bytes, size())?;
        }
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        if self.is_drawn() {
            self.restore(&mut bytes, size())?;
        }
        // One write: whoever reads at the same time sees whole lines.
        output.write_all(&bytes)?;
        output.flush()
    }

    fn draw(&mut self, output: &mut impl Write, lines: Vec<String>, size: Size) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.erase(&mut bytes, size)?;
        self.drawn = lines;
        self.restore(&mut bytes, size)?;
        output.write_all(&bytes)?;
        output.flush()
    }

    /// Moves to where the block begins and wipes it line by line: what is cleared from the first row downwards at once, tmux
    /// keeps in its history.
    fn erase(&self, output: &mut impl Write, size: Size) -> io::Result<()> {
        if !self.is_drawn() {
            return Ok(());
        }
        // A terminal that has become narrower has wrapped what is there.
        let rows_of = |line: &String| match size.columns < self.columns {
            true => line.width().div_ceil(size.columns).max(1),
            false => 1,
        };
        let rows = self.drawn.iter().map(rows_of).sum::<usize>().min(size.block_rows());
        queue!(output, MoveToColumn(0), Clear(ClearType::CurrentLine))?;
        (0..rows).try_for_each(|_| queue!(output, MoveUp(1), Clear(ClearType::CurrentLine)))
    }

    /// Draws the block where the cursor is, cut to the terminal.
    fn restore(&mut self, output: &mut impl Write, size: Size) -> io::Result<()> {
        self.columns = size.columns;
        self.drawn.truncate(size.block_rows());
        for line in &mut self.drawn {
            *line = readable(cut(line, size.block_columns()).into()).into_owned();
            writeln!(output, "{line}")?;
        }
        Ok(())
    }
}

/// The text without what lies beyond so many columns, where a mark says that it is cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut width = 0;
    for character in text.chars() {
        width += character.width().unwrap_or(0);
        if width + 1 > columns {
            break;
        }
        shown.push(character);
    }
    if columns > 0 {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
