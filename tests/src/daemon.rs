//! One daemon under test.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use murmur::observe::report::NodeReport;
use serde_json::Value;

use crate::netns::Host;

/// No single condition takes longer than this, on two busy cores either, unless a test says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it kills the process.
pub struct Daemon {
    process: Child,
    patience: Duration,
    stdin: Option<ChildStdin>,
    heard: Arc<(Mutex<Heard>, Condvar)>,
    /// Its data directory.
    pub directory: PathBuf,
}

/// How a daemon ended.
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its last report, where it left in order.
    pub report: Option<NodeReport>,
    /// Everything on its standard error.
    pub errors: String,
}

impl Finished {
    /// The same of a daemon that left in order.
    ///
    /// # Panics
    /// When it did not, with its errors.
    pub fn in_order(self) -> Finished {
        assert!(self.status.success(), "{}", self.errors);
        self
    }
}

/// What it has said so far. Shared by the thread that reads and the test that waits.
#[derive(Default)]
struct Heard {
    ready: Option<Value>,
    report: Option<NodeReport>,
    finished: Option<NodeReport>,
    notices: Vec<String>,
    errors: String,
    /// Of its standard output and its errors, which end one after the other.
    ended_outputs: u8,
}

impl Daemon {
    /// Starts `murmur` with `arguments` (`start RUN` or `join …`) and what every daemon under test needs.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn(program: &str, directory: &Path, arguments: &[&str]) -> Daemon {
        let mut command = crate::murmur(program);
        command.args(arguments).args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "127.0.0.1:0"]);
        Daemon::spawn_as(command, directory)
    }

    /// The same on a host of its own, where it listens as its settings say: by default on every address of the host.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn_on(host: &Host, program: &str, directory: &Path, arguments: &[&str]) -> Daemon {
        let mut command = host.command(program);
        command.args(arguments);
        for address in host.listen() {
            command.args(["--listen", address]);
        }
        Daemon::spawn_as(command, directory)
    }

    /// The same of a command that has its environment and its arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn spawn_with(mut command: Command, directory: &Path) -> Daemon {
        command.args(["--listen", "/ip4/127.0.0.1/tcp/0", "--status-address", "127.0.0.1:0"]);
        Daemon::spawn_as(command, directory)
    }

    /// The same of a command that says where it listens.
    pub(crate) fn spawn_as(mut command: Command, directory: &Path) -> Daemon {
        command.args(["--format", "json", "--until-stdin-closes", "--threads", "1", "--data-dir"]).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program starts");
        let heard = Arc::new((Mutex::new(Heard::default()), Condvar::new()));
        read(process.stdout.take().expect("a pipe"), heard.clone(), Heard::take_in);
        read(process.stderr.take().expect("a pipe"), heard.clone(), |heard, line| heard.errors += &format!("{line}\n"));
        let directory = directory.to_owned();
        Daemon { stdin: process.stdin.take(), process, patience: PATIENCE, heard, directory }
    }

    /// The same daemon, waited for longer: for scenarios in which time passes.
    pub fn with_patience(mut self, patience: Duration) -> Daemon {
        self.patience = patience;
        self
    }

    /// Its last report so far.
    pub fn latest(&self) -> Option<NodeReport> {
        self.heard.0.lock().expect("no reader panics").report.clone()
    }

    /// Sends it a signal, such as `STOP`.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, name: &str) {
        let id = self.process_id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().expect("kill is there");
        assert!(sent.success(), "no signal {name} to {id}");
    }

    /// Waits until it listens, and gives its first address with the peer id.
    pub fn address(&self) -> String {
        self.ready_value("/addresses/0")
    }

    /// Waits until it listens, and gives where, on this transport, such as `/udp/`.
    ///
    /// # Panics
    /// When it does not listen there.
    pub fn address_over(&self, transport: &str) -> String {
        let is_over = |address: &&str| address.contains(transport);
        self.wait("it listens", |heard| {
            let addresses = heard.ready.as_ref()?.pointer("/addresses")?.as_array()?;
            addresses.iter().filter_map(Value::as_str).find(is_over).map(str::to_owned)
        })
    }

    /// Waits until it listens, and gives its ticket.
    pub fn ticket(&self) -> String {
        self.ready_value("/ticket")
    }

    /// Waits until it listens, and gives the address of its status page.
    pub fn status_address(&self) -> String {
        self.ready_value("/status_address")
    }

    /// Its process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until a report fulfils `condition`, and gives that report.
    ///
    /// # Panics
    /// When none does in time, with what the daemon has said.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&NodeReport) -> bool) -> NodeReport {
        self.wait(what, |heard| heard.report.as_ref().filter(|report| condition(report)).cloned())
    }

    /// Waits for a notice that contains `text`.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn wait_for_notice(&self, text: &str) -> String {
        self.wait(text, |heard| heard.notices.iter().find(|notice| notice.contains(text)).cloned())
    }

    /// How many notices so far contain `text`.
    ///
    /// # Panics
    /// Never: no reader panics.
    pub fn notices_with(&self, text: &str) -> usize {
        let heard = self.heard.0.lock().expect("no reader panics");
        heard.notices.iter().filter(|notice| notice.contains(text)).count()
    }

    /// All notices so far, in order.
    ///
    /// # Panics
    /// Never: no reader panics.
    pub fn notices(&self) -> Vec<String> {
        self.heard.0.lock().expect("no reader panics").notices.clone()
    }

    /// Waits until it has written this to stderr.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn wait_for_warning(&self, text: &str) {
        self.wait(text, |heard| heard.errors.contains(text).then_some(()));
    }

    /// What it has written to stderr so far.
    ///
    /// # Panics
    /// Never: no reader panics.
    pub fn errors(&self) -> String {
        self.heard.0.lock().expect("no reader panics").errors.clone()
    }

    /// Asks it to leave, as a parent process does, and waits for its end.
    pub fn stop(mut self) -> Finished {
        drop(self.stdin.take());
        self.wait_for_end()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait_for_end(mut self) -> Finished {
        self.wait("its end", |heard| heard.has_ended().then_some(()));
        let status = self.process.wait().expect("it was started");
        let mut heard = self.heard.0.lock().expect("no reader panics");
        Finished { status, report: heard.finished.take(), errors: std::mem::take(&mut heard.errors) }
    }

    /// kill -9.
    pub fn kill(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub(crate) fn ready_value(&self, pointer: &str) -> String {
        let found = |heard: &Heard| heard.ready.as_ref()?.pointer(pointer)?.as_str().map(str::to_owned);
        self.wait("it listens", found)
    }

    fn wait<Found>(&self, what: &str, find: impl Fn(&Heard) -> Option<Found>) -> Found {
        let deadline = Instant::now() + self.patience;
        let (heard, news) = &*self.heard;
        let mut heard = heard.lock().expect("no reader panics");
        loop {
            if let Some(found) = find(&heard) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || (heard.has_ended() && what != "its end");
            assert!(
                !is_over,
                "waited in vain for: {what}\nreport: {:?}\nnotices: {:?}\nerrors: {}",
                heard.report, heard.notices, heard.errors
            );
            heard = news.wait_timeout(heard, left).expect("no reader panics").0;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Heard {
    /// Whether nothing more comes.
    fn has_ended(&self) -> bool {
        self.ended_outputs == 2
    }

    /// A line of its standard output.
    fn take_in(&mut self, line: &str) {
        let Ok(mut object) = serde_json::from_str::<Value>(line) else { return };
        let parse = |value: Value| serde_json::from_value(value).expect("a report has the form of a report");
        if let Some(report) = object.get_mut("status").map(Value::take) {
            self.report = Some(parse(report));
        } else if let Some(report) = object.get_mut("finished").map(Value::take) {
            self.finished = Some(parse(report));
        } else if let Some(notice) = object.get("notice").and_then(Value::as_str) {
            self.notices.push(notice.to_owned());
        } else if let Some(ready) = ["ready", "lending"].iter().find_map(|key| object.get_mut(key).map(Value::take)) {
            self.ready = Some(ready);
        }
    }
}

/// Reads one of its outputs to the end.
fn read(output: impl Read + Send + 'static, heard: Arc<(Mutex<Heard>, Condvar)>, take: fn(&mut Heard, &str)) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            take_in(&heard, |heard| take(heard, &line));
        }
        take_in(&heard, |heard| heard.ended_outputs += 1);
    });
}

fn take_in(heard: &(Mutex<Heard>, Condvar), change: impl FnOnce(&mut Heard)) {
    if let Ok(mut guard) = heard.0.lock() {
        change(&mut guard);
    }
    heard.1.notify_all();
}
