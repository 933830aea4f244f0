//! Who tells a joiner its run: the members at the addresses that it was given, or others that it finds by the run's id.

use std::time::Duration;

use murmur_network::{FetchError, FoundMember, Keypair, Multiaddr, NobodyFound, Question, Search, Told, search_member};
use murmur_protocol::PeerId;
use murmur_protocol::handshake::{Credentials, Refusal};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Destination;
use crate::console::note;
use crate::failure::{ExitCode, Failure};
use crate::settings::NodeSettings;

/// How long one address may take to tell its run.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long others are looked for: mDNS answers within a second, a lookup takes some, and a machine that restarts is back.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Pauses before an address that nobody answers at is tried again: a daemon that is just starting, or one whose places are all
/// taken for the moment, answers a little later.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Nobody at the addresses given has told the run.
pub(super) struct Unanswered {
    /// Who asked.
    asker: PeerId,
    /// Why, in the order of the addresses.
    reasons: Vec<String>,
    /// What somebody said who refused.
    refusal: Option<Refusal>,
    /// Whether the owner named a file with a secret. It proves nothing for a run that is not known.
    names_secret: bool,
    /// Whether that is known, by a ticket or from the data directory.
    knows_run: bool,
}

impl Unanswered {
    /// The failure after a search as well.
    fn after_search(mut self, nobody: &NobodyFound) -> Failure {
        let NobodyFound { on_local_network, in_table, refusals } = nobody;
        let seconds = SEARCH_TIMEOUT.as_secs();
        let found = match (on_local_network, in_table) {
            (0, 0) => "nobody was found".to_owned(),
            (nearby, listed) => format!("murmur nodes nearby: {nearby}, in its table: {listed}; none told it"),
        };
        self.reasons.push(format!("the run was looked for during {seconds} s, on the local network too: {found}"));
        self.reasons.extend(refusals.iter().cloned());
        self.into()
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Failure {
        let Unanswered { asker, reasons, refusal, names_secret, knows_run } = unanswered;
        let failure = Failure::new(ExitCode::Network, format!("no member can be reached: {}", reasons.join("; ")));
        match refusal {
            Some(Refusal::NotAdmitted) => failure.hint(format!(
                "ask the owner of that machine to admit this node's peer id, {asker} (it lasts only with --data-dir)"
            )),
            Some(Refusal::Stranger) if names_secret => failure
                .hint("if that run is open, leave --secret-file out; else ask for a fresh ticket of the closed one"),
            Some(Refusal::OtherRun { .. } | Refusal::Stranger) => {
                failure.hint("ask for a fresh ticket of the run that you want to join")
            }
            Some(Refusal::Closed) if names_secret && !knows_run => {
                failure.hint("--secret-file needs the run's ticket beside it: murmur join TICKET --secret-file FILE")
            }
            Some(refusal) => failure.hint(refusal.remedy()),
            None => failure.hint("is the other daemon running, and may its port be reached from here (firewall, NAT)?"),
        }
    }
}

/// Who asks, and what carries it. One for all questions before a daemon; dropping it closes their sockets at once, so that
/// the daemon can listen where a search has listened.
pub(super) struct Asking {
    identity: Keypair,
    runtime: Runtime,
}

impl Asking {
    /// Makes what questions need: the node's own identity, where it has one, and a thread.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(super) fn begin(settings: &NodeSettings) -> Result<Asking, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let failed = |error| Failure::new(ExitCode::Failure, format!("cannot start the runtime: {error}"));
        Ok(Asking { identity: asking_identity(settings), runtime: runtime.map_err(failed)? })
    }

    /// Asks the members at the destination's addresses for the run.
    pub(super) fn ask(&self, destination: &Destination, settings: &NodeSettings) -> Result<Told, Unanswered> {
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for entry in &destination.bootstrap {
            let text = match entry.peer {
                Some(peer) => format!("{}/p2p/{peer}", entry.address),
                None => entry.address.to_string(),
            };
            addresses.extend(text.parse::<Multiaddr>());
        }
        let asking = ask_again_and_again(&self.identity, &addresses, destination.credentials.as_ref());
        self.runtime.block_on(asking).map_err(|NoManifest { reasons, refusal, .. }| Unanswered {
            asker: murmur_network::peer_id(&self.identity),
            reasons,
            refusal,
            names_secret: !settings.network.secret_file.as_os_str().is_empty(),
            knows_run: destination.credentials.is_some(),
        })
    }

    /// Looks for other members where those of a ticket do not answer. Whom it finds becomes one whom to dial first.
    ///
    /// # Errors
    /// Why nobody answers, with what was tried.
    pub(super) fn search(
        &self,
        destination: &mut Destination,
        settings: &NodeSettings,
        unanswered: Unanswered,
    ) -> Result<Told, Failure> {
        let Some(credentials) = destination.credentials.clone() else { return Err(unanswered.into()) };
        let listen = settings.network.listen_at(settings.network.usual_port());
        let listen: Vec<Multiaddr> = listen.iter().filter_map(|text| text.parse().ok()).collect();
        let search = Search {
            identity: &self.identity,
            ticket: &credentials,
            known: &destination.bootstrap,
            listen: &listen,
            connectivity: settings.network.connectivity(),
            answer_timeout: FETCH_TIMEOUT,
        };
        // Who does not let this node in may still answer lookups. A wrong secret is wrong for all members, and so is any in an open run.
        let answers = matches!(unanswered.refusal, Some(Refusal::NotAdmitted));
        let is_hopeless = match unanswered.refusal {
            Some(Refusal::OtherSecret | Refusal::Closed) => true,
            Some(Refusal::Stranger) => unanswered.names_secret,
            _ => false,
        };
        if is_hopeless || !murmur_network::is_promising(&search, answers) {
            return Err(unanswered.into());
        }
        note(&format!("unanswered  {}", unanswered.reasons.join("; ")));
        let seconds = SEARCH_TIMEOUT.as_secs();
        note(&format!("searching   other members of run {}, for {seconds} s at most", credentials.run));
        let failed = |error: &dyn std::fmt::Display| Failure::new(ExitCode::Failure, format!("cannot search: {error}"));
        match self.runtime.block_on(search_member(search, SEARCH_TIMEOUT)).map_err(|error| failed(&error))? {
            Ok(FoundMember { told, member }) => {
                note(&format!("found       a member at {}", member.address));
                destination.bootstrap.push(member);
                Ok(told)
            }
            Err(nobody) => Err(unanswered.after_search(&nobody)),
        }
    }
}

/// Why no address has told the run.
struct NoManifest {
    /// In the order of the addresses.
    reasons: Vec<String>,
    /// What somebody said who refused.
    refusal: Option<Refusal>,
    /// Whether a daemon may be there in a moment: nobody has answered, and none took all the time it has.
    may_answer_later: bool,
}

/// Asks all addresses, some times more where nobody answers yet.
async fn ask_again_and_again(
    identity: &Keypair,
    addresses: &[Multiaddr],
    credentials: Option<&Credentials>,
) -> Result<Told, NoManifest> {
    for pause in RETRY_PAUSES {
        match ask_all(identity, addresses, credentials).await {
            Err(NoManifest { reasons, may_answer_later: true, .. }) => {
                note(&format!("unanswered  {}; trying again in {} s", reasons.join("; "), pause.as_secs()));
            }
            last => return last,
        }
        sleep(pause).await;
    }
    ask_all(identity, addresses, credentials).await
}

/// Asks all addresses at once, for a dead one takes its time to be known as dead.
async fn ask_all(
    identity: &Keypair,
    addresses: &[Multiaddr],
    credentials: Option<&Credentials>,
) -> Result<Told, NoManifest> {
    let mut tasks = JoinSet::new();
    for (place, address) in addresses.iter().cloned().enumerate() {
        let (identity, credentials) = (identity.clone(), credentials.cloned());
        tasks.spawn(async move {
            let question = Question { identity: &identity, address: &address, ticket: credentials.as_ref() };
            (place, murmur_network::fetch_manifest(question, FETCH_TIMEOUT).await)
        });
    }
    let (mut failures, mut refusal, mut may_answer_later) = (Vec::new(), None, true);
    while let Some(Ok((place, fetched))) = tasks.join_next().await {
        match fetched {
            Ok(told) => return Ok(told),
            Err(error) => {
                failures.push((place, error.to_string()));
                may_answer_later &= matches!(error, FetchError::Unreachable(..));
                if let FetchError::Refused(_, said) = error {
                    refusal = Some(said);
                }
            }
        }
    }
    failures.sort();
    Err(NoManifest { reasons: failures.into_iter().map(|(_, reason)| reason).collect(), refusal, may_answer_later })
}

/// The node's own identity where it has one already, because a member's lists may admit it by that; else one only to ask
/// with: a new one belongs in a directory that is named after the run.
fn asking_identity(settings: &NodeSettings) -> Keypair {
    let path = settings.checkpoint.directory.join("identity.key");
    let is_known = !settings.checkpoint.directory.as_os_str().is_empty() && path.exists();
    let own = is_known.then(|| murmur_network::load_or_create(&path).ok()).flatten();
    own.unwrap_or_else(Keypair::generate_ed25519)
}
