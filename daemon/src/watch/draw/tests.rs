//! Screens of a made-up swarm, as text.

use murmur_protocol::manifest::GossipKind;
use murmur_protocol::text::is_unprintable;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::observe::record::{
    Body, EventFacts, ExchangeFacts, Level, PeerFacts, Peers, Record, RunFacts, Sample, VERSION,
};
use crate::watch::state::{Sort, Window};

/// When the made-up daemon began: 2026-01-31 12:00:00 UTC, in milliseconds since 1970.
const BEGIN: i64 = 1_769_860_800_000;

/// A swarm of three: one node with two members, for so many seconds.
fn story(node: &str, seconds: u64, loss_at: f64) -> Picture {
    let mut picture = Picture::default();
    let mut seq = 0;
    let mut tell = |up: f64, body: Body| {
        seq += 1;
        let t = BEGIN + (up * 1000.0) as i64;
        picture.apply(&Record { v: VERSION, seq, t, up, node: node.to_owned(), body });
    };
    let run = RunFacts {
        run: "a1b2c3d4".to_owned(),
        run_name: "stories".to_owned(),
        name: Some("attic".to_owned()),
        version: "0.1.0".to_owned(),
        session: 1,
        device: "cpu".to_owned(),
        prediction: "token".to_owned(),
        ratio_band: GossipKind::Pairs.ratio_band(),
        ..RunFacts::default()
    };
    tell(0.0, Body::Run(run));
    for second in 1..=seconds {
        let up = second as f64;
        if second % 5 == 1 {
            tell(up, Body::Peers(Peers { peers: members(second), more: 0 }));
        }
        if second % 10 == 3 {
            tell(up, exchange("12D3KooWbarnBARN", second));
        }
        if second == 20 {
            tell(up, Body::Exchange(ExchangeFacts { result: "partner_lost".to_owned(), ..facts("12D3KooWdeskDESK") }));
        }
        tell(up, Body::Sample(Box::new(sample(second, loss_at))));
    }
    picture
}

fn members(second: u64) -> Vec<PeerFacts> {
    let member = |peer: &str, name: &str| PeerFacts {
        peer: peer.to_owned(),
        name: Some(name.to_owned()),
        connected: true,
        trust: 1.0,
        ..PeerFacts::default()
    };
    let barn = PeerFacts {
        says_tokens_per_second: 2_500.0,
        sent: Some(200_000 * second),
        received: Some(150_000 * second),
        rtt: Some(0.012),
        path: Some("direct".to_owned()),
        ..member("12D3KooWbarnBARN", "barn")
    };
    let desk = PeerFacts {
        says_tokens_per_second: 41_000.0,
        sent: Some(900_000),
        path: Some("relay".to_owned()),
        trust: 0.4,
        ..member("12D3KooWdeskDESK", "desk")
    };
    vec![barn, desk]
}

fn facts(partner: &str) -> ExchangeFacts {
    ExchangeFacts { partner: partner.to_owned(), lag: Some(960.0), ..ExchangeFacts::default() }
}

fn exchange(partner: &str, second: u64) -> Body {
    Body::Exchange(ExchangeFacts {
        result: "done".to_owned(),
        distance: Some(0.5 / (second + 1) as f64),
        clip: Some(1.0),
        seconds: Some(0.42),
        sent: Some(120_000),
        received: Some(118_000),
        ..facts(partner)
    })
}

fn sample(second: u64, loss_at: f64) -> Sample {
    let up = second as f64;
    Sample {
        phase: "training".to_owned(),
        doing: "training".to_owned(),
        steps: 10 * second,
        progress: 20.0 * up,
        share: Some(up / 400.0),
        steps_max: Some(4000),
        seconds_left: Some(400.0 - up),
        loss: Some(loss_at + 3.0 / (1.0 + up / 20.0)),
        validation_loss: (second > 30).then_some(loss_at + 3.2 / (1.0 + up / 20.0)),
        accuracy: (second > 30).then_some(0.8125),
        tokens_per_second: 3_210.0,
        peers: 2,
        exchanges: second / 10,
        ratio: Some(0.55 + 0.2 * (up / 15.0).sin()),
        disagreement: Some(0.02),
        sent: 220_000 * second,
        received: 170_000 * second,
        today: 3_000_000_000,
        boundary_share: 0.021,
        cpu_seconds: Some(1.8 * up),
        memory: Some(412_000_000),
        peak_memory: Some(500_000_000),
        disk_free: Some(81_000_000_000),
        ..Sample::default()
    }
}

fn event(picture: &mut Picture, level: Level, text: &str) {
    let (id, seq) = picture.nodes.iter().map(|(id, node)| (id.clone(), node.seq + 1)).next().expect("a node");
    let up = picture.nodes[&id].up;
    let hint = (level != Level::Info).then(|| "look at it".to_owned());
    let body = Body::Event(EventFacts { level, text: text.to_owned(), hint });
    picture.apply(&Record { v: VERSION, seq, t: BEGIN + (up * 1000.0) as i64, up, node: id, body });
}

/// What is drawn at a size.
fn screen(picture: &Picture, view: &View, look: Look, (columns, rows): (u16, u16)) -> Terminal<TestBackend> {
    let ids = picture.nodes.keys().cloned();
    let origin = |id: String| Origin { name: "127.0.0.1:4780".to_owned(), node: Some(id), ..Origin::default() };
    screen_of(picture, &ids.map(origin).collect::<Vec<_>>(), view, look, (columns, rows))
}

fn screen_of(
    picture: &Picture,
    origins: &[Origin],
    view: &View,
    look: Look,
    (columns, rows): (u16, u16),
) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("memory");
    let scene = Scene { picture, origins, view, look, now: picture.time() + 0.5, zone: &TimeZone::UTC };
    terminal.draw(|frame| render(&scene, frame.area(), frame.buffer_mut())).expect("memory");
    terminal
}

/// The text of a screen, its rows without the spaces at their ends.
fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| row(y).trim_end().to_owned() + "\n").collect()
}

const COLOURED: Look = Look { has_colours: true, is_ascii: false };

const PLAIN: Look = Look { has_colours: false, is_ascii: true };

#[test]
fn the_first_screen_says_whether_it_trains_with_whom_whether_they_agree_and_what_it_costs() {
    let mut picture = story("12D3KooWatticATTIC", 120, 1.0);
    event(&mut picture, Level::Info, "12D3KooW…barnBARN “barn” connected");
    let shown = text(&screen(&picture, &View::default(), PLAIN, (80, 24)));
    let rows: Vec<&str> = shown.lines().collect();
    let expected = [
        (0, "murmur stories - node ticATTIC \"attic\""),
        (1, "training - [####----------] 30 % - own step 1,200 of 4,000 - 4 min 40 s left"),
        (2, "ok trains with 2 members, and the models agree (ratio 0.75)"),
        (3, " 1 Overview   2 Members   3 Traffic   4 Events   5 Resources   curves: 5 min (w)"),
    ];
    for (row, expected) in expected {
        assert!(rows[row].starts_with(expected), "row {row}:\n{shown}");
    }
    for part in [
        "3,210 tokens/s",
        "loss own 1.42",
        "valid. 1.4",
        "81.25 % right",
        "disagreement ratio 0.75, good",
        "barnBARN barn",
        "deskDESK desk",
        "traffic ^ ",
        "machine 1.8 processors",
        "events",
        "q quit",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    assert!(shown.is_ascii(), "{shown}");
}

#[test]
fn where_the_swarm_ends_the_run_its_progress_is_shown() {
    let mut picture = story("12D3KooWatticATTIC", 120, 1.0);
    for node in picture.nodes.values_mut() {
        node.sample.as_mut().expect("a sample").progress_max = Some(8000);
    }
    let shown = text(&screen(&picture, &View::default(), PLAIN, (80, 24)));
    let expected = "training - [####----------] 30 % - swarm step 2,400 of 8,000 - 4 min 40 s left";
    assert!(shown.lines().nth(1).is_some_and(|row| row.starts_with(expected)), "{shown}");
}

#[test]
fn a_ratio_that_is_too_high_is_told_whole_on_a_usual_terminal() {
    let mut picture = story("12D3KooWatticATTIC", 30, 1.0);
    let node = picture.nodes.get_mut("12D3KooWatticATTIC").expect("there");
    node.sample.as_mut().expect("told").ratio = Some(5.15);
    let shown = text(&screen(&picture, &View::default(), PLAIN, (80, 24)));
    assert!(shown.contains("ratio 5.15 (healthy 0.4-0.8)"), "{shown}");
}

#[test]
fn every_page_can_be_drawn_at_every_size_and_never_writes_beyond_it() {
    let mut picture = story("12D3KooWatticATTIC", 90, 1.0);
    event(&mut picture, Level::Warning, "a member misbehaves");
    for (tab, _) in TABS {
        for shows_help in [false, true] {
            let view = View {
                tab,
                shows_help,
                filter: if shows_help { String::new() } else { "a".to_owned() },
                ..View::default()
            };
            for size in [(1, 1), (3, 2), (10, 4), (20, 5), (40, 8), (57, 11), (80, 24), (200, 60)] {
                drop(screen(&picture, &view, COLOURED, size));
                drop(screen(&Picture::default(), &view, PLAIN, size));
            }
        }
    }
    let small = text(&screen(&picture, &View::default(), COLOURED, (20, 5)));
    let rows: Vec<&str> = small.lines().collect();
    assert!(rows[1].starts_with("training") && rows[2].starts_with("ok trains with 2"), "{small}");
    assert!(rows[3].starts_with("2 members") && rows[4].starts_with("q quit"), "{small}");
}

#[test]
fn the_help_is_whole_on_a_usual_terminal() {
    let view = View { shows_help: true, ..View::default() };
    let shown = text(&screen(&story("12D3KooWatticATTIC", 30, 1.0), &view, PLAIN, (80, 24)));
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for end in ["learns between two exchanges.", "on links 0.4 to 4, and 8.", "at their last exchange."] {
        assert!(words.contains(end), "{end} is cut:\n{shown}");
    }
}

#[test]
fn what_peers_write_does_nothing_to_the_terminal() {
    let mut picture = story("12D3KooWatticATTIC", 30, 1.0);
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\u{200b}x\n";
    event(&mut picture, Level::Error, hostile);
    let node = picture.nodes.get_mut("12D3KooWatticATTIC").expect("there");
    node.run.name = Some(hostile.to_owned());
    node.run.run_name = hostile.to_owned();
    node.peers.values_mut().for_each(|peer| peer.facts.name = Some(hostile.to_owned()));
    let silent = Some((hostile.to_owned(), 0.0));
    let origins = [Origin { name: hostile.to_owned(), silent, ..Origin::default() }];
    for (tab, _) in TABS {
        let view = View { tab, ..View::default() };
        let shown = text(&screen(&picture, &view, COLOURED, (120, 30)));
        assert!(!shown.replace('\n', "").contains(is_unprintable), "{shown:?}");
        assert!(tab != Tab::Events || shown.contains("error: \\u{1b}]0;owned"), "{shown}");
        let shown = text(&screen_of(&Picture::default(), &origins, &view, COLOURED, (120, 30)));
        assert!(!shown.replace('\n', "").contains(is_unprintable), "{shown:?}");
    }
}

#[test]
fn without_colours_there_are_none_and_nothing_is_said_by_colour_alone() {
    let picture = story("12D3KooWatticATTIC", 60, 1.0);
    let colours = |look: Look| {
        let terminal = screen(&picture, &View::default(), look, (80, 24));
        let buffer = terminal.backend().buffer();
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colours(Look::default()), 0);
    assert!(colours(COLOURED) > 50);
    let same = |look| text(&screen(&picture, &View::default(), look, (80, 24)));
    assert_eq!(same(Look::default()), same(COLOURED));
}

#[test]
fn errors_stay_on_top_until_they_are_seen() {
    let mut picture = story("12D3KooWatticATTIC", 30, 1.0);
    event(&mut picture, Level::Error, "training has ended: the loss is no number");
    (0..40).for_each(|number| event(&mut picture, Level::Info, &format!("member {number} connected")));
    let mut view = View { tab: Tab::Events, ..View::default() };
    let first = |view: &View| {
        let shown = text(&screen(&picture, view, PLAIN, (80, 24)));
        shown.lines().skip_while(|row| !row.starts_with("events")).nth(1).unwrap_or_default().to_owned()
    };
    assert!(first(&view).contains("12:00:30 error: training has ended"), "{}", first(&view));
    let _ = view.key(ratatui::crossterm::event::KeyCode::Char('e').into(), &picture);
    assert!(first(&view).contains("member 39 connected"), "{}", first(&view));
    view.filter = "no number".to_owned();
    assert!(first(&view).contains("error: training has ended"), "{}", first(&view));
}

#[test]
fn members_are_sorted_filtered_and_shown_with_what_there_is_room_for() {
    let picture = story("12D3KooWatticATTIC", 60, 1.0);
    let order = |view: &View, columns: u16| {
        let shown = text(&screen(&picture, view, PLAIN, (columns, 24)));
        let row = |name: &str| shown.lines().position(|row| row.starts_with(name));
        (row("barnBARN").zip(row("deskDESK")).map(|(barn, desk)| barn < desk), shown)
    };
    let view = View { tab: Tab::Peers, ..View::default() };
    assert_eq!(order(&view, 80).0, Some(true), "the last exchange was with barn");
    assert_eq!(order(&View { sort: Sort::Speed, ..view.clone() }, 80).0, Some(false));
    assert_eq!(order(&View { sort: Sort::Speed, is_reversed: true, ..view.clone() }, 80).0, Some(true));
    assert_eq!(order(&View { sort: Sort::Trust, ..view.clone() }, 80).0, Some(false), "the least believed first");
    let wide = order(&view, 132).1;
    for part in ["12 ms", "direct", "relay", "40 %", "420 ms", "41k/s", "lost", "11.2 MB", " 960 "] {
        assert!(wide.contains(part), "{part} is missing:\n{wide}");
    }
    let narrow = order(&view, 40).1;
    assert!(narrow.contains("last") && !narrow.contains("trust"), "{narrow}");
    let by_trust = order(&View { sort: Sort::Trust, ..view.clone() }, 40).1;
    assert!(by_trust.contains("trust") && by_trust.contains("40 %"), "what it is sorted by is shown: {by_trust}");
    let filtered = order(&View { filter: "DESK".to_owned(), ..view }, 80).1;
    assert!(filtered.contains("deskDESK") && !filtered.contains("barnBARN"), "{filtered}");
}

#[test]
fn a_speed_that_is_not_known_yet_is_no_number() {
    let node = "12D3KooWatticATTIC";
    let mut picture = story(node, 60, 1.0);
    let facts = members(60).into_iter().map(|member| PeerFacts { says_tokens_per_second: 0.0, ..member }).collect();
    let told = [
        Body::Peers(Peers { peers: facts, more: 0 }),
        Body::Sample(Box::new(Sample { tokens_per_second: 0.0, ..sample(61, 1.0) })),
    ];
    for (seq, body) in (1000..).zip(told) {
        picture.apply(&Record { v: VERSION, seq, t: BEGIN + 61_000, up: 61.0, node: node.to_owned(), body });
    }
    let shown = text(&screen(&picture, &View { tab: Tab::Peers, ..View::default() }, PLAIN, (132, 24)));
    assert!(shown.contains(" - tokens/s") && !shown.contains(" 0/s") && !shown.contains(" 0 tokens/s"), "{shown}");
}

#[test]
fn whether_others_reach_a_node_is_told_in_full() {
    let mut picture = story("12D3KooWatticATTIC", 60, 1.0);
    let sample = picture.nodes.get_mut("12D3KooWatticATTIC").and_then(|node| node.sample.as_mut()).expect("told");
    sample.interval_steps = 25.0;
    sample.reachable =
        "reachable from its own network, at /ip4/192.168.178.23/tcp/4711, /ip4/192.168.178.23/udp/4711/quic-v1; \
                        not tried from outside"
            .to_owned();
    let expected = sample.reachable.clone();
    let view = View { tab: Tab::Resources, ..View::default() };
    let shown = text(&screen(&picture, &view, PLAIN, (80, 24)));
    let in_one = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one.contains(&expected) && in_one.contains("an own exchange every 25 own steps"), "{shown}");
}

#[test]
fn exchanges_are_listed_with_what_they_took() {
    let picture = story("12D3KooWatticATTIC", 60, 1.0);
    let view = View { tab: Tab::Traffic, ..View::default() };
    let shown = text(&screen(&picture, &view, PLAIN, (80, 24)));
    let expected = "12:00:53 barnBARN barn     ok        dist 0.0093 0.42 s  ^ 120.0 kB v 118.0 kB";
    assert!(shown.lines().any(|row| row == expected), "{shown}");
    assert!(shown.contains("deskDESK desk     lost") && shown.contains("6 done - 0 failed"), "{shown}");
}

#[test]
fn the_verdict_says_what_is_wrong() {
    let told = |change: &dyn Fn(&mut Sample)| {
        let mut picture = story("12D3KooWatticATTIC", 30, 1.0);
        let node = picture.nodes.get_mut("12D3KooWatticATTIC").expect("there");
        change(node.sample.as_mut().expect("told"));
        text(&screen(&picture, &View::default(), PLAIN, (100, 24))).lines().nth(2).unwrap_or_default().to_owned()
    };
    assert_eq!(told(&|sample| sample.peers = 0), "!  trains alone: no member is connected");
    assert!(
        told(&|sample| sample.ratio = Some(1.7)).starts_with("!! trains with 2 members, and the models drift apart")
    );
    assert!(
        told(&|sample| sample.ratio = Some(1.0))
            .starts_with("ok trains with 2 members; the models stay together (ratio 1.00")
    );
    assert!(
        told(&|sample| sample.resting = Some("quiet hours".to_owned())).contains("trains alone for now: quiet hours")
    );
    let joining = told(&|sample| {
        (sample.phase, sample.doing, sample.copied) =
            ("joining".to_owned(), "copying the model".to_owned(), Some(0.38));
    });
    assert_eq!(joining, "!  copying the model (38 %)");
    let picture = story("12D3KooWatticATTIC", 30, 1.0);
    let (id, name) = (Some("12D3KooWatticATTIC".to_owned()), "127.0.0.1:4780".to_owned());
    let silent = Some(("connection refused".to_owned(), picture.time() - 7.0));
    let shown = text(&screen_of(
        &picture,
        &[Origin { name, node: id, silent, ..Origin::default() }],
        &View::default(),
        PLAIN,
        (80, 24),
    ));
    assert!(shown.contains("!! it has not answered for 8 s: connection refused"), "{shown}");
}

#[test]
fn several_nodes_are_one_swarm_with_a_mean_loss() {
    let mut picture = story("12D3KooWatticATTIC", 60, 1.0);
    picture.nodes.extend(story("12D3KooWzebraZEBRA", 60, 2.0).nodes);
    let shown = text(&screen(&picture, &View::default(), PLAIN, (80, 24)));
    assert!(shown.contains("1 of 2 (n)") && shown.contains("own 1.750 - swarm 2.25"), "{shown}");
    let view = View { node: 1, window: Window::All, ..View::default() };
    let shown = text(&screen(&picture, &view, PLAIN, (80, 24)));
    assert!(shown.contains("2 of 2 (n)") && shown.contains("own 2.750 - swarm 2.25"), "{shown}");
}

#[test]
fn nobody_is_waited_for_without_a_word() {
    let origins = [
        Origin { name: "127.0.0.1:4780".to_owned(), ..Origin::default() },
        Origin { name: "127.0.0.1:4781".to_owned(), silent: Some(("refused".to_owned(), 0.0)), ..Origin::default() },
    ];
    let shown = text(&screen_of(&Picture::default(), &origins, &View::default(), PLAIN, (80, 24)));
    assert!(shown.contains("127.0.0.1:4780: waiting for its first record"), "{shown}");
    assert!(shown.contains("127.0.0.1:4781: no answer for 0 s: refused") && shown.contains("q quit"), "{shown}");
}
