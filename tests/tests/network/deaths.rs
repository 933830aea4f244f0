//! Daemons that die, stand still, or die again and again.

use murmur_tests::Daemon;
use murmur_tests::gaps::assert_never_waited;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::{CALM_RUN, Swarm, watch};

use crate::MURMUR;

#[test]
fn a_newcomer_finds_the_swarm_when_the_founder_is_dead() {
    let Some(lan) = Lan::quiet(Family::V4, 4) else { return };
    let mut swarm = Swarm::waiting(MURMUR, lan, 3, CALM_RUN, "");
    swarm.wait_until_all_average();
    // Printed while others are there, a ticket of the founder leads to them, too.
    let ticket = swarm.lan.host(0).ticket_of(MURMUR, &swarm.daemons[0].status_address());
    let founder = swarm.daemons.remove(0);
    let founder_peer = founder.latest().expect("it reported").peer;
    // The whole machine dies: nothing answers any more, not even that a port is closed.
    swarm.lan.unplug(0);
    founder.kill();
    let died_at: Vec<f64> = swarm.daemons.iter().map(|daemon| daemon.latest().expect("it reported").seconds).collect();
    let newcomer = swarm.start(3, &["join", &ticket]);
    let settled = newcomer.wait_for("exchanges", |report| report.steps > 0 && report.exchanges_completed >= 10);
    println!("the newcomer averages after {:.1} s", settled.seconds);
    for (daemon, died_at) in swarm.daemons.iter().zip(died_at) {
        daemon.wait_for_notice(&format!("{} is gone", &founder_peer[founder_peer.len() - 8..]));
        let report = daemon.wait_for("the newcomer, and the founder forgotten", |report| report.peers == 2);
        println!("silence was noticed after {:.0} s", report.seconds - died_at);
        assert_eq!(report.phase, "training");
        assert_never_waited(&report);
    }
}

#[test]
fn a_peer_that_stands_still_costs_the_others_nothing() {
    let Some(lan) = Lan::new(Family::V4, 4) else { return };
    let swarm = Swarm::waiting(MURMUR, lan, 4, CALM_RUN, "");
    swarm.wait_until_all_average();
    let (others, still) = swarm.daemons.split_at(3);
    let others: Vec<&Daemon> = others.iter().collect();
    let before = watch(&others, 10.0);
    still[0].signal("STOP");
    let during = watch(&others, 25.0);
    still[0].signal("CONT");
    for ((daemon, before), during) in others.iter().zip(&before).zip(&during) {
        let report = daemon.latest().expect("it reported");
        println!(
            "{:.1} steps/s before, {:.1} while one stood still; {} exchanges then",
            before.pace, during.pace, during.exchanges
        );
        // The gaps between steps were watched; the pace also varies with what else the machine does.
        assert!(during.pace > 0.7 * before.pace, "{} after {} steps/s", during.pace, before.pace);
        assert!(during.exchanges >= 10, "{report:?}");
    }
    let woken = still[0].latest().expect("it reported");
    still[0].wait_for("it takes part again", |report| {
        report.peers == 3 && report.exchanges_completed >= woken.exchanges_completed + 10
    });
    for daemon in &others {
        daemon.wait_for("it is back", |report| report.peers == 3);
    }
}
