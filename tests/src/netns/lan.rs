//! A network of a few hosts around one bridge.

use std::process::Command;
use std::sync::Arc;

use murmur::process::namespace::Namespace;

use super::router::{self, PortForwarding};
use super::tools::{call, missing, must, namespace, say_skipped};
use crate::turn::{self, Turn};

/// More daemons than this starve each other on two cores.
pub const HOSTS_MAX: usize = 8;

/// What addresses a network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 10.77.0.0/24 alone.
    V4,
    /// 25.77.0.0/24 alone: to daemons and to what asks routers for forwarded ports it is the internet, of which these hosts
    /// see nothing.
    Public,
    /// fd00:77::/64 alone.
    V6,
}

impl Family {
    /// What all addresses of the network begin with.
    fn prefix(self) -> &'static str {
        match self {
            Family::V4 => "10.77.0.",
            Family::Public => "25.77.0.",
            Family::V6 => "fd00:77::",
        }
    }
}

/// Hosts on a bridge. Everything goes with it, after a panic as well.
pub struct Lan {
    /// The namespace of both bridges, `near` and `far`.
    bridges: Arc<Namespace>,
    family: Family,
    hosts: Vec<Host>,
    _turn: Option<Turn>,
}

/// One host: a namespace with loopback and one link, `eth0`.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    /// The other end of its link, in the namespace of the bridge.
    port: String,
    /// Where that end is: the bridge's namespace, or that of a router.
    port_namespace: Arc<Namespace>,
    address: String,
    family: Family,
}

impl Lan {
    /// A network of `hosts` hosts that all reach each other, or nothing where this machine cannot have one: then a line
    /// says why.
    ///
    /// # Panics
    /// When more than [`HOSTS_MAX`] are asked for, or a link cannot be made although the first one could.
    pub fn new(family: Family, hosts: usize) -> Option<Lan> {
        Lan::at(Some(turn::has_a_network()), family, hosts)
    }

    /// The same beside other networks, for daemons that wait most of the time.
    ///
    /// # Panics
    /// As [`Lan::new`].
    pub fn quiet(family: Family, hosts: usize) -> Option<Lan> {
        Lan::at(None, family, hosts)
    }

    fn at(turn: Option<Turn>, family: Family, hosts: usize) -> Option<Lan> {
        assert!((1..=HOSTS_MAX).contains(&hosts), "{hosts} hosts");
        if let Some(reason) = missing() {
            say_skipped(&format!("no network namespaces here (root and iproute2 are needed): {reason}"));
            return None;
        }
        let bridges = Arc::new(namespace());
        for bridge in ["near", "far"] {
            must(&bridges, "ip", &format!("link add {bridge} type bridge"));
            must(&bridges, "ip", &format!("link set {bridge} up"));
        }
        let mut lan = Lan { bridges, family, hosts: Vec::new(), _turn: turn };
        for number in 0..hosts {
            lan.add_host(number);
        }
        Some(lan)
    }

    /// The hosts, in order.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Host `number`, from 0.
    ///
    /// # Panics
    /// When there is none.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// Cuts the network in two: `far` hosts reach each other and nobody else, and so do all others. Links stay up, as
    /// they do when a line between two places breaks: hosts learn of it only by silence.
    pub fn partition(&self, far: &[usize]) {
        for (number, host) in self.hosts.iter().enumerate() {
            let bridge = if far.contains(&number) { "far" } else { "near" };
            // What is behind a router goes where its router goes.
            if !self.is_behind_router(host) {
                must(&self.bridges, "ip", &format!("link set {} master {bridge}", host.port));
            }
        }
    }

    /// Makes one network of the two again.
    pub fn heal(&self) {
        self.partition(&[]);
    }

    /// Takes a host off the network: whoever sends to it hears nothing.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn unplug(&self, number: usize) {
        let host = &self.hosts[number];
        must(&host.port_namespace, "ip", &format!("link set {} down", host.port));
    }

    /// Takes back what [`unplug`](Lan::unplug) has done.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn plug_in(&self, number: usize) {
        let host = &self.hosts[number];
        must(&host.port_namespace, "ip", &format!("link set {} up", host.port));
    }

    /// Puts one more host behind a router that translates addresses: it reaches everybody, nobody reaches it unless it
    /// spoke first. Nothing, and a line that says why, where the kernel or its tools cannot translate.
    ///
    /// # Panics
    /// When there are [`HOSTS_MAX`] hosts already, or the network is [`Family::V6`].
    pub fn add_host_behind_router(&mut self) -> Option<usize> {
        let number = self.hosts.len();
        assert!(number < HOSTS_MAX && self.family != Family::V6);
        let router = namespace();
        let outside = format!("{}/24", self.outside(number));
        must(&router, "ip", &format!("link add eth0 type veth peer name port{number} netns {}", self.bridges.path()));
        must(&self.bridges, "ip", &format!("link set port{number} master near up"));
        must(&router, "ip", &format!("addr add {outside} dev eth0"));
        must(&router, "ip", "link set eth0 up");
        if let Err(reason) = router::translate(&router) {
            say_skipped(&format!("no address translation here (nft and its kernel modules are needed): {reason}"));
            return None;
        }
        let namespace = namespace();
        must(&namespace, "ip", &format!("link add eth0 type veth peer name inside netns {}", router.path()));
        must(&router, "ip", &format!("addr add 192.168.{number}.1/24 dev inside"));
        must(&router, "ip", "link set inside up");
        must(&namespace, "ip", &format!("addr add 192.168.{number}.2/24 dev eth0"));
        must(&namespace, "ip", "link set eth0 up");
        must(&namespace, "ip", &format!("route add default via 192.168.{number}.1"));
        self.hosts.push(Host {
            namespace,
            port: "inside".to_owned(),
            port_namespace: Arc::new(router),
            address: format!("192.168.{number}.2"),
            family: Family::V4,
        });
        Some(number)
    }

    /// Lets the router before a host forward ports to it when it asks for them (UPnP), until the value is dropped.
    ///
    /// # Panics
    /// When there is no such host, or no router before it.
    pub fn forward_ports(&self, number: usize) -> PortForwarding {
        let host = &self.hosts[number];
        assert!(self.is_behind_router(host), "host {number} is behind no router");
        let outside = self.outside(number);
        PortForwarding::start(&host.port_namespace, &format!("192.168.{number}.1"), &outside)
    }

    /// Keeps what two hosts behind routers send each other from arriving; both still reach everybody else.
    ///
    /// # Panics
    /// When one of them is behind no router.
    pub fn keep_apart(&self, pair: [usize; 2]) {
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            router::bar(&self.hosts[one].port_namespace, &self.outside(other));
        }
    }

    /// Takes back what [`keep_apart`](Lan::keep_apart) has done.
    ///
    /// # Panics
    /// When they were not kept apart.
    pub fn let_meet(&self, pair: [usize; 2]) {
        pair.iter().for_each(|number| router::unbar(&self.hosts[*number].port_namespace));
    }

    /// The outside address of the router before a host.
    fn outside(&self, number: usize) -> String {
        format!("{}{}", self.family.prefix(), number + 101)
    }

    fn add_host(&mut self, number: usize) {
        let (namespace, bridges, port) = (namespace(), self.bridges.clone(), format!("port{number}"));
        must(&namespace, "ip", &format!("link add eth0 type veth peer name {port} netns {}", bridges.path()));
        must(&bridges, "ip", &format!("link set {port} master near up"));
        let address = format!("{}{}", self.family.prefix(), number + 1);
        let length = match self.family {
            Family::V4 | Family::Public => "24",
            // Without a search for duplicates an address can be listened on at once.
            Family::V6 => "64 nodad",
        };
        // The length and its options go behind the address.
        let (length, options) = length.split_once(' ').unwrap_or((length, ""));
        must(&namespace, "ip", &format!("addr add {address}/{length} dev eth0 {options}"));
        must(&namespace, "ip", "link set eth0 up");
        self.hosts.push(Host { namespace, port, port_namespace: bridges, address, family: self.family });
    }

    fn is_behind_router(&self, host: &Host) -> bool {
        !Arc::ptr_eq(&host.port_namespace, &self.bridges)
    }
}

impl Host {
    /// Its address on its link, without a length.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where a daemon has to be told to listen, TCP and QUIC: on IPv4 alone its default settings do.
    pub(crate) fn listen(&self) -> &'static [&'static str] {
        match self.family {
            Family::V4 | Family::Public => &[],
            Family::V6 => &["/ip6/::/tcp/4711", "/ip6/::/udp/4711/quic-v1"],
        }
    }

    /// A command that runs `program` on this host. Its process id is that of the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = crate::murmur(program);
        self.namespace.place(&mut command);
        command
    }

    /// What `murmur ticket` prints for the daemon on this host with this status address.
    ///
    /// # Panics
    /// When the daemon does not answer.
    pub fn ticket_of(&self, program: &str, status_address: &str) -> String {
        let arguments = ["ticket", "--address", status_address, "--format", "json"];
        let output = self.command(program).args(arguments).output().expect("it runs");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a ticket");
        answer["ticket"].as_str().expect("a ticket").to_owned()
    }

    /// Slows its link to so many megabits a second in each direction, with a queue that drains in a tenth of a second.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn limit(&self, megabits: u32) {
        self.limit_kilobits(1000 * megabits);
    }

    /// The same in kilobits a second.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn limit_kilobits(&self, kilobits: u32) {
        // A burst of one scheduler tick's worth and no less than a large segment, or the rate is not reached; on a slow line,
        // where that would be seconds, some packets.
        let least = if kilobits < 1000 { 4_000 } else { 20_000 };
        let burst = (u64::from(kilobits) * 1000 / 8 / 100).max(least);
        // A queue shorter than some packets would lose most of them.
        let latency = (100_000 / kilobits.max(1)).max(100);
        for (namespace, device) in self.ends() {
            let shape = format!("tbf rate {kilobits}kbit burst {burst} latency {latency}ms");
            must(namespace, "tc", &format!("qdisc replace dev {device} root {shape}"));
        }
    }

    /// Takes the limit away.
    pub fn unlimit(&self) {
        for (namespace, device) in self.ends() {
            let _ = call(namespace, "tc", &format!("qdisc del dev {device} root"));
        }
    }

    /// Both ends of its link.
    fn ends(&self) -> [(&Namespace, &str); 2] {
        [(&self.namespace, "eth0"), (&self.port_namespace, &self.port)]
    }

    /// Bytes that its link has carried, as (received, sent), headers included.
    ///
    /// # Panics
    /// When the link is gone.
    pub fn link_bytes(&self) -> (u64, u64) {
        let text = must(&self.namespace, "ip", "-j -s link show eth0");
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        let of = |direction| links[0]["stats64"][direction]["bytes"].as_u64().expect("a count");
        (of("rx"), of("tx"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use super::*;

    fn reaches(from: &Host, to: &Host) -> bool {
        // A closed port answers at once that it is closed; a host out of reach answers nothing.
        let script = format!("exec 3<>/dev/tcp/{}/9", to.address());
        let output = from.command("timeout").args(["1", "bash", "-c", &script]).output().expect("it runs");
        String::from_utf8_lossy(&output.stderr).contains("refused")
    }

    #[test]
    fn hosts_reach_each_other_and_only_their_own_half() {
        let Some(lan) = Lan::new(Family::V4, 3) else { return };
        let [a, b, c] = lan.hosts() else { unreachable!() };
        assert!(reaches(a, b) && reaches(a, c) && reaches(b, c));
        lan.partition(&[1, 2]);
        assert!(!reaches(a, b) && !reaches(c, a) && reaches(b, c));
        lan.heal();
        assert!(reaches(a, b) && reaches(c, a));
    }

    #[test]
    fn nobody_reaches_a_host_behind_a_router() {
        let Some(mut lan) = Lan::new(Family::V4, 1) else { return };
        let Some(hidden) = lan.add_host_behind_router() else { return };
        assert!(reaches(lan.host(hidden), lan.host(0)));
        assert!(!reaches(lan.host(0), lan.host(hidden)));
    }

    /// Whether a process of this machine is in a namespace or has it open.
    fn is_held(namespace: &Path) -> bool {
        let entries =
            |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries("/proc".into()).any(|process| {
            let is_it = |path: PathBuf| std::fs::read_link(path).is_ok_and(|link| link == namespace);
            is_it(process.join("ns/net")) || entries(process.join("fd")).any(is_it)
        })
    }

    #[test]
    fn nothing_is_left_behind_after_a_panic() {
        let Some(lan) = Lan::new(Family::V6, 2) else { return };
        let namespaces = [&*lan.bridges, &lan.host(0).namespace].map(|namespace| std::fs::read_link(namespace.path()));
        let namespaces = namespaces.map(|link| link.expect("it is there"));
        assert!(is_held(&namespaces[0]) && is_held(&namespaces[1]) && reaches(lan.host(0), lan.host(1)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _lan = lan;
            panic!("as a failing test does");
        }));
        assert!(panicked.is_err());
        // What another test starts has all descriptors of this process for a moment.
        let begin = Instant::now();
        while namespaces.iter().any(|namespace| is_held(namespace)) {
            assert!(begin.elapsed() < Duration::from_secs(10), "{namespaces:?}");
        }
    }
}
