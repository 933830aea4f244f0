//! A helper: listens for its captain, and lends it memory and time.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use murmur_network::team::{ListenError, Taken, TeamListener};
use murmur_network::{Keypair, Multiaddr, Throttle, TrafficCounter, peer_id};
use murmur_protocol::team::bounds::FRAME_BYTES_MAX;
use murmur_protocol::team::{HelperConfig, Offer, TeamNotice};
use murmur_protocol::{HelperLine, PeerId, Secret};
use murmur_training::team::{HelperNews, HelperProgress, HelperStage, HelperThread, OnNews, Told, facts};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::carrier::Carrier;
use super::member::{self, LEAVING_MAX};
use super::words;
use crate::console::figures::counted;
use crate::console::{human_bytes, note};
use crate::daemon::PORT_ATTEMPTS;
use crate::daemon::invitation::addresses;
use crate::failure::{ExitCode, Failure, to_write};
use crate::settings::NodeSettings;

/// How often people are told what a helper does.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// How long a captain that is there has to go on without a helper that wants to leave.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// What was said last has to reach the captain.
const FAREWELL: Duration = Duration::from_millis(300);

/// What a helper lends, and to whom.
pub(crate) struct Lending {
    pub(crate) identity: Keypair,
    pub(crate) secret: Secret,
    /// Where it listens: asked anew where another program took a port meanwhile that was free.
    pub(crate) listen: Box<dyn Fn() -> Result<Vec<Multiaddr>, Failure> + Send>,
    pub(crate) chooses_port: bool,
    pub(crate) settings: NodeSettings,
    pub(crate) offer: Offer,
    pub(crate) kept_for: Duration,
    pub(crate) stage: HelperStage,
}

/// What a helper shows of itself.
#[derive(Clone, Debug, Default)]
struct Shown {
    captain: Option<PeerId>,
    /// Its connections: one that came again may be there twice until the first is noticed to be gone.
    connections: usize,
    /// Who was said to be there, and not to be gone since: a captain may come by more than one connection, one after the other.
    announced: Option<PeerId>,
    /// Its layers, in words.
    holds: Option<String>,
    progress: HelperProgress,
}

/// The helper's line, and what keeps it going.
pub(crate) struct Helper {
    pub(crate) line: HelperLine,
    listener: TeamListener,
    taken: Taken,
    told: Told,
    carrier: Carrier,
    thread: HelperThread,
    shown: Arc<Mutex<Shown>>,
    /// What it does as a member of the swarm, in a line.
    member: watch::Receiver<String>,
    /// Ends with the thread.
    members: JoinHandle<()>,
    counter: TrafficCounter,
}

impl Helper {
    /// Listens, and begins to wait.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub(crate) async fn start(lending: Lending) -> Result<Helper, Failure> {
        let Lending { identity, secret, listen: choose, chooses_port, settings, offer, kept_for, stage } = lending;
        let (taken, counter, carrier) = (Taken::default(), TrafficCounter::default(), Carrier::default());
        let body_bytes_max = offer.memory_bytes.max(FRAME_BYTES_MAX);
        let throttle = Throttle::new(settings.limits.caps());
        let about = (taken.clone(), &counter, &throttle);
        let mut attempts_left = if chooses_port { PORT_ATTEMPTS } else { 1 };
        let (listen, listener) = loop {
            let listen = choose()?;
            attempts_left -= 1;
            match TeamListener::start(&identity, &listen, secret.clone(), about.clone(), body_bytes_max).await {
                Ok(listener) => break (listen, listener),
                Err(ListenError::Address(..)) if attempts_left > 0 => {}
                Err(error) => {
                    return Err(Failure::new(ExitCode::Network, error.to_string())
                        .hint("another program may use the port: choose one with --listen /ip4/0.0.0.0/tcp/PORT"));
                }
            }
        };
        let line = HelperLine { helper: peer_id(&identity), addresses: addresses(&[], listener.addresses()), secret };
        if line.addresses.is_empty() {
            return Err(Failure::new(ExitCode::Network, "this machine has no address at which others reach it")
                .hint("give one with --listen /ip4/ADDRESS/tcp/4712"));
        }
        let shown = Arc::new(Mutex::new(Shown::default()));
        let (told, heard) = facts();
        let config = HelperConfig { offer, kept_for };
        let (memberships, told_of) = mpsc::unbounded_channel();
        let facts_of_member = member::Facts::default();
        let news = on_news(shown.clone(), taken.clone(), (memberships, facts_of_member.clone()));
        let wire = Box::new(carrier.clone());
        let thread = HelperThread::start(config, stage, (told.clone(), heard), wire, news);
        let (shown_of_member, member) = watch::channel(String::new());
        let place = member::Place {
            identity,
            listen,
            settings,
            throttle,
            control: thread.control(),
            facts: facts_of_member,
            shown: shown_of_member,
        };
        let members = tokio::spawn(place.serve(told_of));
        Ok(Helper { line, listener, taken, told, carrier, thread, shown, member, members, counter })
    }

    /// Serves captains until `stop` says so, then asks the captain to go on without it.
    ///
    /// # Errors
    /// When the device has failed.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), Failure> {
        let Helper { mut listener, told, carrier, thread, shown, counter, taken, member, members, line: _ } = self;
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + LINE_PERIOD, LINE_PERIOD);
        let mut before = HelperProgress::default();
        let control = thread.control();
        let mut ended = tokio::task::spawn_blocking(move || thread.join());
        let mut leave_by = None;
        loop {
            let late = async {
                match leave_by {
                    Some(by) => tokio::time::sleep_until(by).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(link) = listener.next() => {
                    let (carrier, told, shown) = (carrier.clone(), told.clone(), shown.clone());
                    let taken = taken.clone();
                    let captain = link.peer;
                    {
                        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                        let is_another = shown.captain.replace(captain) != Some(captain);
                        shown.connections = if is_another { 1 } else { shown.connections + 1 };
                        if shown.announced.replace(captain) != Some(captain) {
                            note(&format!("captain     {} is there", captain.short()));
                        }
                    }
                    tokio::spawn(async move {
                        let reason = carrier.follow(link, &told, (None, None)).await;
                        tracing::info!(%captain, "its connection has ended: {reason}");
                        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                        if shown.captain == Some(captain) {
                            shown.connections -= 1;
                            shown.captain = shown.captain.filter(|_| shown.connections > 0);
                        }
                        if shown.captain.is_none() && shown.holds.is_none() {
                            taken.set(None);
                        }
                    });
                }
                _ = ticks.tick() => {
                    let now = {
                        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                        shown.announced = shown.captain;
                        shown.clone()
                    };
                    tell(&now, &before, &counter, &member.borrow());
                    before = now.progress;
                }
                _ = stop.wait_for(|stop| *stop), if leave_by.is_none() => {
                    note("leaving     the captain is asked to go on without this helper (once more to end at once)");
                    control.leave();
                    leave_by = Some(tokio::time::Instant::now() + LEAVE_MAX);
                }
                () = late => {
                    note("warning: the captain has not let this helper go in a minute; it ends all the same");
                    control.end();
                    leave_by = Some(tokio::time::Instant::now() + LEAVE_MAX);
                }
                joined = &mut ended => {
                    let _ = tokio::time::timeout(LEAVING_MAX, members).await;
                    tokio::time::sleep(FAREWELL).await;
                    let joined = joined.map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?;
                    return joined.map_err(|error| {
                        Failure::new(ExitCode::Failure, format!("this helper has ended: {error}"))
                            .hint("its captain goes on without it; start it again, with less --memory if it ran out")
                    });
                }
            }
        }
    }
}

/// Shows what happens, and keeps what is shown regularly.
fn on_news(
    shown: Arc<Mutex<Shown>>,
    taken: Taken,
    (memberships, facts_of_member): (mpsc::UnboundedSender<member::Told>, member::Facts),
) -> OnNews {
    Box::new(move |news| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        match news {
            HelperNews::Progress(progress) => shown.progress = progress,
            // Nobody listens any more where this helper is about to end.
            HelperNews::MemberBegins(new) => drop(memberships.send(member::Told::Begins(new))),
            HelperNews::MemberEnds => drop(memberships.send(member::Told::Ends)),
            HelperNews::OfMember(membership, event) => facts_of_member.tell(membership, event),
            HelperNews::Notice(notice) => {
                let text = words::of_helper(notice);
                match notice {
                    TeamNotice::StageLoaded { .. } => shown.holds.clone_from(&text),
                    TeamNotice::CaptainLost { .. } => shown.announced = None,
                    TeamNotice::StageUnloaded => {
                        (shown.holds, shown.announced) = (None, None);
                        if shown.captain.is_none() {
                            taken.set(None);
                        }
                    }
                    _ => {}
                }
                if let Some(text) = text {
                    note(&format!("helper      {text}"));
                }
            }
        }
    })
}

/// One line of what it does.
fn tell(now: &Shown, before: &HelperProgress, counter: &TrafficCounter, member: &str) {
    let (batches, seconds) = (now.progress.counts.stepped, now.progress.seconds - before.seconds);
    let busy = now.progress.busy_seconds - before.busy_seconds;
    let traffic = counter.read();
    let moved = format!("{} sent, {} received", human_bytes(traffic.sent), human_bytes(traffic.received));
    match (now.captain, &now.holds) {
        (Some(captain), Some(holds)) => {
            let waits = if seconds > 0.0 { 100.0 * (1.0 - busy / seconds).clamp(0.0, 1.0) } else { 100.0 };
            let name = captain.short();
            let member = if member.is_empty() { String::new() } else { format!(" · {member}") };
            let batches = counted(batches, "batch");
            note(&format!("helping     {name}: {holds} · {batches} · waits {waits:.0} % · {moved}{member}"));
        }
        (Some(captain), None) => note(&format!("helping     {}: nothing yet · {moved}", captain.short())),
        (None, Some(holds)) => note(&format!("waiting     for the captain to come back: {holds}")),
        (None, None) => note("waiting     for a captain"),
    }
}

/// The folder's secret, drawn where there is none yet.
pub(crate) fn secret_at(path: &Path, keep: impl FnOnce(&Secret) -> std::io::Result<()>) -> Result<Secret, Failure> {
    if let Ok(text) = std::fs::read_to_string(path)
        && let Ok(secret) = text.parse()
    {
        return Ok(secret);
    }
    let mut bytes = [0; murmur_protocol::secret::SECRET_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("the system gives no randomness: {error}")))?;
    let secret = Secret::from_bytes(bytes);
    keep(&secret).map_err(|error| {
        Failure::new(ExitCode::Files, format!("cannot write {}: {error}", path.display()))
            .hint(format!("{}, or choose another folder with --data-dir", to_write(&error)))
    })?;
    Ok(secret)
}
