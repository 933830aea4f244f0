//! What the person at the keyboard has chosen to see. Keys change it and nothing else does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::observe::Picture;

/// Characters of a filter at most.
const FILTER_MAX: usize = 40;

/// The speeds at which a journal is played, in seconds of it a second.
const SPEEDS: [f64; 10] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0, 1200.0, 3600.0];

/// The pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    /// Everything at a glance.
    #[default]
    Overview,
    /// Whom it trains with.
    Peers,
    /// What goes over the wire, and with whom.
    Traffic,
    /// What has happened.
    Events,
    /// What it takes of this machine.
    Resources,
}

/// All pages, in the order of their keys.
pub(super) const TABS: [(Tab, &str); 5] = [
    (Tab::Overview, "Overview"),
    (Tab::Peers, "Members"),
    (Tab::Traffic, "Traffic"),
    (Tab::Events, "Events"),
    (Tab::Resources, "Resources"),
];

/// By what members are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// When the last exchange was: the newest first.
    #[default]
    LastExchange,
    /// Name, or id.
    Name,
    /// Tokens a second: the fastest first.
    Speed,
    /// Exchanges completed with it: most first.
    Exchanges,
    /// Steps that it lay behind: most first.
    Lag,
    /// Bytes sent: most first.
    Sent,
    /// Bytes received: most first.
    Received,
    /// How it is reached.
    Path,
    /// How much it is believed: least first.
    Trust,
}

/// All orders, in the order of the key `s`.
pub(super) const SORTS: [(Sort, &str); 9] = [
    (Sort::LastExchange, "last exchange"),
    (Sort::Name, "name"),
    (Sort::Speed, "speed"),
    (Sort::Exchanges, "exchanges"),
    (Sort::Lag, "lag"),
    (Sort::Sent, "sent"),
    (Sort::Received, "received"),
    (Sort::Path, "path"),
    (Sort::Trust, "trust"),
];

/// How much of the past curves show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Window {
    /// Five minutes.
    #[default]
    Minutes,
    /// An hour.
    Hour,
    /// All that is kept.
    All,
}

impl Window {
    /// Its length in seconds; none for all.
    pub(super) fn seconds(self) -> Option<f64> {
        match self {
            Window::Minutes => Some(300.0),
            Window::Hour => Some(3600.0),
            Window::All => None,
        }
    }

    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Window::Minutes => "5 min",
            Window::Hour => "1 h",
            Window::All => "all",
        }
    }
}

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct View {
    pub(super) tab: Tab,
    pub(super) sort: Sort,
    /// Whether the order is turned round.
    pub(super) is_reversed: bool,
    pub(super) window: Window,
    /// What names, ids and events must contain.
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) is_typing: bool,
    /// The picture as it was when it was held.
    pub(super) held: Option<Box<Picture>>,
    pub(super) shows_help: bool,
    /// Lines that a list is moved by.
    pub(super) scroll: usize,
    /// Which of the nodes is shown, counted round.
    pub(super) node: usize,
    /// Warnings up to this record have been seen, by node.
    pub(super) seen: std::collections::BTreeMap<String, u64>,
    /// Seconds of the journal that go by in a second; not used for live nodes.
    pub(super) speed: f64,
}

/// What a key asks for beside what it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Go on.
    Nothing,
    /// End.
    Quit,
    /// Give the terminal back for a while.
    Suspend,
    /// Play to the end of the journal at once.
    ToTheEnd,
}

impl View {
    /// Takes in a key. `picture` is what is known now.
    pub(super) fn key(&mut self, key: KeyEvent, picture: &Picture) -> Wish {
        let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if has_control => return Wish::Quit,
            KeyCode::Char('z') if has_control => return Wish::Suspend,
            _ if has_control => return Wish::Nothing,
            _ => {}
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Wish::Nothing;
        }
        if self.shows_help {
            // Any key closes it, and `q` closes no more than that.
            self.shows_help = false;
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Char(digit @ '1'..='5') => self.turn_to(digit as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.tab_index() + 1),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.tab_index() + TABS.len() - 1),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => {
                let index = SORTS.iter().position(|(sort, _)| *sort == self.sort).unwrap_or(0);
                self.sort = SORTS[(index + 1) % SORTS.len()].0;
            }
            KeyCode::Char('S') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('w') => {
                self.window = match self.window {
                    Window::Minutes => Window::Hour,
                    Window::Hour => Window::All,
                    Window::All => Window::Minutes,
                }
            }
            KeyCode::Char('p' | ' ') => {
                self.held = if self.held.is_some() { None } else { Some(Box::new(picture.clone())) };
            }
            KeyCode::Char('e') => {
                self.seen = picture.nodes.iter().map(|(id, node)| (id.clone(), node.seq)).collect();
            }
            KeyCode::Char('n') => self.node = self.node.wrapping_add(1),
            KeyCode::Char('N') => self.node = self.node.wrapping_add(picture.nodes.len().max(1) - 1),
            KeyCode::Char('+' | '=') => {
                self.speed = SPEEDS.into_iter().find(|speed| *speed > self.speed).unwrap_or(3600.0)
            }
            KeyCode::Char('-') => {
                self.speed = SPEEDS.into_iter().rev().find(|speed| *speed < self.speed).unwrap_or(0.5);
            }
            KeyCode::End => return Wish::ToTheEnd,
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(10),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Wish::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) if self.filter.chars().count() < FILTER_MAX => self.filter.push(character),
            _ => {}
        }
        self.scroll = 0;
    }

    fn turn_to(&mut self, index: usize) {
        self.tab = TABS[index % TABS.len()].0;
        self.scroll = 0;
    }

    fn tab_index(&self) -> usize {
        TABS.iter().position(|(tab, _)| *tab == self.tab).unwrap_or(0)
    }

    /// Whether a text passes the filter.
    pub(super) fn lets_through(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut View, codes: &[KeyCode]) -> Wish {
        let picture = Picture::default();
        codes.iter().fold(Wish::Nothing, |_, code| view.key((*code).into(), &picture))
    }

    #[test]
    fn keys_turn_pages_and_choose_orders() {
        let mut view = View::default();
        press(&mut view, &[KeyCode::Char('4')]);
        assert_eq!(view.tab, Tab::Events);
        press(&mut view, &[KeyCode::Tab, KeyCode::Tab]);
        assert_eq!(view.tab, Tab::Overview, "round");
        press(&mut view, &[KeyCode::BackTab]);
        assert_eq!(view.tab, Tab::Resources);
        (0..SORTS.len()).for_each(|_| _ = press(&mut view, &[KeyCode::Char('s')]));
        assert_eq!(view.sort, Sort::LastExchange, "round");
        press(&mut view, &[KeyCode::Char('w'), KeyCode::Char('w')]);
        assert_eq!(view.window, Window::All);
    }

    #[test]
    fn what_is_typed_into_the_filter_is_no_command() {
        let mut view = View::default();
        let typed = ['/', 'q', 's', 'x'].map(KeyCode::Char);
        assert_eq!(press(&mut view, &typed), Wish::Nothing);
        press(&mut view, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!((view.filter.as_str(), view.is_typing, view.sort), ("qs", false, Sort::LastExchange));
        assert!(view.lets_through("a QS b") && !view.lets_through("q s"));
        assert_eq!(press(&mut view, &[KeyCode::Esc]), Wish::Nothing, "the filter goes first");
        assert_eq!(press(&mut view, &[KeyCode::Esc]), Wish::Quit);
    }

    #[test]
    fn control_c_ends_it_wherever_it_is_and_help_closes_with_any_key() {
        let mut view = View { is_typing: true, ..View::default() };
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control_c, &Picture::default()), Wish::Quit);
        let mut view = View::default();
        assert_eq!(press(&mut view, &[KeyCode::Char('?'), KeyCode::Char('q')]), Wish::Nothing);
        assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Wish::Quit);
    }

    #[test]
    fn a_held_picture_stays_and_the_speed_has_ends() {
        let mut view = View { speed: 20.0, ..View::default() };
        press(&mut view, &[KeyCode::Char('p')]);
        assert!(view.held.is_some());
        press(&mut view, &[KeyCode::Char(' ')]);
        assert!(view.held.is_none());
        (0..20).for_each(|_| _ = press(&mut view, &[KeyCode::Char('+')]));
        assert_eq!(view.speed, 3600.0);
        (0..20).for_each(|_| _ = press(&mut view, &[KeyCode::Char('-')]));
        assert_eq!(view.speed, 0.5);
    }
}
