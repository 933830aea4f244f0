//! A swarm with a daemon on each host, and what is asked of several daemons at once.

use std::path::PathBuf;
use std::time::Duration;

use murmur::observe::report::NodeReport;

use crate::gaps::assert_never_waited_between;
use crate::netns::{Family, Lan};
use crate::{Daemon, TINY_RUN, write_run};

/// What a condition may take where time passes on purpose, with other tests on the same cores.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of the time, in percent, that daemons train whose steps nobody waits for.
const WAITING_PERCENT: &str = "5";

/// The tiny run for them: two exchanges a second and not ten.
pub fn waiting_run() -> String {
    TINY_RUN.replace("interval_steps = 10\n", "interval_steps = 25\ninterval_steps_min = 25\n")
}

/// A run whose step takes some ten milliseconds on a busy core: with the tiny run's fraction of one, seconds of silence
/// are thousands of steps, as they are in no real swarm.
pub const CALM_RUN: &str = "\
[run]
name = \"calm\"
[model]
layers = 2
width = 64
heads = 4
feed_forward = 176
context = 64
[optimizer]
batch_sequences = 8
[schedule]
total_steps = 100000
warmup_steps = 20
[data]
validation_sequences = 16
[gossip]
interval_steps = 5
final_exchanges = 4
";

/// Daemons on the first hosts of a network. Fields are dropped in order: daemons before their hosts and folders.
pub struct Swarm {
    /// In the order of their hosts, unless a test took some out.
    pub daemons: Vec<Daemon>,
    /// Their hosts, and those that have no daemon yet.
    pub lan: Lan,
    folder: tempfile::TempDir,
    program: String,
    more: &'static [&'static str],
}

impl Swarm {
    /// A founder on the first host of a network of `hosts`, and as many joiners as make `daemons`, each by the founder's
    /// ticket. Nothing where there are no namespaces.
    pub fn new(program: &str, family: Family, hosts: usize, daemons: usize, run: &str) -> Option<Swarm> {
        Some(Swarm::on(program, Lan::new(family, hosts)?, daemons, run))
    }

    /// The same with a daemon on each host and a run whose steps take as long as messages do.
    pub fn calm(program: &str, hosts: usize) -> Option<Swarm> {
        Swarm::new(program, Family::V4, hosts, hosts, CALM_RUN)
    }

    /// The same on a network that was prepared.
    pub fn on(program: &str, lan: Lan, daemons: usize, run: &str) -> Swarm {
        Swarm::with_settings(program, lan, daemons, run, "")
    }

    /// The same with a node file.
    pub fn with_settings(program: &str, lan: Lan, daemons: usize, run: &str, settings: &str) -> Swarm {
        Swarm::begin(program, lan, daemons, run, (settings, &[]))
    }

    /// The same of daemons that train little: what is waited for comes by time and not by steps.
    pub fn waiting(program: &str, lan: Lan, daemons: usize, run: &str, settings: &str) -> Swarm {
        Swarm::begin(program, lan, daemons, run, (settings, &["--training-percent", WAITING_PERCENT]))
    }

    fn begin(
        program: &str,
        lan: Lan,
        daemons: usize,
        run: &str,
        (settings, more): (&str, &'static [&'static str]),
    ) -> Swarm {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let run_file = write_run(folder.path(), run);
        std::fs::write(folder.path().join("node.toml"), settings).expect("a temporary directory can be written");
        let mut swarm = Swarm { daemons: Vec::new(), lan, folder, program: program.to_owned(), more };
        let founder = swarm.start(0, &["start", run_file.to_str().expect("UTF-8")]);
        let ticket = founder.ticket();
        swarm.daemons.push(founder);
        for number in 1..daemons {
            let joiner = swarm.start(number, &["join", &ticket]);
            swarm.daemons.push(joiner);
        }
        swarm
    }

    /// Starts a daemon on a host, with the data directory of that host.
    pub fn start(&self, host: usize, arguments: &[&str]) -> Daemon {
        let settings = self.folder.path().join("node.toml");
        let arguments = [arguments, self.more, &["--node", settings.to_str().expect("UTF-8")]].concat();
        let daemon = Daemon::spawn_on(self.lan.host(host), &self.program, &self.directory(host), &arguments);
        daemon.with_patience(PATIENCE)
    }

    /// The data directory of a host's daemon.
    pub fn directory(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("node-{host}"))
    }

    /// Kills the daemon of a host and starts it again there, with the data directory that it had.
    pub fn kill_and_restart(&mut self, host: usize, arguments: &[&str]) {
        self.daemons.remove(host).kill();
        let again = self.start(host, arguments);
        self.daemons.insert(host, again);
    }

    /// Waits until each of these knows all others and has averaged.
    pub fn wait_until_all_average(&self) {
        let others = self.daemons.len() - 1;
        for daemon in &self.daemons {
            daemon.wait_for("all peers and exchanges", |report| {
                report.peers == others && report.phase == "training" && report.exchanges_completed >= 10
            });
        }
    }
}

/// What each daemon did over the same `seconds` of its own clock.
pub struct Stretch {
    /// Steps a second.
    pub pace: f64,
    /// Exchanges completed.
    pub exchanges: u64,
}

/// Watches daemons side by side.
///
/// # Panics
/// When one of them does not train meanwhile, or may have waited for the network.
pub fn watch(daemons: &[&Daemon], seconds: f64) -> Vec<Stretch> {
    let before: Vec<_> = daemons.iter().map(|daemon| daemon.wait_for("a report", |_| true)).collect();
    let over = |(daemon, before): (&&Daemon, &NodeReport)| {
        // Of a short stretch an evaluation may take all; a wait would show in the longest gap.
        let after = daemon.wait_for("time to pass, and a step", |report| {
            report.seconds >= before.seconds + seconds
                && report.times.seconds_in_training > before.times.seconds_in_training
        });
        assert_never_waited_between(before, &after);
        Stretch {
            pace: (after.steps - before.steps) as f64 / (after.seconds - before.seconds),
            exchanges: after.exchanges_completed - before.exchanges_completed,
        }
    };
    daemons.iter().zip(&before).map(over).collect()
}
