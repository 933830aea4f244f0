//! The block on an emulated terminal: what is on the screen after every drawing, at all sizes.

use super::*;

const SIZES: [(usize, usize); 6] = [(40, 10), (40, 24), (80, 24), (120, 24), (200, 50), (80, 10)];

/// A terminal with everything that it has shown.
struct Emulated {
    terminal: vt100::Parser,
    screen: Screen,
    size: Size,
}

impl Emulated {
    fn new(columns: usize, rows: usize) -> Emulated {
        let terminal = vt100::Parser::new(rows as u16, columns as u16, 10_000);
        Emulated { terminal, screen: Screen::default(), size: Size { columns, rows } }
    }

    fn write(&mut self, action: impl FnOnce(&mut Screen, &mut Vec<u8>, Size) -> io::Result<()>) {
        let mut bytes = Vec::new();
        action(&mut self.screen, &mut bytes, self.size).expect("memory");
        // What the terminal's driver does.
        let bytes = bytes.iter().flat_map(|byte| if *byte == b'\n' { b"\r\n".to_vec() } else { vec![*byte] });
        self.terminal.process(&bytes.collect::<Vec<u8>>());
    }

    fn say(&mut self, line: &str) {
        self.write(|screen, bytes, size| screen.say(bytes, line.as_bytes(), || size));
    }

    fn draw(&mut self, lines: Vec<String>) {
        self.write(|screen, bytes, size| screen.draw(bytes, lines, size));
    }

    fn resize(&mut self, columns: usize, rows: usize) {
        self.terminal.screen_mut().set_size(rows as u16, columns as u16);
        self.size = Size { columns, rows };
    }

    /// All rows, those that have been scrolled away first.
    fn rows(&mut self) -> Vec<String> {
        self.terminal.screen_mut().set_scrollback(usize::MAX);
        let above = self.terminal.screen().scrollback();
        let mut rows = Vec::new();
        for offset in (1..=above).rev() {
            self.terminal.screen_mut().set_scrollback(offset);
            rows.extend(self.terminal.screen().rows(0, self.size.columns as u16).next());
        }
        self.terminal.screen_mut().set_scrollback(0);
        rows.extend(self.terminal.screen().rows(0, self.size.columns as u16));
        while rows.last().is_some_and(|row| row.is_empty()) {
            rows.pop();
        }
        rows
    }
}

fn block(nodes: usize, turn: usize) -> Vec<String> {
    (0..nodes)
        .map(|node| format!("{node:>3} node at turn {turn:>3} with a row that is {}", "long ".repeat(30)))
        .collect()
}

#[test]
fn a_block_never_piles_up_at_any_size_with_more_rows_than_the_screen() {
    for (columns, rows) in SIZES {
        for nodes in [1, 4, 64] {
            let mut emulated = Emulated::new(columns, rows);
            emulated.say("first");
            for turn in 0..30 {
                emulated.draw(block(nodes, turn));
            }
            let shown = emulated.rows();
            let height = nodes.min(rows - 1);
            assert_eq!(shown.len(), 1 + height, "{columns}×{rows}, {nodes} nodes: {shown:#?}");
            assert_eq!(shown[0], "first");
            assert!(shown[1..].iter().all(|row| row.contains("turn  29")), "{shown:#?}");
        }
    }
}

#[test]
fn lines_that_stay_stand_above_the_block_in_their_order() {
    for (columns, rows) in SIZES {
        let mut emulated = Emulated::new(columns, rows);
        for turn in 0..40 {
            emulated.draw(block(4, turn));
            emulated.say(&format!("said {turn}"));
        }
        let shown = emulated.rows();
        let expected: Vec<String> = (0..40).map(|turn| format!("said {turn}")).collect();
        assert_eq!(shown[..40], expected, "{columns}×{rows}");
        assert_eq!(shown.len(), 44);
    }
}

#[test]
fn a_resize_in_the_middle_leaves_one_block() {
    for (columns, rows) in [(40, 24), (120, 24), (200, 50), (80, 30)] {
        let mut emulated = Emulated::new(80, 24);
        emulated.draw(block(4, 0));
        emulated.resize(columns, rows);
        for turn in 1..10 {
            emulated.draw(block(4, turn));
        }
        let shown = emulated.rows();
        let blocks = shown.iter().filter(|row| row.starts_with("  0 node")).count();
        assert_eq!((blocks, shown.len()), (1, 4), "80×24 to {columns}×{rows}: {shown:#?}");
    }
}

/// Most terminals wrap what is there anew when they become narrower; the emulator cuts it.
#[test]
fn what_a_narrower_terminal_has_wrapped_is_wiped() {
    let wide = Size { columns: 80, rows: 24 };
    let mut screen = Screen::default();
    screen.draw(&mut Vec::new(), vec!["x".repeat(79), "y".repeat(10)], wide).expect("memory");
    let mut bytes = Vec::new();
    screen.erase(&mut bytes, Size { columns: 40, rows: 24 }).expect("memory");
    let bytes = String::from_utf8_lossy(&bytes);
    assert_eq!(bytes.matches("\u{1b}[1A").count(), 3, "two rows and one: {bytes:?}");
    assert!(!bytes.contains("[J") && !bytes.contains("[0J"), "tmux would keep it: {bytes:?}");
}

#[test]
fn a_block_that_is_kept_or_cleared_is_drawn_over_no_more() {
    let mut emulated = Emulated::new(80, 24);
    emulated.draw(block(2, 1));
    emulated.screen.drawn.clear();
    emulated.say("after");
    emulated.draw(block(1, 2));
    emulated.draw(Vec::new());
    emulated.say("end");
    let shown = emulated.rows();
    assert_eq!(shown.len(), 4, "{shown:#?}");
    assert_eq!(shown[2..], ["after", "end"]);
}

#[test]
fn text_is_cut_by_columns_not_by_characters() {
    assert_eq!(cut("abc", 3), "abc");
    assert_eq!(cut("abcd", 3), "ab…");
    assert_eq!(cut("雀雀雀", 5), "雀雀…");
    assert_eq!(cut("雀雀雀", 4), "雀…");
    assert_eq!(cut("abc", 0), "");
}
