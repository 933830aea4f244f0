//! The members of a node: who they are, how fast, how far behind, and when it last averaged with them.

use std::cmp::Ordering;

use ratatui::layout::Rect;

use super::verdict::spoken;
use super::{Painter, Scene, Tone};
use crate::console::figures::{count, counted};
use crate::console::{human_bytes, short};
use crate::observe::record::ExchangeFacts;
use crate::observe::{NodePicture, PeerPicture};
use crate::watch::state::{SORTS, Sort};

/// A column: its title, its width, and how much it matters: those that matter less go first where there is no room.
struct Column {
    title: &'static str,
    width: u16,
    rank: u16,
    sort: Option<Sort>,
    cell: fn(&Scene<'_>, &PeerPicture) -> String,
}

const COLUMNS: [Column; 13] = [
    Column { title: "last", width: 8, rank: 2, sort: Some(Sort::LastExchange), cell: last_exchange },
    Column { title: "result", width: 9, rank: 5, sort: None, cell: result },
    Column { title: "dist", width: 7, rank: 6, sort: None, cell: distance },
    Column { title: "took", width: 6, rank: 10, sort: None, cell: took },
    Column { title: "done", width: 5, rank: 11, sort: Some(Sort::Exchanges), cell: done },
    Column { title: "speed", width: 7, rank: 3, sort: Some(Sort::Speed), cell: speed },
    Column { title: "lag", width: 7, rank: 7, sort: Some(Sort::Lag), cell: lag },
    Column { title: "sent", width: 8, rank: 4, sort: Some(Sort::Sent), cell: sent },
    Column { title: "got", width: 8, rank: 4, sort: Some(Sort::Received), cell: received },
    Column { title: "now", width: 10, rank: 12, sort: None, cell: rate },
    Column { title: "trip", width: 6, rank: 9, sort: None, cell: round_trip },
    Column { title: "path", width: 6, rank: 8, sort: Some(Sort::Path), cell: path },
    Column { title: "trust", width: 5, rank: 8, sort: Some(Sort::Trust), cell: trust },
];

/// Columns of a member's name at least.
const NAME_MIN: u16 = 9;

pub(super) fn render(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect) {
    let most = listed(scene, node).len().saturating_sub(usize::from(area.height.saturating_sub(2)));
    table(scene, node, painter, area, scene.view.scroll.min(most));
}

/// The members that the filter lets through, in the order that was chosen.
pub(super) fn listed<'a>(scene: &Scene<'_>, node: &'a NodePicture) -> Vec<&'a PeerPicture> {
    let named = |peer: &&PeerPicture| {
        scene.view.lets_through(&peer.facts.peer) || scene.view.lets_through(peer.facts.name.as_deref().unwrap_or(""))
    };
    let mut peers: Vec<&PeerPicture> = node.peers.values().filter(named).collect();
    peers.sort_by(|one, other| {
        let order = compare(scene.view.sort, one, other);
        if scene.view.is_reversed { order.reverse() } else { order }
    });
    // Who is gone stands below who is here, whatever the order.
    peers.sort_by_key(|peer| !peer.facts.connected);
    peers
}

fn compare(sort: Sort, one: &PeerPicture, other: &PeerPicture) -> Ordering {
    let greatest = |value: fn(&PeerPicture) -> f64| value(other).total_cmp(&value(one));
    match sort {
        Sort::LastExchange => greatest(|peer| peer.last.as_ref().map_or(0.0, |last| last.time)),
        Sort::Name => name(one).to_lowercase().cmp(&name(other).to_lowercase()),
        Sort::Speed => greatest(|peer| peer.facts.says_tokens_per_second),
        Sort::Exchanges => greatest(|peer| peer.exchanges as f64),
        Sort::Lag => greatest(|peer| peer.lag.unwrap_or(f64::NEG_INFINITY)),
        Sort::Sent => greatest(|peer| peer.facts.sent.unwrap_or(0) as f64),
        Sort::Received => greatest(|peer| peer.facts.received.unwrap_or(0) as f64),
        Sort::Path => one.facts.path.cmp(&other.facts.path),
        Sort::Trust => other.facts.banned.cmp(&one.facts.banned).then(one.facts.trust.total_cmp(&other.facts.trust)),
    }
}

/// A title, the columns' titles and a row for each member from `first` on.
pub(super) fn table(scene: &Scene<'_>, node: &NodePicture, painter: &mut Painter<'_>, area: Rect, first: usize) {
    if area.height == 0 {
        return;
    }
    let peers = listed(scene, node);
    let here = node.peers.values().filter(|peer| peer.facts.connected).count() as u64;
    let gone = node.peers.len() as u64 - here + node.peers_more;
    let order = SORTS.iter().find(|(sort, _)| *sort == scene.view.sort).map_or("", |(_, name)| name);
    let turned = if scene.view.is_reversed { ", turned round" } else { "" };
    let note = format!("{} · {gone} more known · by {order}{turned} (s)", counted(here, "connected member"));
    let note = note.replace("connected members", "connected").replace("connected member", "connected");
    painter.title(area, "members", &note);
    let shown = fitting(area.width, scene.view.sort);
    let width = shown.iter().map(|column| column.width + 1).sum::<u16>();
    let name_width = area.width.saturating_sub(width + 1).clamp(NAME_MIN, 30);
    let mut titles = vec![("who".to_owned(), name_width, Tone::Faint)];
    titles.extend(shown.iter().map(|column| {
        let tone = if column.sort == Some(scene.view.sort) { Tone::Title } else { Tone::Faint };
        (column.title.to_owned(), column.width, tone)
    }));
    painter.cells(area, 1, &titles);
    if peers.is_empty() {
        let text = if scene.view.filter.is_empty() { "no member is known" } else { "no member passes the filter" };
        painter.text(area, 0, 2, text, Tone::Faint);
    }
    for (row, peer) in (2..area.height).zip(peers.into_iter().skip(first)) {
        let tone = match &peer.facts {
            facts if facts.banned => Tone::Bad,
            facts if !facts.connected => Tone::Faint,
            facts if facts.trust < 1.0 => Tone::Doubtful,
            _ => Tone::Plain,
        };
        let mut cells = vec![(name(peer), name_width, tone)];
        cells.extend(shown.iter().map(|column| ((column.cell)(scene, peer), column.width, tone)));
        painter.cells(area, row, &cells);
    }
}

/// The columns that fit beside the name, in their order: in any case the one by which members are sorted.
fn fitting(width: u16, sort: Sort) -> Vec<&'static Column> {
    let rank = |column: &Column| if column.sort == Some(sort) { 0 } else { column.rank };
    let mut shown: Vec<&Column> = COLUMNS.iter().collect();
    let needed = |shown: &[&Column]| shown.iter().map(|column| column.width + 1).sum::<u16>() + NAME_MIN + 6;
    while needed(&shown) > width {
        let Some(least) = (0..shown.len()).max_by_key(|index| rank(shown[*index])) else { break };
        shown.remove(least);
    }
    shown
}

/// The end of the id, and the name where there is one: anybody may take any name.
fn name(peer: &PeerPicture) -> String {
    let id = short(&peer.facts.peer);
    peer.facts.name.as_ref().map_or_else(|| id.to_owned(), |name| format!("{id} {name}"))
}

fn last_exchange(scene: &Scene<'_>, peer: &PeerPicture) -> String {
    let Some(last) = &peer.last else { return "–".to_owned() };
    let text = spoken(scene.now - last.time);
    // Minutes are enough here.
    match text.split_once(" min ") {
        Some((minutes, rest)) if rest.ends_with('s') => format!("{minutes} min"),
        _ => text,
    }
}

fn result(_: &Scene<'_>, peer: &PeerPicture) -> String {
    peer.last.as_ref().map_or("–".to_owned(), |last| outcome(&last.facts))
}

/// What came of an exchange, in a word.
pub(super) fn outcome(facts: &ExchangeFacts) -> String {
    match facts.result.as_str() {
        "done" if facts.clip.is_some_and(|clip| clip < 0.995) => format!("clip {:.2}", facts.clip.unwrap_or(1.0)),
        "done" => "ok".to_owned(),
        "rejected" => "busy".to_owned(),
        "deadline_passed" => "too late".to_owned(),
        "partner_lost" => "lost".to_owned(),
        other => other.replace('_', " "),
    }
}

fn distance(_: &Scene<'_>, peer: &PeerPicture) -> String {
    known(peer.last.as_ref().and_then(|last| last.facts.distance), |distance| format!("{distance:.4}"))
}

fn took(_: &Scene<'_>, peer: &PeerPicture) -> String {
    known(peer.last.as_ref().and_then(|last| last.facts.seconds), seconds)
}

fn done(_: &Scene<'_>, peer: &PeerPicture) -> String {
    count(peer.exchanges)
}

fn speed(_: &Scene<'_>, peer: &PeerPicture) -> String {
    match peer.facts.says_tokens_per_second {
        // It does not train, or has not measured a step yet.
        0.0 => "–".to_owned(),
        speed if speed >= 1e6 => format!("{:.1}M/s", speed / 1e6),
        speed if speed >= 1e4 => format!("{:.0}k/s", speed / 1e3),
        speed => format!("{}/s", count(speed.round() as u64)),
    }
}

fn lag(_: &Scene<'_>, peer: &PeerPicture) -> String {
    known(peer.lag, |lag| format!("{:.0}", lag.round() + 0.0)) // no "-0"
}

fn sent(_: &Scene<'_>, peer: &PeerPicture) -> String {
    peer.facts.sent.map_or("–".to_owned(), human_bytes)
}

fn received(_: &Scene<'_>, peer: &PeerPicture) -> String {
    peer.facts.received.map_or("–".to_owned(), human_bytes)
}

/// Both ways, between the last two lists of members.
fn rate(_: &Scene<'_>, peer: &PeerPicture) -> String {
    let rate = peer.rates.back().filter(|_| peer.facts.connected);
    rate.map_or("–".to_owned(), |rate| format!("{}/s", human_bytes(*rate as u64)))
}

fn round_trip(_: &Scene<'_>, peer: &PeerPicture) -> String {
    known(peer.facts.rtt, seconds)
}

fn path(_: &Scene<'_>, peer: &PeerPicture) -> String {
    peer.facts.path.clone().unwrap_or_else(|| "–".to_owned())
}

fn trust(_: &Scene<'_>, peer: &PeerPicture) -> String {
    if peer.facts.banned { "banned".to_owned() } else { format!("{:.0} %", 100.0 * peer.facts.trust) }
}

fn known(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), shown)
}

/// A short time.
fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", 1000.0 * seconds) } else { format!("{seconds:.1} s") }
}
