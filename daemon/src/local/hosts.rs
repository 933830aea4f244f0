//! Hosts of their own for daemons of one machine: each a network namespace of Linux with one link to a bridge, whose rates
//! `tc tbf` shapes. It takes root and iproute2.
//!
//! They have no names, so links and bridges go with this process and those in them, however these end.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::process::namespace::Namespace;

/// What addresses of hosts begin with.
const PREFIX: &str = "10.77.0.";

/// Bytes that a link lets through at once at least: some full segments, or its rate is not reached; fewer where a line below
/// [`SLOW`] would take seconds for them.
const BURST_MIN: (f64, f64) = (4_000.0, 20_000.0);

/// Bytes a second; a guess.
const SLOW: f64 = 125_000.0;

/// Of a second, what a link lets through at once: no less than a tick of the scheduler.
const BURST_SECONDS: f64 = 0.01;

/// The most bytes at once; beyond it the kernel's clock is fine enough.
const BURST_MAX: f64 = 4e6;

/// Seconds of a link's queue, and no less than some packets of it.
const QUEUE_SECONDS: f64 = 0.1;
const QUEUE_BYTES_MIN: f64 = 12_500.0;

/// How fast each host's link is, in bytes a second, above 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// What it sends.
    pub(crate) up: f64,
    /// What it receives.
    pub(crate) down: f64,
}

/// Why this machine has no hosts of their own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoHosts {
    /// The kernel or this user's rights.
    #[error("network namespaces take Linux and root: {0}")]
    Namespace(io::Error),
    /// Not installed.
    #[error("{0} cannot be run: {1}")]
    Missing(&'static str, io::Error),
    /// What the program says.
    #[error("{0}: {1}")]
    Refused(&'static str, String),
}

/// Hosts on a bridge.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// The namespace of both bridges, `near` and `far`, and of the other ends of all links.
    bridges: Namespace,
    hosts: Vec<Namespace>,
}

impl Hosts {
    /// So many hosts, at most 254, that reach each other. Every tool and every right is tried.
    ///
    /// # Errors
    /// What this machine lacks; then nothing is left of it.
    pub(crate) fn new(count: usize, rates: Rates) -> Result<Hosts, NoHosts> {
        let namespaces = || (0..count).map(|_| Namespace::new()).collect::<io::Result<Vec<Namespace>>>();
        let hosts = namespaces().map_err(NoHosts::Namespace)?;
        let made = Hosts { bridges: Namespace::new().map_err(NoHosts::Namespace)?, hosts };
        let mut links = "link set lo up\n".to_owned();
        for bridge in ["near", "far"] {
            links += &format!("link add {bridge} type bridge\nlink set {bridge} up\n");
        }
        for (number, host) in made.hosts.iter().enumerate() {
            let place = host.path();
            links += &format!("link add port{number} type veth peer name eth0 netns {place}\n");
            links += &format!("link set port{number} master near up\n");
        }
        run("ip", &made.bridges, &links)?;
        let shape = |device: &str, rate: f64| format!("qdisc add dev {device} root {}\n", shaped(rate));
        for (number, host) in made.hosts.iter().enumerate() {
            let address = Hosts::address(number);
            run("ip", host, &format!("link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n"))?;
            run("tc", host, &shape("eth0", rates.up))?;
        }
        let down: String = (0..count).map(|number| shape(&format!("port{number}"), rates.down)).collect();
        run("tc", &made.bridges, &down)?;
        Ok(made)
    }

    /// The address of host `number`, from 0.
    pub(super) fn address(number: usize) -> String {
        format!("{PREFIX}{}", number + 1)
    }

    /// Has a command run on host `number`. Its process id is that of its program.
    ///
    /// # Panics
    /// When there is no such host.
    pub(super) fn place(&self, number: usize, command: &mut tokio::process::Command) {
        self.hosts[number].place(command.as_std_mut());
    }

    /// Cuts the network in two: the `far` hosts reach each other and nobody else, and so do all others. Links stay up, as
    /// they do where a line between two places breaks. Without far ones the network is whole again.
    ///
    /// # Errors
    /// When `ip` cannot do it any more.
    pub(super) fn cut_off(&self, far: &[usize]) -> Result<(), NoHosts> {
        let bridge = |number: usize| if far.contains(&number) { "far" } else { "near" };
        let moves = (0..self.hosts.len()).map(|number| format!("link set port{number} master {}\n", bridge(number)));
        run("ip", &self.bridges, &moves.collect::<String>())
    }
}

/// A token bucket of this rate, for `tc`.
fn shaped(rate: f64) -> String {
    let least = if rate < SLOW { BURST_MIN.0 } else { BURST_MIN.1 };
    let burst = (BURST_SECONDS * rate).clamp(least, BURST_MAX);
    let queue = QUEUE_SECONDS.max(QUEUE_BYTES_MIN / rate);
    format!("tbf rate {:.0}bit burst {burst:.0} latency {:.0}ms", 8.0 * rate, 1000.0 * queue)
}

/// Has `ip` or `tc` do these lines in a namespace.
fn run(program: &'static str, namespace: &Namespace, lines: &str) -> Result<(), NoHosts> {
    let missing = |error| NoHosts::Missing(program, error);
    let mut command = Command::new(program);
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    namespace.place(&mut command);
    let mut process = command.spawn().map_err(missing)?;
    if let Some(mut input) = process.stdin.take() {
        // Where it ends before all is read it says why.
        let _ = input.write_all(lines.as_bytes());
    }
    let output = process.wait_with_output().map_err(missing)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(NoHosts::Refused(program, said.lines().next().unwrap_or("it gives no reason").to_owned()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    const MEGABIT: f64 = 1e6 / 8.0;

    /// A first packet that is lost, as on a busy machine, is sent again after a second; so is the question where a host is.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Hosts, or a line that says why there are none.
    fn hosts(count: usize, up: f64, down: f64) -> Option<Hosts> {
        let made = Hosts::new(count, Rates { up: up * MEGABIT, down: down * MEGABIT });
        // Past the harness, which keeps what passing tests print.
        made.inspect_err(|reason| drop(writeln!(io::stderr(), "skipped: no hosts here: {reason}"))).ok()
    }

    /// Does something on a host: sockets that are made there stay there.
    fn on<Done: Send>(hosts: &Hosts, number: usize, work: impl FnOnce() -> Done + Send) -> Done {
        let enter_and_work = || {
            hosts.hosts[number].enter().expect("it was made");
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter_and_work).join().expect("no panic"))
    }

    fn connect(hosts: &Hosts, from: usize, to: usize, patience: Duration) -> io::Result<(TcpStream, TcpStream)> {
        let listener = on(hosts, to, || TcpListener::bind((Hosts::address(to), 0)))?;
        let address = listener.local_addr()?;
        let sender = on(hosts, from, || TcpStream::connect_timeout(&address, patience))?;
        Ok((sender, listener.accept()?.0))
    }

    /// Bytes a second that one host sends another.
    fn measured(hosts: &Hosts, from: usize, to: usize) -> f64 {
        const BYTES: usize = 1_000_000;
        let connected = connect(hosts, from, to, PATIENCE);
        let (mut sender, mut receiver) = connected.expect("they reach each other");
        let begin = Instant::now();
        let sending = std::thread::spawn(move || sender.write_all(&vec![7; BYTES]));
        receiver.read_exact(&mut vec![0; BYTES]).expect("all of it");
        sending.join().expect("no panic").expect("sent");
        BYTES as f64 / begin.elapsed().as_secs_f64()
    }

    #[test]
    fn a_link_carries_what_its_rate_says_up_and_down() {
        for (up, down) in [(8.0, 80.0), (80.0, 8.0)] {
            let Some(hosts) = hosts(2, up, down) else { return };
            let rate = measured(&hosts, 0, 1) / (8.0 * MEGABIT);
            println!("{up} up, {down} down: {rate:.3} of 8 Mbit/s");
            // Headers take a twentieth, losses in the queue some more; what is let through at once comes on top.
            assert!((0.5..1.05).contains(&rate), "{up} up, {down} down: {rate} of what it should be");
        }
    }

    #[test]
    fn halves_that_are_cut_off_reach_each_other_again_once_the_network_is_whole() {
        let Some(hosts) = hosts(3, 100.0, 100.0) else { return };
        let reaches = |from, to| connect(&hosts, from, to, PATIENCE).is_ok();
        let is_cut_off = |from, to| connect(&hosts, from, to, Duration::from_millis(500)).is_err();
        assert!(reaches(0, 1) && reaches(1, 2));
        hosts.cut_off(&[1, 2]).expect("cut");
        assert!(is_cut_off(0, 1) && is_cut_off(2, 0) && reaches(1, 2));
        hosts.cut_off(&[]).expect("whole");
        assert!(reaches(0, 1) && reaches(2, 0));
    }

    #[test]
    fn slow_lines_let_less_through_at_once_and_fast_ones_no_more_than_the_clock_asks_for() {
        assert_eq!(shaped(0.2 * MEGABIT), "tbf rate 200000bit burst 4000 latency 500ms");
        assert_eq!(shaped(10.0 * MEGABIT), "tbf rate 10000000bit burst 20000 latency 100ms");
        assert_eq!(shaped(1000.0 * MEGABIT), "tbf rate 1000000000bit burst 1250000 latency 100ms");
        assert_eq!(shaped(100_000.0 * MEGABIT), "tbf rate 100000000000bit burst 4000000 latency 100ms");
    }
}
