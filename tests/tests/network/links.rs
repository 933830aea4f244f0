//! What kinds of links a swarm lives on: IPv6 alone, unlike speeds, a router that translates addresses.

use std::time::{Duration, Instant};

use murmur_protocol::Ticket;
use murmur_tests::gaps::assert_never_waited;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::{CALM_RUN, Swarm, waiting_run, watch};
use murmur_tests::{Daemon, TINY_RUN, at_once};

use crate::MURMUR;

#[test]
fn a_swarm_needs_no_ipv4() {
    let Some(swarm) = Swarm::new(MURMUR, Family::V6, 3, 3, TINY_RUN) else { return };
    swarm.wait_until_all_average();
    let ticket: Ticket = swarm.daemons[1].ticket().parse().expect("a ticket");
    let is_v6 = |address: &murmur_protocol::Address| address.to_string().starts_with("/ip6/fd00:77::2/");
    assert!(!ticket.addresses.is_empty() && ticket.addresses.iter().any(is_v6), "{ticket:?}");
}

#[test]
fn links_of_unlike_speed_slow_nobody_down() {
    let Some(lan) = Lan::new(Family::V4, 4) else { return };
    let megabits = [100, 100, 20, 5];
    for (host, megabits) in lan.hosts().iter().zip(megabits) {
        host.limit(megabits);
    }
    let swarm = Swarm::on(MURMUR, lan, 4, CALM_RUN);
    swarm.wait_until_all_average();
    let all: Vec<&Daemon> = swarm.daemons.iter().collect();
    let before = swarm.lan.host(3).link_bytes();
    let watched = watch(&all, 20.0);
    let after = swarm.lan.host(3).link_bytes();
    let fastest = watched.iter().map(|stretch| stretch.pace).fold(0.0, f64::max);
    for ((daemon, stretch), megabits) in all.iter().zip(&watched).zip(megabits) {
        let report = daemon.latest().expect("it reported");
        println!(
            "{megabits} Mbit/s: {:.1} steps/s, {} exchanges, {} broken off, every {:.0} steps",
            stretch.pace, stretch.exchanges, report.exchanges_failed, report.interval_steps
        );
        assert!(stretch.exchanges >= 5, "{report:?}");
        // Two cores are shared by four trainers; what a link costs must not stand out from that.
        assert!(stretch.pace > 0.7 * fastest, "{} against {fastest} steps/s: {report:?}", stretch.pace);
    }
    let megabits = 8e-6 * (after.0 - before.0).max(after.1 - before.1) as f64 / 20.0;
    println!("the slowest link carried {megabits:.1} Mbit/s");
}

/// A host behind a router takes part by dialing out.
#[test]
fn a_host_behind_a_router_takes_part() {
    let Some(mut lan) = Lan::new(Family::V4, 2) else { return };
    let Some(hidden) = lan.add_host_behind_router() else { return };
    let swarm = Swarm::on(MURMUR, lan, 3, CALM_RUN);
    swarm.wait_until_all_average();
    let newcomer = swarm.daemons[hidden].latest().expect("it reported");
    let later = swarm.daemons[hidden].wait_for("averaging goes on", |report| {
        report.exchanges_completed >= newcomer.exchanges_completed + 10 && report.steps > newcomer.steps
    });
    assert_eq!(later.phase, "training");
    assert_never_waited(&later);
    // Its own notion of its address leads nowhere for the others; they meet it all the same.
    for daemon in &swarm.daemons[..hidden] {
        daemon.wait_for("the hidden one stays", |report| report.peers == 2);
    }
}

const TCP: &str = "/ip4/0.0.0.0/tcp/4711";
const QUIC: &str = "/ip4/0.0.0.0/udp/4711/quic-v1";

/// Two hosts, each behind a router of its own, and a member on the open internet that relays for them. Each router lets in
/// only what answers its own side.
fn hidden_pair(listen: &str, closed: bool, prepare: impl FnOnce(&Lan, [usize; 2])) -> Option<(Swarm, [usize; 2])> {
    let mut lan = Lan::quiet(Family::Public, 1)?;
    let pair = [lan.add_host_behind_router()?, lan.add_host_behind_router()?];
    prepare(&lan, pair);
    let settings = format!("[network]\nlisten = [\"{listen}\"]\nclosed = {closed}\n");
    let swarm = Swarm::waiting(MURMUR, lan, 3, &waiting_run(), &settings);
    swarm.daemons[0].wait_for("it is reachable, and so relays", |report| report.reachability.state == "reachable");
    for hidden in pair {
        swarm.daemons[hidden].wait_for("both others", |report| report.peers == 2);
    }
    Some((swarm, pair))
}

/// The open one is gone without a word, which the others notice after half a minute.
fn unplugged(swarm: &Swarm) {
    swarm.lan.unplug(0);
}

/// The open one leaves in order.
fn ended(swarm: &Swarm) {
    swarm.daemons[0].signal("TERM");
}

/// They punch a hole, and go on through it without the open one.
fn hidden_hosts_meet((swarm, pair): (Swarm, [usize; 2]), lose_open_one: fn(&Swarm)) {
    let begin = Instant::now();
    for hidden in pair {
        swarm.daemons[hidden].wait_for("a hole", |report| report.reachability.state == "hole-punching");
        println!("host {hidden} has punched a hole after {:.1} s", begin.elapsed().as_secs_f64());
    }
    // Without the open one they have only each other.
    lose_open_one(&swarm);
    let before = pair.map(|hidden| swarm.daemons[hidden].latest().expect("it reported"));
    for (hidden, before) in pair.into_iter().zip(before) {
        swarm.daemons[hidden].wait_for("exchanges through the hole", |report| {
            report.peers == 1 && report.exchanges_completed >= before.exchanges_completed + 10
        });
        println!("host {hidden} averages through the hole after {:.1} s", begin.elapsed().as_secs_f64());
    }
}

#[test]
fn two_hosts_behind_routers_of_their_own_punch_a_hole_over_tcp_and_try_again_over_quic() {
    let cases: [fn(); 2] = [punch_over_tcp, try_again_over_quic];
    at_once(cases, |case| case());
}

fn punch_over_tcp() {
    if let Some(hidden) = hidden_pair(TCP, false, |_, _| {}) {
        hidden_hosts_meet(hidden, unplugged);
    }
}

/// Relay, circuit and hole let nobody through without the secret, and the three have it.
#[test]
fn two_hosts_behind_routers_of_their_own_punch_a_hole_in_a_closed_run() {
    at_once([TCP, QUIC], |listen| {
        if let Some(hidden) = hidden_pair(listen, true, |_, _| {}) {
            hidden_hosts_meet(hidden, ended);
        }
    });
}

/// What libp2p tries when a circuit opens comes to nothing, and the circuit lasts two minutes. A hole is punched before
/// that.
fn try_again_over_quic() {
    let Some((swarm, pair)) = hidden_pair(QUIC, false, Lan::keep_apart) else { return };
    let begin = Instant::now();
    // Three attempts of eight seconds.
    std::thread::sleep(Duration::from_secs(25));
    for hidden in pair {
        let report = swarm.daemons[hidden].latest().expect("it reported");
        assert_eq!((report.peers, report.reachability.state.as_str()), (2, "relayed"), "host {hidden}");
    }
    swarm.lan.let_meet(pair);
    hidden_hosts_meet((swarm, pair), ended);
    let took = begin.elapsed().as_secs();
    assert!(took < 110, "{took} s: as long as a circuit lasts");
}
