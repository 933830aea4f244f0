//! Tickets that lead nowhere any more: their run is still known, and its members are looked for.

use std::time::{Duration, Instant};

use murmur_protocol::{Address, PeerId, Ticket};
use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::{Swarm, waiting_run};
use murmur_tests::{TINY_RUN, at_once, output_of};

use crate::MURMUR;

/// The same ticket as of somebody else, at an address where no host is.
fn lost(ticket: &str) -> String {
    let ticket: Ticket = ticket.parse().expect("a ticket");
    let address = Address::new("/ip4/10.77.0.200/tcp/4711").expect("short");
    let peer = PeerId::from_public_key([9; 32]);
    Ticket { peer, addresses: vec![address], others: Vec::new(), ..ticket }.to_string()
}

#[test]
fn a_newcomer_whose_ticket_leads_nowhere_finds_the_swarm_on_its_network() {
    at_once([false, true], a_newcomer_finds_the_swarm_on_its_network);
}

fn a_newcomer_finds_the_swarm_on_its_network(closed: bool) {
    let Some(lan) = Lan::quiet(Family::V4, 3) else { return };
    let mut swarm = Swarm::waiting(MURMUR, lan, 2, &waiting_run(), &format!("[network]\nclosed = {closed}\n"));
    swarm.wait_until_all_average();
    let ticket = lost(&swarm.daemons[0].ticket());
    let begin = Instant::now();
    let newcomer = swarm.start(2, &["join", &ticket]);
    newcomer.address();
    println!("somebody nearby told the run after {:.1} s", begin.elapsed().as_secs_f64());
    newcomer.wait_for("both members and exchanges", |report| report.peers == 2 && report.exchanges_completed >= 10);
    let said = newcomer.stop().errors;
    for words in
        ["unanswered  cannot reach /ip4/10.77.0.200/tcp/4711", "searching   other members", "found       a member"]
    {
        assert!(said.contains(words), "{said}");
    }
    for daemon in swarm.daemons.drain(..) {
        daemon.stop();
    }
}

#[test]
fn a_search_in_vain_ends_with_what_was_tried() {
    let Some(lan) = Lan::quiet(Family::V4, 2) else { return };
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A node of another run is there, so that somebody answers.
    let mut swarm = Swarm::waiting(MURMUR, lan, 1, TINY_RUN, "");
    let mut ticket: Ticket = lost(&swarm.daemons[0].ticket()).parse().expect("a ticket");
    ticket.run.0[0] ^= 1;
    let data = folder.path().join("refused");
    let begin = Instant::now();
    let mut command = swarm.lan.host(1).command(MURMUR);
    command.args(["join", &ticket.to_string(), "--status-address", "off", "--data-dir"]);
    let output = output_of(command.arg(&data));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(begin.elapsed() < Duration::from_secs(60), "it gave up after {:?}", begin.elapsed());
    assert!(message.contains("error: no member can be reached: cannot reach /ip4/10.77.0.200/tcp/4711"), "{message}");
    assert!(message.contains("murmur nodes nearby: 1, in its table: 0; none told it"), "{message}");
    assert!(message.contains("hint: "), "{message}");
    assert!(!data.exists(), "nothing is left behind");
    swarm.daemons.remove(0).stop();
}
