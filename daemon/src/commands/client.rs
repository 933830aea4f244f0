//! How commands talk to a daemon of this machine: which one, and a request to its status page.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::console::{Given, note, quoted, start_command};
use crate::drivers::Denied;
use crate::failure::{ExitCode, Failure};
use crate::process::suspended::is_suspended;
use crate::store::{DataDirectory, Run, RunningDaemon};

/// Where a daemon answers that says nothing else.
const DEFAULT_ADDRESS: &str = "127.0.0.1:4780";

/// A daemon on this machine answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Changes may be answered once they are carried out.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// After so long without an answer to a change it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// A daemon, and the way to ask it.
pub(super) struct Client {
    /// Of its status page.
    pub(super) address: String,
    token: Option<String>,
    /// Its data directory and its process, where they are known.
    process: Option<(PathBuf, u32)>,
    /// Whether no daemon is known there.
    is_guess: bool,
}

impl Client {
    /// The daemon of a run (a folder or a name), else the one at an address, else the one of this machine that started last.
    ///
    /// # Errors
    /// When no such daemon runs, or it answers nothing.
    pub(super) fn find(address: Option<&str>, run: Option<&Path>) -> Result<Client, Failure> {
        if let (Some(address), None) = (address, run) {
            return Ok(Client::at(&checked(address)?));
        }
        Client::first_of(&running(run)?, run)
    }

    /// As [`find`](Self::find), but of the daemons of one run the one that has founded it.
    ///
    /// # Errors
    /// When no such daemon runs, or it answers nothing.
    pub(super) fn find_founder(address: Option<&str>, run: Option<&Path>) -> Result<Client, Failure> {
        if address.is_some() && run.is_none() {
            return Client::find(address, run);
        }
        let mut found = running(run)?;
        founder_first(&mut found);
        Client::first_of(&found, run)
    }

    fn first_of(found: &[(PathBuf, RunningDaemon)], run: Option<&Path>) -> Result<Client, Failure> {
        let Some((directory, daemon)) = found.first() else {
            // A daemon whose directory is not known here may still answer where daemons usually do.
            return Ok(Client { is_guess: true, ..Client::at(DEFAULT_ADDRESS) });
        };
        if found.len() > 1 && run.is_none() {
            note(&format!("{} daemons run here; this is the one in {}", found.len(), directory.display()));
        }
        let address = daemon.status_address.clone().ok_or_else(|| {
            Failure::new(ExitCode::Network, format!("the daemon in {} has no status page", directory.display()))
                .hint("start it without --status-address off")
        })?;
        let process = Some((directory.clone(), daemon.pid));
        Ok(Client { address, token: Some(daemon.token.clone()), process, is_guess: false })
    }

    fn at(address: &str) -> Client {
        // Its token, where it is a daemon of ours.
        let is_there = |daemon: &RunningDaemon| daemon.address_here() == Some(address);
        let ours = Run::all().iter().flat_map(Run::daemons).find(|(_, daemon)| is_there(daemon));
        let process = ours.as_ref().map(|(directory, daemon)| (directory.clone(), daemon.pid));
        let token = ours.map(|(_, daemon)| daemon.token);
        Client { address: address.to_owned(), token, process, is_guess: false }
    }

    /// Asks for one of its pages.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn get<Page: DeserializeOwned>(&self, page: &str) -> Result<Page, Failure> {
        self.answer(agent(TIMEOUT).get(self.url(page)).call())
    }

    /// Has it change something.
    ///
    /// # Errors
    /// When its token is not known here, when it does not answer, or what it refuses.
    pub(super) fn post<Answer: DeserializeOwned>(&self, page: &str, wish: &impl Serialize) -> Result<Answer, Failure> {
        let Some(token) = &self.token else {
            // Where nobody answers, that is what is wrong.
            self.get::<serde::de::IgnoredAny>("status")?;
            let message = format!("the token of the daemon at {} is not known here", self.address);
            return Err(Failure::new(ExitCode::Files, message)
                .hint("give its data directory instead of its address, on its machine and as its user"));
        };
        let request = agent(CHANGE_TIMEOUT).post(self.url(page)).header("Authorization", format!("Bearer {token}"));
        let answer = self.telling_what_is_waited_for(|| request.send_json(wish));
        self.answer(answer)
    }

    /// Says what it is that takes so long, where an answer does.
    fn telling_what_is_waited_for<Answer>(&self, ask: impl FnOnce() -> Answer) -> Answer {
        let (answered, is_answered) = std::sync::mpsc::channel::<Infallible>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if is_answered.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                    self.waiting().iter().for_each(|line| note(line));
                }
            });
            let answer = ask();
            drop(answered);
            answer
        })
    }

    /// What is waited for.
    fn waiting(&self) -> Vec<String> {
        let limit = format!("its answer is awaited for {} s at most", CHANGE_TIMEOUT.as_secs());
        match &self.process {
            Some((_, pid)) if is_suspended(*pid) => vec![
                format!("waiting     process {pid} is there, but it is suspended and does not answer; {limit}"),
                format!("hint: `kill -CONT {pid}` lets it go on, and then it does as it was told"),
            ],
            Some((directory, pid)) => {
                let there = format!("the daemon in {} is there (process {pid})", directory.display());
                vec![format!("waiting     {there}, but it has not answered yet; {limit}")]
            }
            None => vec![format!("waiting     nothing has come from {} yet; {limit}", self.address)],
        }
    }

    fn url(&self, page: &str) -> String {
        format!("http://{}/{page}", self.address)
    }

    fn answer<Body: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Body, Failure> {
        let stranger = |what: &dyn std::fmt::Display| {
            Failure::new(
                ExitCode::Network,
                format!("something answers at {}, but it is no murmur: {what}", self.address),
            )
            .hint("a running daemon prints its status address, which is not the port for peers; without one, this machine's are found")
        };
        let mut answer = answer.map_err(|error| match error {
            ureq::Error::Timeout(_) => match &self.process {
                Some((directory, pid)) => says_nothing(directory, *pid),
                None => stranger(&"it says nothing"),
            },
            ureq::Error::Protocol(error) => stranger(&error),
            _ if self.is_guess => nobody_runs(),
            error => Failure::new(ExitCode::Network, format!("no daemon answers at {}: {error}", self.address))
                .hint("a running daemon prints its status address; without one, the daemons of this machine are found"),
        })?;
        if answer.status().is_success() {
            return answer.body_mut().read_json().map_err(|error| stranger(&error));
        }
        let status = answer.status();
        match answer.body_mut().read_json::<Denied>() {
            Ok(Denied { error, hint }) if hint.is_empty() => Err(Failure::new(ExitCode::Network, error)),
            Ok(Denied { error, hint }) => Err(Failure::new(ExitCode::Network, error).hint(hint)),
            Err(_) => {
                let message = format!("what answers at {} is no daemon of this version: {status}", self.address);
                Err(Failure::new(ExitCode::Network, message).hint("`murmur list` shows the daemons of this machine"))
            }
        }
    }
}

/// Puts the founder's daemon in front, where it is of the same run as the first one.
fn founder_first(found: &mut [(PathBuf, RunningDaemon)]) {
    let Some(manifest) = found.first().and_then(|(first, _)| DataDirectory::claimed_manifest(first)) else { return };
    let is_founder = |directory: &Path| {
        let path = directory.join("identity.key");
        let is_of_run = DataDirectory::claimed_manifest(directory).is_some_and(|other| other == manifest);
        let identity = (is_of_run && path.exists()).then(|| murmur_network::load_or_create(&path).ok()).flatten();
        identity.is_some_and(|identity| murmur_network::peer_id(&identity).to_string() == manifest.run.founder)
    };
    if let Some(place) = found.iter().position(|(directory, _)| is_founder(directory)) {
        found[..=place].rotate_right(1);
    }
}

/// The failure where no daemon of this machine is known, and none answers.
pub(super) fn nobody_runs() -> Failure {
    let last = Run::all_usual().into_iter().find_map(|run| run.nodes.into_iter().next());
    let hint = match last {
        Some(node) => format!("start the one used last again: {}", start_line(&node)),
        None => "`murmur start` begins one; a folder elsewhere is given to the command by its path".to_owned(),
    };
    Failure::new(ExitCode::Network, "no daemon runs on this machine").hint(hint)
}

/// The line that starts a node again; of its data and base the kind alone is known.
pub(super) fn start_line(node: &Path) -> String {
    start_command(node, &DataDirectory::claimed_manifest(node).unwrap_or_default(), &Given::default())
}

/// The failure where a daemon is there and answers nothing in time.
fn says_nothing(directory: &Path, pid: u32) -> Failure {
    let there = format!("the daemon in {} is there (process {pid})", directory.display());
    if is_suspended(pid) {
        return Failure::new(ExitCode::Network, format!("{there}, but it is suspended and does not answer"))
            .hint(format!("`kill -CONT {pid}` lets it go on"));
    }
    Failure::new(ExitCode::Network, format!("{there}, but it does not answer in time")).hint(format!(
        "the machine may be too busy; `murmur logs {}` may say why. `kill -9 {pid}` ends it, and its last checkpoint stays",
        quoted(directory)
    ))
}

/// An address as it can be asked: with a port, without what people copy along.
fn checked(text: &str) -> Result<String, Failure> {
    let refusal = |message: String, hint: &str| Err(Failure::new(ExitCode::Settings, message).hint(hint));
    if text == "off" {
        return refusal(
            "a daemon whose status address is off answers nobody".to_owned(),
            "start it without --status-address off, or ask another one with --address",
        );
    }
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        !host.is_empty() && !is_bare_ipv6 && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !has_port {
        let message = format!("{text:?} is no address of a status page");
        return refusal(message, "it takes an address and a port, such as 127.0.0.1:4780, as the daemon prints it");
    }
    Ok(address.to_owned())
}

/// The daemons of a run, or of this machine, that are ready, the one that started last first.
///
/// # Errors
/// When a run is given that is not there, of which none is ready, or that has one elsewhere.
pub(super) fn running(run: Option<&Path>) -> Result<Vec<(PathBuf, RunningDaemon)>, Failure> {
    let mut found: Vec<(PathBuf, RunningDaemon)> = match run {
        None => Run::all().iter().flat_map(Run::daemons).filter(|(_, daemon)| !daemon.is_elsewhere()).collect(),
        Some(name) => {
            let run = named(name)?;
            let daemons = run.daemons();
            if daemons.is_empty() {
                if let Some(node) = run.nodes.iter().find(|node| RunningDaemon::is_anothers(node)) {
                    let message = format!("the daemon in {} is another user's", node.display());
                    return Err(Failure::new(ExitCode::Files, message)
                        .hint("type this as that user: only that user may read its daemon.json"));
                }
                if run.is_in_use() {
                    let message =
                        format!("the daemon in {} is not ready yet, or a command uses it", run.directory.display());
                    return Err(Failure::new(ExitCode::Network, message).hint(
                        "try again in a while: data may be prepared, or the model loaded; Ctrl-C in its terminal ends it",
                    ));
                }
                let message = format!("no daemon runs in {}", run.directory.display());
                return Err(Failure::new(ExitCode::Network, message)
                    .hint(format!("`murmur list` shows what runs; to start this one: {}", start_line(&run.nodes[0]))));
            }
            if let Some((node, _)) = daemons.iter().find(|(_, daemon)| daemon.is_elsewhere()) {
                let message =
                    format!("the daemon in {} runs on another machine or in another container", node.display());
                return Err(Failure::new(ExitCode::Network, message)
                    .hint("type this there: from here it cannot be asked, nor stopped"));
            }
            daemons
        }
    };
    found.sort_by_key(|(directory, daemon)| (std::cmp::Reverse(daemon.started()), directory.clone()));
    Ok(found)
}

/// The run that a command line names.
///
/// # Errors
/// When there is none.
pub(super) fn named(name: &Path) -> Result<Run, Failure> {
    Run::named(name).ok_or_else(|| no_run(name))
}

/// The failure where no run is called so.
pub(super) fn no_run(name: &Path) -> Failure {
    if let Err(error) = std::fs::read_dir(name)
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Failure::new(ExitCode::Files, format!("cannot look into {}: {error}", name.display()))
            .hint("it is another user's: type this as that user");
    }
    Failure::new(ExitCode::Files, format!("there is no run {} on this machine", name.display()))
        .hint("`murmur list` shows the runs of this machine; a folder elsewhere is given by its path")
}

/// A page of a daemon, where it answers soon.
pub(super) fn ask<Page: DeserializeOwned>(daemon: &RunningDaemon, page: &str) -> Option<Page> {
    let address = daemon.address_here()?.to_owned();
    Client { address, token: None, process: None, is_guess: false }.get(page).ok()
}

fn agent(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(timeout)).http_status_as_error(false).proxy(None);
    config.build().new_agent()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use murmur_protocol::RunManifest;

    use super::*;

    #[test]
    fn what_is_no_address_is_refused_before_anybody_is_asked() {
        assert_eq!(checked("127.0.0.1:4780").expect("one"), "127.0.0.1:4780");
        assert_eq!(checked("http://[::1]:80/").expect("one"), "[::1]:80");
        for wrong in ["nonsense", "127.0.0.1", "127.0.0.1:99999", "4780", ":4780", "::1", "127.0.0.1:-1", ""] {
            let failure = checked(wrong).expect_err("no address");
            assert_eq!(failure.code(), ExitCode::Settings);
            assert!(failure.to_string().contains(wrong) && failure.remedy().contains("127.0.0.1:4780"), "{failure}");
        }
        let failure = checked("off").expect_err("nobody");
        assert!(failure.to_string().contains("answers nobody"), "{failure}");
    }

    #[test]
    fn something_else_at_the_address_is_said_to_be_something_else() {
        let answers = ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "SSH-2.0-OpenSSH_9.2p1 Debian\r\n"];
        for answer in answers {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("bound").to_string();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("the client");
                let _ = stream.read(&mut [0; 1024]);
                stream.write_all(answer.as_bytes()).expect("written");
            });
            let client = Client { address: address.clone(), token: None, process: None, is_guess: false };
            let failure = client.get::<crate::observe::report::NodeReport>("status").expect_err("no daemon");
            server.join().expect("the server");
            assert_eq!(failure.code(), ExitCode::Network);
            let expected = format!("something answers at {address}, but it is no murmur");
            assert!(failure.to_string().starts_with(&expected), "{failure}");
        }
    }

    #[test]
    fn a_daemon_that_is_there_and_says_nothing_is_named_with_its_process() {
        let own = std::process::id();
        let failure = says_nothing("d1".as_ref(), own);
        assert_eq!(failure.code(), ExitCode::Network);
        let expected = format!("the daemon in d1 is there (process {own}), but it does not answer in time");
        assert_eq!(failure.to_string(), expected);
        assert!(failure.remedy().contains(&format!("kill -9 {own}")), "{}", failure.remedy());
    }

    #[test]
    fn the_line_that_starts_a_node_again_names_what_its_run_needs() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut manifest = RunManifest::default();
        let written = |manifest: &RunManifest| {
            std::fs::write(folder.path().join("run.toml"), manifest.canonical_text()).expect("written");
            start_line(folder.path())
        };
        let plain = written(&manifest);
        assert_eq!(plain, format!("murmur start --data-dir {}", quoted(folder.path())));
        manifest.data.source = murmur_protocol::manifest::DataSource::Files;
        assert_eq!(written(&manifest), format!("{plain} --data FILES"));
    }

    #[test]
    fn of_the_daemons_of_one_run_the_founder_is_asked_to_end_it() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let node = |name: &str, manifest: &mut RunManifest| {
            let directory = folder.path().join(name);
            std::fs::create_dir(&directory).expect("created");
            let identity = murmur_network::load_or_create(&directory.join("identity.key")).expect("made");
            if manifest.run.founder.is_empty() {
                manifest.run.founder = murmur_network::peer_id(&identity).to_string();
            }
            std::fs::write(directory.join("run.toml"), manifest.canonical_text()).expect("written");
            (directory, RunningDaemon::this(None, String::new()))
        };
        let (mut ours, mut other) = (RunManifest::default(), RunManifest::default());
        other.run.seed = 9;
        let founder = node("founder", &mut ours);
        let (joiner, second) = (node("joiner", &mut ours), node("second", &mut ours));
        let stranger = node("stranger", &mut other);
        // As they started, the last one first.
        let mut found = [second, stranger, joiner, founder];
        founder_first(&mut found);
        let names = |found: &[(PathBuf, RunningDaemon)]| -> Vec<String> {
            found.iter().map(|(path, _)| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&found), ["founder", "second", "stranger", "joiner"]);
        let mut without = [found[3].clone(), found[2].clone()];
        founder_first(&mut without);
        assert_eq!(names(&without), ["joiner", "stranger"], "the founder of another run is not asked");
    }
}
