//! A router that forwards ports when it is asked to (UPnP): who is behind it can found a swarm.

use std::time::{Duration, Instant};

use murmur_protocol::Ticket;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::{Daemon, TINY_RUN, write_run};

use crate::MURMUR;

/// Nothing but the forwarded ports leads to a node: no relays, no holes, nobody else who would know it.
const SETTINGS: &str = "[network]\nupnp = true\nnat = false\nmdns = false\n";

/// A router answers within seconds; the daemon tells others a few seconds later.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_founder_behind_a_router_that_forwards_ports_is_reached_by_its_ticket() {
    let Some(mut lan) = Lan::quiet(Family::Public, 1) else { return };
    let Some(hidden) = lan.add_host_behind_router() else { return };
    let forwarding = lan.forward_ports(hidden);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (run_file, node_file) = (write_run(folder.path(), TINY_RUN), folder.path().join("node.toml"));
    std::fs::write(&node_file, SETTINGS).expect("writable");
    let [run_file, node_file] = [&run_file, &node_file].map(|path| path.to_str().expect("UTF-8"));
    let host = lan.host(hidden);
    let start = ["start", run_file, "--node", node_file];
    let founder = Daemon::spawn_on(host, MURMUR, &folder.path().join("founder"), &start);
    founder.address();
    let begin = Instant::now();
    let ticket = loop {
        let text = host.ticket_of(MURMUR, &founder.status_address());
        let ticket: Ticket = text.parse().expect("a ticket");
        if ticket.addresses.iter().any(|address| address.to_string().contains(&forwarding.outside)) {
            break text;
        }
        assert!(begin.elapsed() < PATIENCE, "no forwarded address in {:?}", ticket.addresses);
        std::thread::sleep(Duration::from_millis(200));
    };
    println!("the ticket has the router's address after {:.1} s", begin.elapsed().as_secs_f64());
    let join = ["join", &ticket, "--node", node_file];
    let joiner = Daemon::spawn_on(lan.host(0), MURMUR, &folder.path().join("joiner"), &join);
    joiner.wait_for("exchanges", |report| report.exchanges_completed >= 10);
    assert!(joiner.stop().status.success() && founder.stop().status.success());
}
