//! Joiners whose donor dies halfway.

use std::time::{Duration, Instant};

use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::Swarm;

use crate::MURMUR;

/// Two and a half million parameters: a state of 10 MB, which takes 4 s over 20 Mbit/s. Little work a step.
const LARGE_RUN: &str = "\
[run]
name = \"large\"
[model]
layers = 3
width = 256
heads = 4
feed_forward = 768
context = 16
[optimizer]
batch_sequences = 1
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 1
[gossip]
interval_steps = 50
interval_steps_min = 50
final_exchanges = 1
";

#[test]
fn a_joiner_whose_donor_dies_halfway_gets_its_model_elsewhere() {
    let Some(lan) = Lan::new(Family::V4, 4) else { return };
    lan.host(3).limit(20);
    let mut swarm = Swarm::on(MURMUR, lan, 3, LARGE_RUN);
    for daemon in &swarm.daemons {
        daemon.wait_for("two peers", |report| report.peers == 2 && report.exchanges_completed >= 2);
    }
    let ticket = swarm.daemons[1].ticket();
    // Over TCP alone, so that the kernel counts what came from whom.
    let joiner = swarm.start(3, &["join", &ticket, "--listen", "/ip4/0.0.0.0/tcp/4711"]);
    joiner.wait_for("it listens", |_| true);
    let state_bytes = 4 * swarm.daemons[0].latest().expect("it reported").parameters as u64;
    let deadline = Instant::now() + Duration::from_secs(60);
    let donor = loop {
        assert!(Instant::now() < deadline, "no state is on its way: {:?}", joiner.latest());
        let received = swarm.lan.host(3).received_over_tcp();
        let most = received.into_iter().max_by_key(|(_, bytes)| *bytes);
        if let Some((address, bytes)) = most
            && bytes > state_bytes / 4
        {
            assert!(bytes < state_bytes, "too late: {bytes} of {state_bytes} bytes");
            break swarm.lan.hosts().iter().position(|host| host.address() == address).expect("a host");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    assert_eq!(joiner.latest().expect("it reported").phase, "joining");
    let victim = swarm.daemons.remove(donor);
    let victim_peer = victim.wait_for("a report", |_| true).peer;
    victim.kill();
    let killed_at = joiner.latest().expect("it reported").seconds;
    let took_over = joiner.wait_for_notice("took over the model of");
    assert!(!took_over.contains(&victim_peer), "{took_over}");
    let report = joiner.wait_for("steps and exchanges", |report| report.steps > 0 && report.exchanges_completed >= 2);
    println!("{:.1} s after the donor's death it trains and averages: {took_over}", report.seconds - killed_at);
    assert_eq!(report.seconds_waiting_for_network, 0.0);
}
