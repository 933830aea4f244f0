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
        known: BTreeMap::new(),
        began: Instant::now(),
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
    /// Of each node the time of its last record, and when that became known here: clocks of machines differ.
    known: BTreeMap<String, (f64, Instant)>,
    began: Instant,
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
        screen.draw(|area, buffer| draw::render(&self.scene(), area, buffer))
    }

    fn scene(&self) -> Scene<'_> {
        let picture = self.view.held.as_deref().unwrap_or(&self.picture);
        let scene =
            Scene { picture, origins: &self.origins, view: &self.view, look: self.look, now: 0.0, zone: &self.zone };
        let now = match self.view.held {
            Some(_) if self.are_all_played() => picture.time(),
            Some(_) => scene.chosen().map_or(0.0, |(_, node)| node.time),
            None => self.now(scene.chosen_id()),
        };
        Scene { now, ..scene }
    }

    fn are_all_played(&self) -> bool {
        self.origins.iter().all(|origin| origin.is_played)
    }

    /// The time of a node: that of its last record and what went by since. Journals are played in one time; before there is a
    /// node, it is counted from the beginning.
    fn now(&self, node: Option<&str>) -> f64 {
        match node.and_then(|node| self.known.get(node)) {
            _ if self.are_all_played() => self.picture.time(),
            Some((time, at)) => time + at.elapsed().as_secs_f64(),
            None => self.began.elapsed().as_secs_f64(),
        }
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
                        insert(&mut self.picture.nodes, id.clone(), node);
                        self.notice_time(&id);
                    }
                }
                News::Records(records) => {
                    self.origins[index].silent = None;
                    records.iter().for_each(|record| self.apply(index, record));
                }
                News::Silent(reason) => {
                    let now = self.now(self.origins[index].node.as_deref());
                    let since = self.origins[index].silent.take().map_or(now, |(_, since)| since);
                    self.origins[index].silent = Some((reason, since));
                }
            }
        }
    }

    fn apply(&mut self, index: usize, record: &Record) {
        self.picture.apply(record);
        self.origins[index].node = Some(record.node.clone());
        self.notice_time(&record.node);
    }

    fn notice_time(&mut self, node: &str) {
        let Some(time) = self.picture.nodes.get(node).map(|node| node.time) else { return };
        if self.known.get(node).is_none_or(|(known, _)| *known < time) {
            self.known.insert(node.to_owned(), (time, Instant::now()));
        }
    }
}

/// Puts a node into a picture, unless there are too many.
fn insert<Node>(nodes: &mut BTreeMap<String, Node>, id: String, node: Node) {
    if nodes.len() < crate::observe::picture::NODES_MAX || nodes.contains_key(&id) {
        nodes.insert(id, node);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;

    use super::*;
    use crate::observe::Body;
    use crate::observe::record::{RunFacts, Sample, VERSION};

    /// What the screen says first of each node in turn.
    fn verdicts(watching: &mut Watching) -> Vec<String> {
        let area = Rect::new(0, 0, 80, 24);
        let nodes = 0..watching.picture.nodes.len();
        let verdict = |node: usize| {
            watching.view.node = node;
            let mut buffer = Buffer::empty(area);
            draw::render(&watching.scene(), area, &mut buffer);
            (0..area.width).map(|column| buffer[(column, 2)].symbol()).collect::<String>().trim_end().to_owned()
        };
        nodes.map(verdict).collect()
    }

    #[test]
    fn daemons_whose_clocks_differ_are_each_seen_by_their_own() {
        let origin = |name: &str| Origin { name: name.to_owned(), ..Origin::default() };
        let mut watching = Watching {
            picture: Picture::default(),
            origins: vec![origin("one"), origin("other")],
            player: Player::default(),
            view: View::default(),
            look: Look::default(),
            known: BTreeMap::new(),
            began: Instant::now(),
            zone: TimeZone::UTC,
        };
        let (sender, news) = sync_channel(NEWS_MAX);
        let records = |node: &str, clock: i64, seqs: std::ops::Range<u64>| {
            let record = |seq: u64| {
                let body = match seq {
                    1 => Body::Run(RunFacts { session: 1, ..RunFacts::default() }),
                    _ => Body::Sample(Box::new(Sample { phase: "completed".to_owned(), ..Sample::default() })),
                };
                let (up, t) = (seq as f64, clock + 1000 * seq as i64);
                Record { v: VERSION, seq, t, up, node: node.to_owned(), body }
            };
            News::Records(seqs.map(record).collect())
        };
        let now = 1_769_860_800_000;
        for (index, node, clock) in [(0, "a", now), (1, "b", now - 60_000)] {
            sender.send((index, records(node, clock, 1..4))).expect("taken in");
        }
        watching.take_in(&news);
        assert_eq!(verdicts(&mut watching), ["ok", "ok"]);
        // The machine of one has slept: its own clock stood still meanwhile.
        let slept = Instant::now().checked_sub(Duration::from_secs(60)).expect("a minute ago");
        watching.known.get_mut("a").expect("known").1 = slept;
        let verdict = verdicts(&mut watching).remove(0);
        assert!(verdict.starts_with("!! nothing new for 1 min"), "{verdict}");
        sender.send((0, records("a", now, 4..5))).expect("taken in");
        watching.take_in(&news);
        assert_eq!(verdicts(&mut watching), ["ok", "ok"]);
        sender.send((1, News::Silent("refused".to_owned()))).expect("taken in");
        watching.take_in(&news);
        let verdict = verdicts(&mut watching).remove(1);
        assert!(verdict.starts_with("!! it has not answered for 0 s: refused"), "{verdict}");
    }
}
