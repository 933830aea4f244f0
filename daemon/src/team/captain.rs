//! A captain's helpers: whether a run can have some, who they are, and how they are reached, again and again.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use murmur_network::team::{DialError, TeamLink, dial};
use murmur_network::{Caps, Keypair, Throttle, TrafficCounter, peer_id};
use murmur_protocol::team::bounds::{FRAME_BYTES_MAX, HELPERS_MAX};
use murmur_protocol::team::{Link, Place, TeamNotice, TeamTimeouts, Wire};
use murmur_protocol::{HelperLine, RunManifest, Ticket};
use murmur_training::measure::timed_product;
use murmur_training::ops::Kernels;
use murmur_training::team::{self, SwarmTicket, TeamOptions, TeamView, Told, facts};
use murmur_training::{Device, MemoryEstimate, StageDevice, TrainingOptions, free_memory};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::carrier::Carrier;
use super::probing::probe;
use super::report::TeamSource;
use super::words;
use crate::console::{Console, human_bytes, note, print_line};
use crate::failure::{ExitCode, Failure};
use crate::process::stats::available_memory;
use crate::settings::{LimitsSettings, NodeSettings};
use crate::setup::devices::name;

/// From one attempt to reach a helper to the next, at first and at most: it may be started anew at any time.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A helper is given so long for anything, at least: a machine of somebody's may stand still for some seconds. One that is gone is
/// noticed by its connection.
const PATIENCE_MIN: Duration = Duration::from_secs(15);

/// Events that wait for the journal.
const EVENTS_MAX: usize = 64;

/// How long a run's end waits for helpers to hear that they are let go.
const FAREWELL: Duration = Duration::from_millis(500);

/// Connections of a captain, and the threads that serve them.
#[derive(Debug)]
pub(crate) struct Helpers {
    source: TeamSource,
    /// How helpers come to this node's swarm, once it is known.
    ticket: SwarmTicket,
    /// What the node's caps are drawn from, by all of its connections.
    throttle: Throttle,
    /// What happens, in words; until somebody takes it.
    events: Option<mpsc::Receiver<String>>,
    runtime: Option<Runtime>,
}

impl Helpers {
    /// What happens in the team, in words, for the journal; once.
    pub(crate) fn take_events(&mut self) -> Option<mpsc::Receiver<String>> {
        self.events.take()
    }

    /// The node's caps, which its swarm's connections have to draw from as well.
    pub(crate) fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }

    /// How helpers come to this node's swarm, while they may exchange their layers there by themselves.
    pub(crate) fn ticket(&self) -> SwarmTicket {
        self.ticket.clone()
    }

    /// What reports are made from.
    pub(crate) fn source(&self) -> TeamSource {
        self.source.clone()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // What was said last is on its way, by the runtime's own threads. This one may drive another runtime, where
            // it must not wait for this one: when a daemon with helpers cannot start.
            std::thread::sleep(FAREWELL);
            runtime.shutdown_background();
        }
    }
}

/// The helpers that the settings name; none where this node is no captain.
///
/// # Errors
/// When a line is none, or names a helper again.
pub(crate) fn lines(settings: &NodeSettings) -> Result<Vec<HelperLine>, Failure> {
    let mut helpers = BTreeSet::new();
    let parse = |text: &String| {
        let line: HelperLine = text.parse().map_err(|error| match text.parse::<Ticket>() {
            Ok(_) => Failure::new(ExitCode::Settings, "this is a ticket, and no line of a helper").hint(
                "`murmur join` takes a ticket; a helper's line begins with murmurL1, and `murmur lend` prints it",
            ),
            Err(_) => Failure::new(ExitCode::Settings, format!("{error}"))
                .hint("`murmur lend` prints it on the other machine"),
        })?;
        if !helpers.insert(line.helper) {
            let message = format!("helper {} is named twice", line.helper.short());
            return Err(Failure::new(ExitCode::Settings, message).hint("each --helper is another machine"));
        }
        Ok(line)
    };
    let lines: Vec<HelperLine> = settings.training.helpers.iter().map(parse).collect::<Result<_, _>>()?;
    if lines.len() > HELPERS_MAX {
        let message = format!("{} helpers, where a team has at most {HELPERS_MAX}", lines.len());
        return Err(Failure::new(ExitCode::Settings, message).hint("leave out the slowest ones"));
    }
    Ok(lines)
}

/// Whether a node of these settings can share this run's model with helpers, where it has some.
///
/// # Errors
/// Why not, and what to do instead.
pub(crate) fn check(manifest: &RunManifest, settings: &NodeSettings) -> Result<(), Failure> {
    if settings.training.helpers.is_empty() {
        return Ok(());
    }
    let refused = |why: &str, hint: &str| {
        let message = format!("a team cannot train this run: {why}");
        Err(Failure::new(ExitCode::Settings, message).hint(hint))
    };
    let instead = "leave out --helper; the other machine can join the swarm with `murmur join`";
    if let Some(reason) = murmur_training::why_not_cut(manifest) {
        return refused(reason, instead);
    }
    if manifest.synchronous.is_on() && manifest.synchronous.averages_gradients() {
        return refused(
            "its members average the gradient of every step, of which each machine would have a part",
            "average models with synchronous.every_steps = 10, or leave out --helper",
        );
    }
    if settings.privacy.is_on() {
        return refused(
            "private training clips the gradient of each record, of which each machine would have a part",
            "leave out --helper, or --epsilon",
        );
    }
    if manifest.gossip.outer_learning_rate > 0.0 && !manifest.lora.is_on() {
        return refused(
            "its outer momentum keeps two more copies of the whole model here, which a team is to avoid",
            "set gossip.outer_learning_rate = 0, or train adapters with lora.rank",
        );
    }
    if settings.training.moment_bits == 8 {
        return refused("moments in 8 bits stay on one machine", "keep training.moment_bits = 32 on a captain");
    }
    if !settings.training.devices.is_empty() {
        return refused(
            "this node has several devices of its own",
            "give it one with --device; helpers are the others",
        );
    }
    Ok(())
}

/// What the captain's part is computed with, and where.
pub(crate) struct Own<'a> {
    pub(crate) identity: &'a Keypair,
    pub(crate) manifest: &'a RunManifest,
    pub(crate) settings: &'a NodeSettings,
    pub(crate) device: &'a Device,
    pub(crate) options: TrainingOptions,
    pub(crate) console: Console,
}

/// Reaches the helpers, as far as they are there, and prepares the captain's side of the team.
///
/// # Errors
/// When a helper is there and is none of its line, or has another captain.
pub(crate) fn prepare(own: &Own<'_>, lines: Vec<HelperLine>) -> anyhow::Result<(TeamOptions, Helpers)> {
    let Own { identity, manifest, settings, console, .. } = own;
    note(
        "warning: a helper sees activations, from which your text can be recovered, and can return anything: have only your own \
         machines, or friends', in a team",
    );
    let me = peer_id(identity);
    if lines.iter().any(|line| line.helper == me) {
        return Err(Failure::new(ExitCode::Settings, "this node is named as its own helper")
            .hint("a helper is another machine, or has another data directory at least")
            .into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (told, heard) = facts();
    let (carrier, counter, view) = (Carrier::default(), TrafficCounter::default(), TeamView::default());
    let ticket = SwarmTicket::default();
    let helpers_wanted = lines.len();
    tell_limits(&settings.limits);
    let throttle = throttle(settings);
    let reach = Reach {
        identity: (*identity).clone(),
        counter: counter.clone(),
        throttle: throttle.clone(),
        body_bytes_max: body_bytes_max(manifest),
    };
    for line in lines {
        let link = match runtime.block_on(reach.dial(&line)) {
            Ok(link) => Some(link),
            Err(error @ (DialError::OtherMachine | DialError::Taken | DialError::Version(_))) => {
                return Err(refusal(&line, &error).into());
            }
            Err(error) => {
                note(&format!("warning: helper {}: {error}", line.helper.short()));
                note("hint: run `murmur lend` there; this node goes on as soon as it comes");
                None
            }
        };
        runtime.spawn(reach.clone().keep(line, link, carrier.clone(), told.clone()));
    }
    let (place, device) = (place(own), stage_device(own.device)?);
    let with = (wire(settings), rayon::current_num_threads(), device.kernels());
    let (least, _) = team::captain_needs(manifest, &own.options, with);
    if place.memory_bytes < least {
        let (least, free) = (human_bytes(least), human_bytes(place.memory_bytes));
        let message = format!("{}, and has {free}", needs(&least));
        return Err(Failure::new(ExitCode::Settings, message)
            .hint("give training.memory_gigabytes more, close other programs, or let the larger machine be the captain")
            .into());
    }
    let (wire, threads, _) = with;
    let (console, (events_to, events)) = (*console, mpsc::channel(EVENTS_MAX));
    let (mut there, run) = (BTreeSet::new(), (*manifest).clone());
    let on_notice = move |notice: &TeamNotice| {
        match notice {
            TeamNotice::HelperOffered { helper } => drop(there.insert(*helper)),
            TeamNotice::HelperLost { helper, .. } | TeamNotice::HelperDismissed { helper, .. } => {
                there.remove(helper);
            }
            _ => {}
        }
        let of_cut = if let TeamNotice::CutTaken { cut, .. } = notice { words::of_exchanges(&run, cut) } else { None };
        for text in words::of_captain(notice, there.len()).into_iter().chain(of_cut) {
            // Where the journal does not keep up, it misses one.
            let _ = events_to.try_send(format!("team: {text}"));
            match console {
                Console::Text => note(&format!("team        {text}")),
                Console::Json => print_line(&json!({ "notice": format!("team: {text}"), "hint": null }).to_string()),
            }
        }
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let options = TeamOptions {
        device,
        threads,
        wire,
        place,
        epoch: seconds << 20,
        helpers_wanted,
        timeouts: TeamTimeouts { floor: PATIENCE_MIN, ..TeamTimeouts::default() },
        carrier: Box::new(carrier),
        facts: (told, heard),
        ticket: ticket.clone(),
        view: view.clone(),
        on_notice: Box::new(on_notice),
    };
    let source = TeamSource { view, counter };
    Ok((options, Helpers { source, ticket, throttle, events: Some(events), runtime: Some(runtime) }))
}

/// What a captain takes at least, in words.
pub(crate) fn needs(least: &str) -> String {
    format!("a captain of this run takes at least {least} for embedding, head and what it keeps of its helpers' layers")
}

/// A device as teams compute on it.
///
/// # Errors
/// When it cannot compute layers alone.
pub(crate) fn stage_device(device: &Device) -> Result<StageDevice, Failure> {
    StageDevice::open(device).map_err(|error| {
        Failure::new(ExitCode::Settings, format!("{} cannot compute a part of a model: {error}", name(device)))
            .hint("use --device cpu")
    })
}

/// What limits of the node do not hold for its team.
fn tell_limits(limits: &LimitsSettings) {
    if !limits.quiet_hours.is_empty() || limits.daily_gigabytes > 0.0 {
        note(
            "warning: quiet hours and --daily-gigabytes hold for the swarm alone, which helpers leave as well: a team cannot train \
             without its traffic, so that goes on and is not counted there; --upload-mbit and --download-mbit cap both together",
        );
    }
}

/// Why this node cannot begin with a helper.
pub(crate) fn refusal(line: &HelperLine, error: &DialError) -> Failure {
    let name = line.helper.short();
    let hint = match error {
        DialError::Unreachable(_) => "run `murmur lend` there; a firewall must let its port through",
        DialError::OtherMachine => {
            "take the line that `murmur lend` prints there now: it has another identity or secret"
        }
        DialError::Taken => {
            "stop its captain, or wait ten minutes after that one is gone; or run `murmur lend` anew there"
        }
        DialError::Version(_) => "both machines need the same murmur",
    };
    Failure::new(ExitCode::Network, format!("helper {name}: {error}")).hint(hint)
}

/// How the settings want streams to cross the wire.
pub(crate) fn wire(settings: &NodeSettings) -> Wire {
    if settings.training.stream_bits == 32 { Wire::F32 } else { Wire::Codes8 }
}

/// Full buckets with the node's caps.
pub(crate) fn throttle(settings: &NodeSettings) -> Throttle {
    Throttle::new(settings.limits.caps())
}

/// Reaches a helper once, to ask it something.
pub(crate) async fn dial_once(
    own: &Own<'_>,
    line: &HelperLine,
    about: (&TrafficCounter, &Throttle),
) -> Result<TeamLink, DialError> {
    dial(own.identity, line, about, body_bytes_max(own.manifest)).await
}

/// What is sent at once, at most: a stream, or the state of all layers.
fn body_bytes_max(manifest: &RunManifest) -> u64 {
    // Parameters and up to three moments of each, in 32 bits.
    let state = 16 * murmur_training::trained_layout(manifest).parameters() as u64 + (1 << 20);
    state.max(FRAME_BYTES_MAX)
}

/// What this machine has for its own stages.
pub(crate) fn place(own: &Own<'_>) -> Place {
    let Own { manifest, settings, device, options, .. } = own;
    let threads = rayon::current_num_threads();
    let kernels = Kernels::choose(device, manifest);
    let estimate = if device.is_cpu() { MemoryEstimate::of } else { MemoryEstimate::saved_as_a_whole };
    let copies = estimate(manifest, options, kernels, threads).on_machine();
    let free = match device.is_cpu() {
        true => available_memory().map(|free| free.saturating_sub(copies)),
        false => free_memory(device),
    };
    let limit = settings.training.memory_gigabytes;
    let limit = if limit > 0.0 { (limit * 1e9) as u64 } else { u64::MAX };
    let rows = manifest.model.context() as usize;
    let model = manifest.model.transformer();
    let timed = model.and_then(|model| timed_product(model, rows, device, options.precision).ok());
    let speed = timed.map_or(1.0, |(duration, operations)| operations / duration.as_secs_f64().max(1e-9));
    let Caps { upload, download } = settings.limits.caps();
    let rate = |cap: Option<u64>| cap.map_or(f64::INFINITY, |cap| cap as f64);
    let link = Link { up: rate(upload), down: rate(download), latency: 0.0 };
    Place { memory_bytes: free.unwrap_or(u64::MAX).min(limit), operations_per_second: speed, link }
}

/// How helpers are reached.
#[derive(Clone)]
struct Reach {
    identity: Keypair,
    counter: TrafficCounter,
    throttle: Throttle,
    body_bytes_max: u64,
}

impl Reach {
    async fn dial(&self, line: &HelperLine) -> Result<TeamLink, DialError> {
        dial(&self.identity, line, (&self.counter, &self.throttle), self.body_bytes_max).await
    }

    /// Keeps a connection to a helper for as long as this node lives, unless it is let go for good.
    async fn keep(self, line: HelperLine, mut first: Option<TeamLink>, carrier: Carrier, told: Told) {
        let (mut pause, mut way) = (AGAIN_AFTER.0, None);
        while !carrier.has_dismissed(line.helper) {
            let link = match first.take() {
                Some(link) => Ok(link),
                None => self.dial(&line).await,
            };
            match link {
                Ok(mut link) => {
                    pause = AGAIN_AFTER.0;
                    let mut offer = None;
                    // Once: a helper that comes back in the middle of a run is waited for.
                    if way.is_none()
                        && let Ok(found) = probe(&mut link).await
                    {
                        (way, offer) = (Some(found.link), Some(found.offer));
                    }
                    let reason = carrier.follow(link, &told, (way, offer)).await;
                    tracing::debug!("the connection to helper {} has ended: {reason}", line.helper);
                }
                Err(error) => tracing::debug!("helper {}: {error}", line.helper),
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(AGAIN_AFTER.1);
        }
    }
}
