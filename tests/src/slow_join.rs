//! Joining over a slow line, with a donor killed in the middle.

use std::time::{Duration, Instant};

use crate::Daemon;
use crate::netns::{Family, Lan};
use crate::swarm::Swarm;

/// What a swarm is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP alone.
    Tcp,
    /// QUIC alone: a donor that is killed says nothing.
    Quic,
}

/// A run of which a step takes little work, with models of two layers of this width.
pub fn run_of_width(width: u32) -> String {
    format!(
        "[run]\nname = \"slow\"\n[model]\nlayers = 2\nwidth = {width}\nheads = 4\nfeed_forward = {}\ncontext = 16\n\
         [optimizer]\nbatch_sequences = 1\n[schedule]\ntotal_steps = 1000000\nwarmup_steps = 20\n\
         [data]\nvalidation_sequences = 1\n[gossip]\ninterval_steps = 40\ninterval_steps_min = 40\n\
         final_exchanges = 1\n",
        width / 28 * 80
    )
}

/// More than an idle host sends of itself, less than a handshake.
const FIRST_WORD_BYTES: u64 = 500;

/// How it went.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// Of the model.
    pub parameters: u64,
    /// What the line alone takes for the parameters.
    pub line_seconds: f64,
    /// From the joiner's first word on its line until the model was taken over. Before that it is read from a disk.
    pub seconds: f64,
    /// From its first word until the first chunk was there.
    pub first_chunk_seconds: f64,
    /// Which share of the model was there when the donor was killed.
    pub killed_at: f64,
    /// What came over the line meanwhile, in bytes, headers included.
    pub received_bytes: u64,
    /// And what left over it.
    pub sent_bytes: u64,
}

impl Joined {
    /// How many times as long as the line alone.
    pub fn ratio(&self) -> f64 {
        self.seconds / self.line_seconds
    }
}

/// A swarm of three on fast lines and a joiner on one of so many kilobits a second each way, whose donor is killed when two
/// fifths of the model are there. Nothing where there are no namespaces.
///
/// # Panics
/// When it does not get the model in three times the line's own time and half a minute.
pub fn join(program: &str, transport: Transport, kilobits: u32, run: &str) -> Option<Joined> {
    let lan = Lan::quiet(Family::V4, 4)?;
    lan.host(3).limit_kilobits(kilobits);
    let listen = match transport {
        Transport::Tcp => "/ip4/0.0.0.0/tcp/4711",
        Transport::Quic => "/ip4/0.0.0.0/udp/4711/quic-v1",
    };
    let settings = format!("[network]\nlisten = [\"{listen}\"]\n[training]\nevaluate_every = 0\n");
    let mut swarm = Swarm::waiting(program, lan, 3, run, &settings);
    for daemon in &swarm.daemons {
        daemon.wait_for("two peers", |report| report.peers == 2 && report.exchanges_completed >= 2);
    }
    let parameters = swarm.daemons[0].latest().expect("it reported").parameters as u64;
    let line_seconds = 32.0 * parameters as f64 / (1000.0 * f64::from(kilobits));
    let ticket = swarm.daemons[1].ticket();
    let (received_before, sent_before) = swarm.lan.host(3).link_bytes();
    let patience = Duration::from_secs_f64(3.0 * line_seconds + 30.0);
    let joiner = swarm.start(3, &["join", &ticket]).with_patience(patience);
    let spawned = Instant::now();
    while swarm.lan.host(3).link_bytes().1 < sent_before + FIRST_WORD_BYTES {
        assert!(spawned.elapsed() < patience, "the joiner says nothing on its line");
        std::thread::sleep(Duration::from_millis(20));
    }
    let begin = Instant::now();
    let share_of =
        |copying: &Option<murmur::observe::report::CopyReport>| copying.as_ref().map_or(0.0, |copying| copying.share);
    joiner.wait_for("the first chunk", |report| report.phase != "joining" || share_of(&report.copying) > 0.0);
    let first_chunk_seconds = begin.elapsed().as_secs_f64();
    let halfway = joiner
        .wait_for("two fifths of the model", |report| report.phase != "joining" || share_of(&report.copying) >= 0.4);
    let killed_at = share_of(&halfway.copying);
    let donors = halfway.copying.map(|copying| copying.donors).unwrap_or_default();
    let is_donor = |daemon: &Daemon| daemon.latest().is_some_and(|report| donors.contains(&report.peer));
    if let Some(place) = swarm.daemons.iter().position(is_donor) {
        swarm.daemons.remove(place).kill();
    }
    joiner.wait_for_notice("took over the model of");
    let seconds = begin.elapsed().as_secs_f64();
    let (received, sent) = swarm.lan.host(3).link_bytes();
    let (received_bytes, sent_bytes) = (received - received_before, sent - sent_before);
    Some(Joined { parameters, line_seconds, seconds, first_chunk_seconds, killed_at, received_bytes, sent_bytes })
}
