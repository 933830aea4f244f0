//! `murmur join`: with a ticket or an address alone. The manifest comes from a member, the model later as well.

mod asking;

use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;
use std::time::SystemTime;

use murmur_network::Told;
use murmur_protocol::handshake::{ClockOffset, Credentials};
use murmur_protocol::ticket::TicketError;
use murmur_protocol::{Bootstrap, HelperLine, HelperLineError, RunId, RunManifest, Secret, Ticket};

use super::node::Coming;
use super::{membership, node};
use crate::cli::JoinOptions;
use crate::console::{note, quoted};
use crate::daemon::Entry;
use crate::failure::{ExitCode, Failure};
use crate::limits::stay::Stay;
use crate::process::background;
use crate::settings::{NetworkSettings, NodeSettings};
use crate::setup::base_model;
use crate::store::{DataDirectory, SECRET_FILE};
use crate::team;
use asking::Asking;

/// More than the longest ticket.
const INPUT_BYTES_MAX: u64 = 8192;

/// Where a ticket, or an address, leads.
pub(super) struct Destination {
    /// Members to dial.
    pub(super) bootstrap: Vec<Bootstrap>,
    /// What is known of the run.
    credentials: Option<Credentials>,
}

/// A run, and how it came to be known.
pub(super) struct Reached {
    /// The run.
    pub(super) manifest: RunManifest,
    /// Its secret, where it is closed.
    pub(super) secret: Option<Secret>,
    /// How far the clock of the member that told it is from this machine's.
    pub(super) clock: ClockOffset,
}

impl Destination {
    /// The run there, from a member that answers or is found.
    pub(super) fn fetch(&mut self, settings: &NodeSettings) -> Result<Reached, Failure> {
        let asking = Asking::begin(settings)?;
        let told = asking.ask(self, settings).or_else(|unanswered| asking.search(self, settings, unanswered))?;
        Ok(self.reached(told))
    }

    fn reached(&self, Told { manifest, clock, .. }: Told) -> Reached {
        let secret = self.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
        Reached { manifest, secret, clock }
    }
}

/// The ticket on standard input: one of a closed run is a key, and everybody on a machine can read a command's arguments.
pub(super) fn ticket_from_input() -> Result<String, Failure> {
    if let Some(line) = background::handed_on() {
        return Ok(line);
    }
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(INPUT_BYTES_MAX);
    // Who types it ends it with Enter; a file may have it on several lines.
    let is_typed = std::io::stdin().is_terminal();
    match if is_typed { input.read_line(&mut text) } else { input.read_to_string(&mut text) } {
        Ok(_) if text.trim().is_empty() => {
            Err(Failure::new(ExitCode::CommandLine, "there is no ticket on standard input")
                .hint("`murmur join - < FILE`, or `murmur ticket | ssh HOST murmur join -`"))
        }
        Ok(_) => Ok(text.split_whitespace().collect::<Vec<_>>().join(" ")),
        Err(error) => Err(Failure::new(ExitCode::Files, format!("cannot read standard input: {error}"))
            .hint("a ticket is text that begins with murmur1")),
    }
}

/// Reads a ticket and the addresses of the settings.
pub(super) fn destination(ticket: Option<&str>, settings: &NodeSettings) -> Result<Destination, Failure> {
    let mut bootstrap = Vec::new();
    let mut credentials = None;
    if let Some(text) = ticket {
        let text = if text == "-" { ticket_from_input()? } else { text.to_owned() };
        let ticket: Ticket = text.parse().map_err(|error| no_ticket(&text, &error))?;
        bootstrap.extend(Bootstrap::of(&ticket));
        credentials = Some(Credentials { run: ticket.run, secret: ticket.secret });
    }
    bootstrap.extend(node::bootstrap(&settings.network.bootstrap)?);
    if credentials.as_ref().is_none_or(|credentials| credentials.secret.is_none()) {
        credentials = own_credentials(settings, credentials)?;
    }
    Ok(Destination { bootstrap, credentials })
}

/// What was given instead of a ticket.
fn no_ticket(text: &str, error: &TicketError) -> Failure {
    let text = text.trim();
    let is_a_helpers = !matches!(text.parse::<HelperLine>(), Err(HelperLineError::NoLine));
    let (message, hint) = if is_a_helpers {
        let hint = "`murmur start` and `murmur join` take it after --helper, `murmur doctor` after --team; a ticket begins with murmur1";
        ("this is the line of a helper, and no ticket".to_owned(), hint)
    } else if Path::new(text).is_file() {
        let hint =
            format!("a ticket in a file is read from standard input: murmur join - < {}", quoted(Path::new(text)));
        return Failure::new(ExitCode::Settings, format!("{text} is a file, and no ticket")).hint(hint);
    } else if text.starts_with('/') {
        (format!("{text} is an address, and no ticket"), "an address goes after --bootstrap")
    } else {
        (error.to_string(), "`murmur start` and `murmur join` print a ticket; an address goes after --bootstrap")
    };
    Failure::new(ExitCode::Settings, message).hint(hint)
}

pub(super) fn run(mut options: JoinOptions) -> anyhow::Result<()> {
    // As in `murmur join "$TICKET"` without that variable.
    options.ticket = options.ticket.filter(|ticket| !ticket.trim().is_empty());
    if options.ticket.as_deref() == Some("-") {
        options.ticket = Some(ticket_from_input()?);
    }
    let mut settings = node::settings(&options.node)?;
    let stay = Stay::begin(&settings.stay, &settings.limits, SystemTime::now());
    resume_by_run(&mut settings, options.ticket.as_deref());
    // Before anybody is asked: that takes a while where nobody answers.
    DataDirectory::check_unused(&settings.checkpoint.directory)?;
    let mut destination = destination(options.ticket.as_deref(), &settings)?;
    if options.ticket.is_none() && destination.bootstrap.is_empty() {
        return Err(nowhere_to_go().into());
    }
    let run = destination.credentials.as_ref().map(|credentials| credentials.run);
    if run.is_none() {
        check_ticket_needed(&settings)?;
    }
    let known = |Reached { manifest, secret, .. }, settings: &NodeSettings| {
        check_openness(settings, secret.as_ref()).map(|()| (manifest, secret))
    };
    let asking = Asking::begin(&settings)?;
    let (manifest, secret) = match (asking.ask(&destination, &settings), claimed_run(&settings, run)) {
        (Ok(told), _) => known(destination.reached(told), &settings)?,
        // Any node may vanish, the ticket's too: a member that comes back knows the run and its other peers.
        (Err(unanswered), Some(manifest)) => {
            note(&format!("warning: {}", Failure::from(unanswered)));
            note("hint: going on with the run and the peers in the data directory");
            (manifest, None)
        }
        (Err(unanswered), None) => {
            let told = asking.search(&mut destination, &settings, unanswered)?;
            known(destination.reached(told), &settings)?
        }
    };
    drop(asking);
    tracing::debug!("the run is known");
    team::captain::check(&manifest, &settings)?;
    let brought = node::bring(&mut settings, &manifest, Coming::Joins)?;
    base_model::take_tokenizer(&mut settings, &manifest)?;
    let base = base_model::joined(&manifest, &settings)?;
    let (directory, loaded) = brought.directory(&settings, &manifest, Coming::Joins)?;
    let entry =
        Entry { bootstrap: destination.bootstrap, joins: true, begins_anew: false, length: None, base, loaded, stay };
    node::run(manifest, settings, directory, (entry, secret), &options.node)
}

/// Who knows an address alone is told open runs alone: a secret proves nothing for a run that is not known.
fn check_ticket_needed(settings: &NodeSettings) -> Result<(), Failure> {
    let NetworkSettings { closed, secret_file, .. } = &settings.network;
    let (option, hint) = match (secret_file.as_os_str().is_empty(), closed) {
        (false, _) => {
            ("--secret-file", "the ticket may be one without a secret: murmur join TICKET --secret-file FILE")
        }
        (true, true) => {
            ("--closed", "`murmur ticket` prints it on a member's machine; an open run is joined without --closed")
        }
        (true, false) => return Ok(()),
    };
    let message = format!("{option} is for a closed run, and who joins one needs its ticket");
    Err(Failure::new(ExitCode::Settings, message).hint(hint))
}

/// A run that a member tells without a secret is open: a node with one of its own would reach nobody.
fn check_openness(settings: &NodeSettings, secret: Option<&Secret>) -> Result<(), Failure> {
    if secret.is_some() || !settings.network.closed {
        return Ok(());
    }
    Err(Failure::new(ExitCode::Settings, "this run is open: --closed would part this node from it")
        .hint("leave it out, in the node file and the environment too; only who founds a run can close it"))
}

/// Neither a ticket nor an address was given, nor does the node file name one.
fn nowhere_to_go() -> Failure {
    Failure::new(ExitCode::CommandLine, "whom to join? Give a ticket, or the address of a member").hint(
        "`murmur join murmur1…` with the line that `murmur start` prints, or `murmur join --bootstrap \
         /ip4/192.0.2.7/tcp/4711`; a node that was a member before resumes with `murmur start --data-dir FOLDER`",
    )
}

/// Without a data directory of its own, a node that has been a member finds the one that it used by the ticket's run.
fn resume_by_run(settings: &mut NodeSettings, ticket: Option<&str>) {
    let ticket = ticket.and_then(|text| text.parse::<Ticket>().ok());
    if settings.checkpoint.directory.as_os_str().is_empty()
        && let Some(directory) = ticket.and_then(|ticket| DataDirectory::default_of_run(ticket.run))
    {
        settings.checkpoint.directory = directory;
    }
}

/// What this node knows already, for a ticket without a secret, or none: its own run and secret, or the owner's file.
fn own_credentials(settings: &NodeSettings, ticket: Option<Credentials>) -> Result<Option<Credentials>, Failure> {
    let directory = &settings.checkpoint.directory;
    let claimed = claimed_run(settings, ticket.as_ref().map(|ticket| ticket.run)).map(|manifest| manifest.run_id());
    let kept = match claimed {
        Some(_) => membership::read(&directory.join(SECRET_FILE))?,
        None => None,
    };
    let secret = kept.or(membership::from_settings(&settings.network)?);
    Ok(match (ticket, claimed, secret) {
        (Some(ticket), _, secret) => Some(Credentials { run: ticket.run, secret }),
        (None, Some(run), Some(secret)) => Some(Credentials { run, secret: Some(secret) }),
        (None, _, _) => None,
    })
}

/// The run of this node's data directory, where it is the ticket's.
fn claimed_run(settings: &NodeSettings, expected: Option<RunId>) -> Option<RunManifest> {
    let directory = &settings.checkpoint.directory;
    let manifest = DataDirectory::claimed_manifest(directory).filter(|_| !directory.as_os_str().is_empty())?;
    expected.is_none_or(|expected| expected == manifest.run_id()).then_some(manifest)
}
