//! Joiners whose donor dies halfway.

use std::time::{Duration, Instant};

use murmur_tests::gaps::assert_never_waited;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::Swarm;
use murmur_tests::{Daemon, LARGE_RUN};

use crate::MURMUR;

#[test]
fn a_joiner_whose_donor_dies_halfway_gets_its_model_elsewhere() {
    let Some(lan) = Lan::new(Family::V4, 4) else { return };
    lan.host(3).limit(20);
    let mut swarm = Swarm::on(MURMUR, lan, 3, LARGE_RUN);
    for daemon in &swarm.daemons {
        daemon.wait_for("two peers", |report| report.peers == 2 && report.exchanges_completed >= 2);
    }
    let ticket = swarm.daemons[1].ticket();
    let joiner = swarm.start(3, &["join", &ticket]);
    joiner.wait_for("it listens", |_| true);
    let deadline = Instant::now() + Duration::from_secs(60);
    let (donor, share) = loop {
        assert!(Instant::now() < deadline, "no state is on its way: {:?}", joiner.latest());
        let copying = joiner.latest().and_then(|report| report.copying);
        // Three chunks of two donors each take a second or two; a busy machine may show few moments of that.
        if let Some(copying) = copying
            && let Some(donor) = copying.donors.first()
        {
            break (donor.clone(), copying.share);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(share < 0.9, "too late: {share} of the model is there");
    let is_donor = |daemon: &Daemon| daemon.latest().is_some_and(|report| report.peer == donor);
    let place = swarm.daemons.iter().position(is_donor).expect("a member of the swarm");
    let victim = swarm.daemons.remove(place);
    victim.kill();
    let killed_at = joiner.latest().expect("it reported").seconds;
    let took_over = joiner.wait_for_notice("took over the model of");
    // What the victim had sent stays; the rest is somebody else's.
    let others: Vec<String> = swarm.daemons.iter().map(|daemon| daemon.wait_for("a report", |_| true).peer).collect();
    assert!(others.iter().any(|other| took_over.contains(&other[other.len() - 8..])), "{took_over}");
    let report = joiner.wait_for("steps and exchanges", |report| report.steps > 0 && report.exchanges_completed >= 2);
    println!("{:.1} s after the donor's death it trains and averages: {took_over}", report.seconds - killed_at);
    assert_never_waited(&report);
}
