//! The screen of `murmur watch`, drawn from a picture. Nothing here asks for the time, the terminal or the network: the same
//! scene is the same screen.

mod curve;
mod events;
mod overview;
mod peers;
mod resources;
#[cfg(test)]
mod tests;
mod traffic;
mod verdict;

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use murmur_protocol::text::escaped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::state::{TABS, Tab, View};
use crate::console::screen::cut;
use crate::console::{figures, in_ascii, known, labelled, short};
use crate::observe::{NodePicture, Picture};

/// How text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// Whether colours are used: the terminal's own sixteen.
    pub(super) has_colours: bool,
    /// Whether only ASCII characters are used.
    pub(super) is_ascii: bool,
}

/// Where what is shown comes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Origin {
    /// An address, or a file.
    pub(super) name: String,
    /// The node that was found there, once it is known.
    pub(super) node: Option<String>,
    /// Why nothing comes from there, and since when.
    pub(super) silent: Option<(String, f64)>,
    /// Whether it is a journal that is played.
    pub(super) is_played: bool,
    /// Whether it has been played to its end.
    pub(super) is_over: bool,
}

/// Everything that a screen depends on.
pub(super) struct Scene<'a> {
    pub(super) picture: &'a Picture,
    pub(super) origins: &'a [Origin],
    pub(super) view: &'a View,
    pub(super) look: Look,
    /// The time of the picture, in its seconds.
    pub(super) now: f64,
    /// In which wall clocks are shown.
    pub(super) zone: &'a TimeZone,
}

/// What a text means; never by its colour alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// Less important.
    Faint,
    /// A title.
    Title,
    /// In order.
    Good,
    /// To be looked at.
    Doubtful,
    /// Wrong.
    Bad,
    /// A second curve.
    Other,
    /// What keys and the chosen page have.
    Chosen,
}

/// Writes into a part of the screen.
struct Painter<'a> {
    buffer: &'a mut Buffer,
    look: Look,
}

impl Painter<'_> {
    fn style(&self, tone: Tone) -> Style {
        let plain = Style::new();
        let coloured = |colour: Color| if self.look.has_colours { plain.fg(colour) } else { plain };
        match tone {
            Tone::Plain => plain,
            Tone::Faint => plain.add_modifier(Modifier::DIM),
            Tone::Title => coloured(Color::Cyan).add_modifier(Modifier::BOLD),
            Tone::Good => coloured(Color::Green),
            Tone::Doubtful => coloured(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Other => coloured(Color::Magenta),
            Tone::Chosen => plain.add_modifier(Modifier::REVERSED),
        }
    }

    /// Writes a text on a row of the area, from a column of it on, cut where the area ends. Gives the column after it.
    /// Whatever a terminal would obey is escaped: much of what is shown was written on other people's machines.
    fn text(&mut self, area: Rect, column: u16, row: u16, text: &str, tone: Tone) -> u16 {
        if row >= area.height || column >= area.width {
            return column;
        }
        let room = area.width - column;
        let shown = self.plain(text);
        let shown = cut(&shown, room.into());
        let shown = if self.look.is_ascii { shown.replace('…', ".") } else { shown };
        let style = self.style(tone);
        self.buffer.set_stringn(area.x + column, area.y + row, &shown, room.into(), style);
        column + u16::try_from(shown.width()).unwrap_or(room).min(room)
    }

    /// Writes a text that ends where the area ends.
    fn text_at_end(&mut self, area: Rect, row: u16, text: &str, tone: Tone) {
        let shown = self.plain(text).into_owned();
        let width = u16::try_from(shown.width()).unwrap_or(u16::MAX);
        if width <= area.width {
            self.text(area, area.width - width, row, &shown, tone);
        }
    }

    /// A title with a line to the end of the row.
    fn title(&mut self, area: Rect, title: &str, note: &str) {
        let end = self.text(area, 0, 0, title, Tone::Title);
        let end = if note.is_empty() { end } else { self.text(area, end + 1, 0, note, Tone::Faint) };
        let rule = if self.look.is_ascii { "-" } else { "─" };
        let left = usize::from(area.width.saturating_sub(end + 1));
        self.text(area, end + 1, 0, &rule.repeat(left), Tone::Faint);
    }

    /// A row of cells, each as wide as its column and the last as wide as there is room.
    fn cells(&mut self, area: Rect, row: u16, cells: &[(String, u16, Tone)]) {
        let mut column = 0;
        for (text, width, tone) in cells {
            let room = Rect { width: (column + width).min(area.width), ..area };
            self.text(room, column, row, text, *tone);
            column += width + 1;
        }
    }

    /// The text as it may be shown.
    fn plain<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let shown = escaped(text, |_| false);
        if !self.look.is_ascii || shown.is_ascii() {
            return shown;
        }
        let ascii = |character: char| if character.is_ascii() { character } else { in_ascii(character).unwrap_or('?') };
        shown.chars().map(ascii).collect::<String>().into()
    }
}

impl<'a> Scene<'a> {
    /// The node that is shown, with its place among all.
    pub(super) fn chosen(&self) -> Option<(usize, &'a NodePicture)> {
        let index = self.view.node.checked_rem(self.picture.nodes.len())?;
        self.picture.nodes.values().nth(index).map(|node| (index, node))
    }

    /// The peer id of the node that is shown.
    pub(super) fn chosen_id(&self) -> Option<&'a str> {
        self.picture.nodes.keys().nth(self.chosen()?.0).map(String::as_str)
    }

    /// Where the node that is shown comes from.
    fn origin(&self) -> Option<&'a Origin> {
        let id = self.chosen_id();
        let of_node = self.origins.iter().find(|origin| origin.node.as_deref() == id && id.is_some());
        of_node.or(self.origins.first())
    }

    /// A wall clock in milliseconds since 1970, as hours, minutes and seconds.
    fn clock(&self, wall: i64) -> String {
        let time = Timestamp::from_millisecond(wall).unwrap_or_default().to_zoned(self.zone.clone());
        time.strftime("%H:%M:%S").to_string()
    }

    /// What curves show: from when to when.
    fn window(&self, node: &NodePicture) -> (f64, f64) {
        let first = node.series.values().filter_map(|series| series.first_time()).fold(self.now, f64::min);
        let from = self.view.window.seconds().map_or(first, |seconds| (self.now - seconds).max(first));
        (from, self.now.max(from + 1.0))
    }
}

/// Draws the screen.
pub(super) fn render(scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let mut painter = Painter { buffer, look: scene.look };
    let painter = &mut painter;
    if area.is_empty() {
        return;
    }
    if scene.view.shows_help {
        help(painter, area);
        return;
    }
    let Some((index, node)) = scene.chosen() else {
        waiting(scene, painter, area);
        return;
    };
    head(scene, node, index, painter, area);
    let has_tabs = area.height >= 8;
    let has_footer = area.height >= 4;
    if has_tabs {
        tabs(scene, painter, Rect { y: area.y + 3, height: 1, ..area });
    }
    if has_footer {
        footer(scene, painter, Rect { y: area.bottom() - 1, height: 1, ..area });
    }
    let top = if has_tabs { 4 } else { 3 };
    let height = area.height.saturating_sub(top + u16::from(has_footer));
    let body = Rect { y: area.y + top.min(area.height), height, ..area };
    if body.is_empty() {
        return;
    }
    match scene.view.tab {
        Tab::Overview => overview::render(scene, node, painter, body),
        Tab::Peers => peers::render(scene, node, painter, body),
        Tab::Traffic => traffic::render(scene, node, painter, body),
        Tab::Events => events::render(scene, node, painter, body),
        Tab::Resources => resources::render(scene, node, painter, body),
    }
}

/// Three rows: which node and run, how far it is, and whether that is good.
fn head(scene: &Scene<'_>, node: &NodePicture, index: usize, painter: &mut Painter<'_>, area: Rect) {
    let id = scene.chosen_id().unwrap_or_default();
    let run = if node.run.run_name.is_empty() { &node.run.run } else { &node.run.run_name };
    let end = painter.text(area, 0, 0, "murmur", Tone::Title);
    let end = painter.text(area, end + 1, 0, run, Tone::Plain);
    let name = labelled(short(id), node.run.name.as_deref());
    let end = painter.text(area, end + 1, 0, &format!("· node {name}"), Tone::Faint);
    let count = scene.picture.nodes.len();
    let mut marks = Vec::new();
    if count > 1 {
        marks.push(format!("{} of {count} (n)", index + 1));
    }
    if scene.origin().is_some_and(|origin| origin.is_played) {
        marks.push(format!("{} · {:.0} × ", scene.clock(node.wall), scene.view.speed).trim_end().to_owned());
    }
    if scene.view.held.is_some() {
        marks.push("HELD (p)".to_owned());
    }
    let room = Rect { x: area.x + end.min(area.width), width: area.width.saturating_sub(end), ..area };
    let marks = marks.join(" · ");
    painter.text_at_end(room, 0, &marks, Tone::Doubtful);
    if let Some(sample) = &node.sample {
        let taken = if marks.is_empty() { 0 } else { marks.width() as u16 + 2 };
        let room = Rect { width: room.width.saturating_sub(taken), ..room };
        // Before the first step it is not known.
        let is_known = sample.tokens_per_second > 0.0 || sample.step_seconds > 0.0;
        let speed = format!("  {} {}/s", known(is_known.then_some(sample.tokens_per_second)), unit(node));
        painter.text_at_end(room, 0, &speed, Tone::Plain);
    }

    if let Some(sample) = &node.sample {
        let mut parts = vec![sample.phase.clone()];
        let share = sample.copied.or(sample.share);
        if let Some(share) = share {
            let bar = if area.width >= 60 {
                figures::bar(share, if area.width < 100 { 14 } else { 24 }) + " "
            } else {
                String::new()
            };
            parts.push(format!("{bar}{}", figures::percent(share)));
        }
        let steps = figures::count(sample.steps);
        if let Some(most) = sample.progress_max {
            let swarm = figures::count(sample.progress.max(0.0) as u64);
            parts.push(format!("swarm step {swarm} of {}", figures::count(most)));
            parts.push(figures::time_left(sample.seconds_left));
            parts.push(format!("own {steps}"));
        } else {
            let of = sample.steps_max.map_or(String::new(), |most| format!(" of {}", figures::count(most)));
            parts.push(format!("own step {steps}{of}"));
            parts.push(figures::time_left(sample.seconds_left));
        }
        let line = figures::fitted(parts, area.width.into());
        painter.text(area, 0, 1, &line, Tone::Plain);
    }
    let (tone, text) = verdict::verdict(scene, node);
    let mark = match tone {
        Tone::Good => "ok",
        Tone::Bad => "!!",
        Tone::Doubtful => "! ",
        _ => "--",
    };
    let end = painter.text(area, 0, 2, mark, tone);
    painter.text(area, end + 1, 2, &text, tone);
}

/// What is predicted, in the plural.
fn unit(node: &NodePicture) -> &'static str {
    figures::examples(&node.run.prediction)
}

fn tabs(scene: &Scene<'_>, painter: &mut Painter<'_>, area: Rect) {
    let mut column = 0;
    let is_short = area.width < 64;
    for (number, (tab, name)) in TABS.into_iter().enumerate() {
        let is_chosen = tab == scene.view.tab;
        let name = if is_short && !is_chosen { &name[..2] } else { name };
        let tone = if is_chosen { Tone::Chosen } else { Tone::Faint };
        column = painter.text(area, column, 0, &format!(" {} {name} ", number + 1), tone) + 1;
    }
    let window = format!("curves: {} (w)", scene.view.window.name());
    if usize::from(column) + window.len() < usize::from(area.width) {
        painter.text_at_end(area, 0, &window, Tone::Faint);
    }
}

fn footer(scene: &Scene<'_>, painter: &mut Painter<'_>, area: Rect) {
    let view = scene.view;
    if view.is_typing || !view.filter.is_empty() {
        let end = painter.text(area, 0, 0, &format!("/{}", view.filter), Tone::Chosen);
        let hint = if view.is_typing { "Enter keeps the filter, Esc drops it" } else { "Esc drops the filter" };
        painter.text(area, end + 1, 0, hint, Tone::Faint);
        return;
    }
    let mut keys = vec!["q quit", "? help", "1-5 pages", "/ filter", "s sort", "p hold", "w window", "e seen"];
    if scene.picture.nodes.len() > 1 {
        keys.insert(2, "n next node");
    }
    if scene.origin().is_some_and(|origin| origin.is_played) {
        keys.insert(2, "+ - speed");
    }
    let line = figures::fitted(keys.into_iter().map(str::to_owned), area.width.into());
    painter.text(area, 0, 0, &line, Tone::Faint);
}

fn waiting(scene: &Scene<'_>, painter: &mut Painter<'_>, area: Rect) {
    painter.text(area, 0, 0, "murmur", Tone::Title);
    let mut row = 1;
    for origin in scene.origins {
        let (text, tone) = match &origin.silent {
            Some((reason, since)) => {
                (format!("{}: no answer for {:.0} s: {reason}", origin.name, scene.now - since), Tone::Bad)
            }
            None => (format!("{}: waiting for its first record", origin.name), Tone::Plain),
        };
        painter.text(area, 0, row, &text, tone);
        row += 1;
    }
    painter.text(area, 0, row, "q quit", Tone::Faint);
}

fn help(painter: &mut Painter<'_>, area: Rect) {
    let lines = [
        ("", "murmur watch: is it training, with whom, do they agree, what does it cost"),
        ("1-5", "pages; also Tab and the arrows"),
        ("n N", "next and previous node, where several are watched"),
        ("s S", "members by another column; the order turned round"),
        ("/", "only members and events that contain a text"),
        ("w", "curves of 5 minutes, of an hour, or of all that is kept"),
        ("p", "hold the picture; what happens meanwhile is not lost"),
        ("e", "warnings and errors have been seen: they leave the top"),
        ("j k", "move a list; also the arrows and the page keys"),
        ("+ -", "a journal is played faster or slower; End plays it to its end"),
        ("q", "quit; also Esc and Ctrl-C. The daemon goes on in any case"),
        ("", ""),
        ("", "ratio: how far models are apart, over what a node learns between two exchanges."),
        ("", "With pairs 0.4 to 0.8 is best, and above 1.5 models drift apart; on links 0.4 to 4, and 8."),
        ("", "lag: steps that a member's model was behind this one at their last exchange."),
    ];
    let mut row = 0;
    for (key, text) in lines {
        painter.text(area, 0, row, key, Tone::Title);
        let column = if key.is_empty() { 0 } else { 5 };
        let room = usize::from(area.width.saturating_sub(column)).max(1);
        for part in textwrap::wrap(text, room) {
            painter.text(area, column, row, &part, Tone::Plain);
            row += 1;
        }
    }
}
