//! How commands talk to a daemon of this machine: which one, and a request to its status page.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::console::note;
use crate::drivers::Denied;
use crate::failure::{ExitCode, Failure};
use crate::store::{Run, RunningDaemon};

/// Where a daemon answers that says nothing else.
const DEFAULT_ADDRESS: &str = "127.0.0.1:4780";

/// A daemon on this machine answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Changes may be answered once they are carried out.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon, and the way to ask it.
pub(super) struct Client {
    /// Of its status page.
    pub(super) address: String,
    token: Option<String>,
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
        let found = running(run)?;
        let Some((directory, daemon)) = found.first() else {
            // A daemon whose directory is not known here may still answer where daemons usually do.
            return Ok(Client::at(DEFAULT_ADDRESS));
        };
        if found.len() > 1 && run.is_none() {
            note(&format!("{} daemons run here; this is the one in {}", found.len(), directory.display()));
        }
        let address = daemon.status_address.clone().ok_or_else(|| {
            Failure::new(ExitCode::Network, format!("the daemon in {} has no status page", directory.display()))
                .hint("start it without --status-address off")
        })?;
        Ok(Client { address, token: Some(daemon.token.clone()) })
    }

    fn at(address: &str) -> Client {
        // Its token, where it is a daemon of ours.
        let is_there = |daemon: &RunningDaemon| daemon.status_address.as_deref() == Some(address);
        let ours = Run::all().iter().flat_map(Run::daemons).find(|(_, daemon)| is_there(daemon));
        Client { address: address.to_owned(), token: ours.map(|(_, daemon)| daemon.token) }
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
        self.answer(request.send_json(wish))
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
            ureq::Error::Timeout(_) => stranger(&"it says nothing"),
            ureq::Error::Protocol(error) => stranger(&error),
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
/// When a run is given that is not there, or of which none is ready.
pub(super) fn running(run: Option<&Path>) -> Result<Vec<(PathBuf, RunningDaemon)>, Failure> {
    let mut found: Vec<(PathBuf, RunningDaemon)> = match run {
        None => Run::all().iter().flat_map(Run::daemons).collect(),
        Some(name) => {
            let run = named(name)?;
            let daemons = run.daemons();
            if daemons.is_empty() {
                let message = format!("no daemon runs in {}", run.directory.display());
                return Err(Failure::new(ExitCode::Network, message)
                    .hint(format!("start it: murmur start --data-dir {}", run.directory.display())));
            }
            daemons
        }
    };
    found.sort_by_key(|(directory, daemon)| (std::cmp::Reverse(daemon.started_unix), directory.clone()));
    Ok(found)
}

/// The run that a command line names.
///
/// # Errors
/// When there is none.
pub(super) fn named(name: &Path) -> Result<Run, Failure> {
    Run::named(name).ok_or_else(|| {
        Failure::new(ExitCode::Files, format!("there is no run {} on this machine", name.display()))
            .hint("`murmur list` shows the runs of this machine; a folder elsewhere is given by its path")
    })
}

/// A page of a daemon, where it answers soon.
pub(super) fn ask<Page: DeserializeOwned>(daemon: &RunningDaemon, page: &str) -> Option<Page> {
    let address = daemon.status_address.clone()?;
    Client { address, token: None }.get(page).ok()
}

fn agent(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(timeout)).http_status_as_error(false).proxy(None);
    config.build().new_agent()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

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
            let client = Client { address: address.clone(), token: None };
            let failure = client.get::<crate::observe::report::NodeReport>("status").expect_err("no daemon");
            server.join().expect("the server");
            assert_eq!(failure.code(), ExitCode::Network);
            let expected = format!("something answers at {address}, but it is no murmur");
            assert!(failure.to_string().starts_with(&expected), "{failure}");
        }
    }
}
