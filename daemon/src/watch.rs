//! `murmur watch`: a live view of daemons, or of a journal that is played again, on a terminal.
//!
//! It is a process of its own that only reads: whatever becomes of it, training goes on. Threads bring records, `state` is
//! what keys have chosen, and `draw` makes a screen of both.

mod draw;
mod follow;
mod play;
mod state;
mod terminal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use ratatui::crossterm::event::{Event, KeyEventKind};

use crate::observe::{Picture, Record};
use draw::{Look, Origin, Scene};
use play::Player;
use state::{View, Wish};
use terminal::Screen;

/// How often the screen is drawn where no key was pressed: who is connected by ssh pays for every byte.
const FRAME: Duration = Duration::from_millis(250);

/// News that wait to be drawn; then their threads wait.
const NEWS_MAX: usize = 64;

/// Where records come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The status page of a daemon.
    Daemon(String),
    /// The files of a journal, oldest first, and what it is called.
    Journal(String, Vec<PathBuf>),
}

/// What is known from a source.
enum News {
    /// All that was before.
    Picture(Box<Picture>),
    /// What came after it.
    Records(Vec<Record>),
    /// Nothing comes any more.
    Silent(String),
}

/// How it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Seconds of a journal that go by in a second.
    pub(crate) speed: f64,
    /// Only ASCII characters.
    pub(crate) is_ascii: bool,
    /// The terminal's colours.
    pub(crate) has_colours: bool,
}

/// Shows sources until the person at the keyboard has seen enough.
///
/// # Errors
/// Those of the terminal.
pub(crate) fn run(sources: Vec<Source>, options: Options) -> std::io::Result<()> {
    let (sender, news) = sync_channel(NEWS_MAX);
    let mut origins = Vec::new();
    let mut player = Player::default();
    for (index, source) in sources.into_iter().enumerate() {
        let origin = match source {
            Source::Daemon(address) => {
                follow::start(index, address.clone(), sender.clone());
                Origin { name: address, ..Origin::default() }
            }
            Source::Journal(name, files) => {
                player.add(index, files);
                Origin { name, is_played: true, ..Origin::default() }
            }
        };
        origins.push(origin);
    }
    drop(sender);
    let zone = TimeZone::system();
    let watching = Watching {
        picture: Picture::default(),
        origins,
        player,
        view: View { speed: options.speed, ..View::default() },
        look: Look { has_colours: options.has_colours, is_ascii: options.is_ascii },
        known: (0.0, Instant::now()),
        zone,
    };
    watching.run(&news)
}

struct Watching {
    picture: Picture,
    origins: Vec<Origin>,
    player: Player,
    view: View,
    look: Look,
    /// The latest time of the picture, and when it became known here.
    known: (f64, Instant),
    zone: TimeZone,
}

impl Watching {
    fn run(mut self, news: &Receiver<(usize, News)>) -> std::io::Result<()> {
        let mut screen = Screen::open()?;
        let mut drawn: Option<Instant> = None;
        let mut played = Instant::now();
        while !screen.is_to_end() {
            let since = std::mem::replace(&mut played, Instant::now()).elapsed();
            self.play(since.as_secs_f64() * self.view.speed);
            let mut has_news = self.take_in(news);
            let wait = drawn.map_or(Duration::ZERO, |drawn| FRAME.saturating_sub(drawn.elapsed()));
            if let Some(event) = screen.input(wait)? {
                has_news = true;
                drawn = None;
                match event {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match self.view.key(key, &self.picture) {
                        Wish::Quit => break,
                        Wish::Suspend => screen.suspend()?,
                        Wish::ToTheEnd => self.play(f64::INFINITY),
                        Wish::Nothing => {}
                    },
                    Event::Resize(..) => screen.clear()?,
                    _ => {}
                }
            }
            let is_due = drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME);
            if is_due || (has_news && drawn.is_none()) {
                self.draw(&mut screen)?;
                drawn = Some(Instant::now());
            }
        }
        screen.close()
    }

    fn draw(&self, screen: &mut Screen) -> std::io::Result<()> {
        let picture = self.view.held.as_deref().unwrap_or(&self.picture);
        let now = if self.view.held.is_some() { picture.time() } else { self.now() };
        let scene = Scene { picture, origins: &self.origins, view: &self.view, look: self.look, now, zone: &self.zone };
        screen.draw(|area, buffer| draw::render(&scene, area, buffer))
    }

    /// The time of the picture: that of its last record and, for daemons that live, what went by since.
    fn now(&self) -> f64 {
        let (time, at) = self.known;
        if self.origins.iter().any(|origin| !origin.is_played) { time + at.elapsed().as_secs_f64() } else { time }
    }

    /// Plays so many seconds of the journals.
    fn play(&mut self, seconds: f64) {
        for (index, record) in self.player.play(seconds) {
            self.apply(index, &record);
        }
        for index in self.player.over() {
            self.origins[index].is_over = true;
        }
    }

    /// Takes in what the threads have brought. Whether there was anything.
    fn take_in(&mut self, news: &Receiver<(usize, News)>) -> bool {
        let mut has_news = false;
        loop {
            let (index, brought) = match news.try_recv() {
                Ok(brought) => brought,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return has_news,
            };
            has_news = true;
            match brought {
                News::Picture(picture) => {
                    self.origins[index].silent = None;
                    for (id, node) in picture.nodes {
                        self.origins[index].node = Some(id.clone());
                        insert(&mut self.picture.nodes, id, node);
                    }
                }
                News::Records(records) => {
                    self.origins[index].silent = None;
                    records.iter().for_each(|record| self.apply(index, record));
                }
                News::Silent(reason) => {
                    let since = self.origins[index].silent.take().map_or(self.now(), |(_, since)| since);
                    self.origins[index].silent = Some((reason, since));
                }
            }
            self.notice_time();
        }
    }

    fn apply(&mut self, index: usize, record: &Record) {
        self.picture.apply(record);
        self.origins[index].node = Some(record.node.clone());
        self.notice_time();
    }

    fn notice_time(&mut self) {
        let time = self.picture.time();
        if time > self.now() || self.known.0 == 0.0 {
            self.known = (time, Instant::now());
        }
    }
}

/// Puts a node into a picture, unless there are too many.
fn insert<Node>(nodes: &mut BTreeMap<String, Node>, id: String, node: Node) {
    if nodes.len() < crate::observe::picture::NODES_MAX || nodes.contains_key(&id) {
        nodes.insert(id, node);
    }
}
