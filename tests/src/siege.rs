//! A swarm of real daemons on hosts of their own under faults that a seed draws, and what must hold from outside whatever
//! happens: everybody trains on and averages again, no step waits, memory, files and threads stay within bounds, nothing
//! panics, and every checkpoint can be read.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use murmur::observe::report::NodeReport;
use murmur::store::load_latest;
use murmur_protocol::random::{Generator, RngExt, stream};

use crate::disk::SmallDisk;
use crate::gaps::assert_never_waited;
use crate::netns::{Family, Lan};
use crate::process::{memory, processor_seconds};
use crate::swarm::{CALM_RUN, Swarm};
use crate::{Daemon, Finished};

/// How long the swarm is watched before the first fault, and left alone after the last; a third of a short siege.
const CALM_MAX: Duration = Duration::from_secs(15);

/// Until all are connected again and agree as before.
const RECOVERY: Duration = Duration::from_secs(120);

/// More than what a daemon holds in calm: a checkpoint under way, and a state on its way to joiners.
const MEMORY_MORE_MB: f64 = 150.0;

/// Open files and sockets more than in calm: strangers' connections are bounded per host.
const FILES_MORE: usize = 200;

/// Threads more than in calm.
const THREADS_MORE: usize = 16;

/// The least share of calm's steps for each second of processor time.
const YIELD_MIN: f64 = 0.8;

/// Room for a few checkpoints.
const DISK_BYTES: usize = 64 << 20;

/// What a stranger does to an address and a port: idle sockets, garbage over TCP, garbage over UDP.
const STRANGER: &str = r#"
for number in $(seq 60); do exec {socket}<>/dev/tcp/$0/$1; [ $((number % 2)) = 0 ] && head -c 3000 /dev/urandom >&$socket; done
for number in $(seq 200); do head -c 1200 /dev/urandom > /dev/udp/$0/$1; done
sleep $2
"#;

/// Something that goes wrong, for as long as it says.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// kill -9, and started again on the same data.
    Kill(usize),
    /// Leaves in order, and comes back.
    Leave(usize),
    /// Stands still, as a suspended laptop does.
    Pause(usize, Duration),
    /// One or two hosts reach nobody else.
    Partition([usize; 2], Duration),
    /// A link of so many megabits a second.
    Slow(usize, u32, Duration),
    /// A cable that comes loose again and again.
    Flap(usize, u32),
    /// No byte is free on the last host's disk.
    FullDisk(Duration),
    /// A stranger bothers a host.
    Stranger(usize, Duration),
}

/// One life of a daemon: what to compare it with.
struct Life {
    daemon: Daemon,
    first_step: u64,
    was_paused: bool,
}

/// What all lives have done so far.
#[derive(Clone, Copy, Default)]
struct Work {
    steps: f64,
    processor_seconds: f64,
}

/// A siege under way.
struct Siege {
    swarm: Swarm,
    lives: Vec<Life>,
    disk: Option<SmallDisk>,
    strangers: Vec<Child>,
    ended: Work,
    random: Generator,
}

/// Besieges `daemons` daemons with random faults for `time`, and returns what was done to them; nothing where there are no
/// namespaces.
///
/// # Panics
/// When something that must hold does not, with the faults so far on the standard output.
pub fn besiege(program: &str, daemons: usize, time: Duration, seed: u64) -> Option<usize> {
    println!("siege of {daemons} daemons for {} s, seed {seed}", time.as_secs());
    // One more host, for strangers.
    let lan = Lan::new(Family::V4, daemons + 1)?;
    let mut swarm = Swarm::on(program, lan, daemons - 1, CALM_RUN);
    let disk = SmallDisk::mount(DISK_BYTES);
    if let Some(disk) = &disk {
        symlink(disk.path(), swarm.directory(daemons - 1)).expect("a temporary directory can be written");
    }
    let last = swarm.start(daemons - 1, &["join", &swarm.daemons[0].ticket()]);
    swarm.daemons.push(last);
    swarm.wait_until_all_average();
    let lives = std::mem::take(&mut swarm.daemons).into_iter().map(Life::begin).collect();
    let random = stream(seed, "siege", &[]);
    let mut siege = Siege { swarm, lives, disk, strangers: Vec::new(), ended: Work::default(), random };

    let (before, calm_time) = (siege.work(), CALM_MAX.min(time / 3));
    sleep(calm_time);
    let calm = siege.work().since(before);
    let (held, apart) = (siege.held(), siege.largest_disagreement());
    println!("calm: {:.1} steps a second of processor time, disagreement {apart:.2}", calm.yielded());

    let (begin, besieged) = (Instant::now(), siege.work());
    let mut faults = 0;
    while begin.elapsed() < time {
        let fault = siege.draw();
        println!("{:6.1} s  {fault:?}", begin.elapsed().as_secs_f64());
        siege.suffer(fault);
        faults += 1;
        siege.assert_bounded(held);
    }
    let share = siege.work().since(besieged).yielded() / calm.yielded();
    println!("{faults} faults: {:.1} % of calm's steps for a second of processor time", 100.0 * share);
    siege.assert_recovered(apart, calm_time);
    siege.assert_bounded(held);
    assert!(share >= YIELD_MIN, "{:.1} % of calm's steps for a second of processor time", 100.0 * share);
    siege.end();
    Some(faults)
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work { steps: self.steps - before.steps, processor_seconds: self.processor_seconds - before.processor_seconds }
    }

    /// Steps for each second of processor time.
    fn yielded(self) -> f64 {
        self.steps / self.processor_seconds
    }
}

/// Megabytes, open files and threads of one process.
type Held = (f64, usize, usize);

impl Life {
    /// Of a daemon that has just been started: waits until it trains.
    fn begin(daemon: Daemon) -> Life {
        let report = daemon.wait_for("training", |report| report.phase == "training");
        Life { daemon, first_step: report.steps, was_paused: false }
    }

    fn work(&self) -> Work {
        let steps = self.daemon.latest().map_or(0, |report| report.steps.saturating_sub(self.first_step));
        let threads = processor_seconds(self.daemon.process_id());
        Work { steps: steps as f64, processor_seconds: threads.values().map(|(_, seconds)| seconds).sum() }
    }
}

impl Siege {
    fn draw(&mut self) -> Fault {
        let hosts = self.lives.len();
        let host = self.random.random_range(0..hosts);
        let other = self.random.random_range(0..hosts);
        let time = Duration::from_secs_f64(self.random.random_range(2.0..8.0));
        match self.random.random_range(0..8) {
            0 => Fault::Kill(host),
            1 => Fault::Leave(host),
            2 => Fault::Pause(host, time),
            3 => Fault::Partition([host, other], time),
            4 => Fault::Slow(host, self.random.random_range(1..4), time),
            5 => Fault::Flap(host, self.random.random_range(2..6)),
            6 => Fault::FullDisk(time),
            _ => Fault::Stranger(host, time),
        }
    }

    fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(host) => {
                self.count(host);
                let life = self.lives.remove(host);
                life.daemon.kill();
                self.begin_again(host);
            }
            Fault::Leave(host) => {
                self.count(host);
                let life = self.lives.remove(host);
                assert_in_order(&life.daemon.stop());
                self.begin_again(host);
            }
            Fault::Pause(host, time) => {
                self.lives[host].was_paused = true;
                self.lives[host].daemon.signal("STOP");
                sleep(time);
                self.lives[host].daemon.signal("CONT");
            }
            Fault::Partition(hosts, time) => {
                self.swarm.lan.partition(&hosts);
                sleep(time);
                self.swarm.lan.heal();
            }
            Fault::Slow(host, megabits, time) => {
                self.swarm.lan.host(host).limit(megabits);
                sleep(time);
                self.swarm.lan.host(host).unlimit();
            }
            Fault::Flap(host, times) => {
                for _ in 0..times {
                    self.swarm.lan.unplug(host);
                    sleep(Duration::from_millis(700));
                    self.swarm.lan.plug_in(host);
                    sleep(Duration::from_millis(700));
                }
            }
            Fault::FullDisk(time) => {
                if let Some(disk) = &self.disk {
                    disk.fill();
                    sleep(time);
                    disk.empty();
                }
            }
            Fault::Stranger(host, time) => {
                let (spare, seconds) = (self.swarm.lan.host(self.lives.len()), time.as_secs().to_string());
                let mut bash = spare.command("bash");
                bash.args(["-c", STRANGER, self.swarm.lan.host(host).address(), "4711", &seconds]);
                let stranger = bash.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
                self.strangers.push(stranger.expect("bash is there"));
                sleep(time);
            }
        }
    }

    /// Starts the daemon of a host on what its last life has left.
    fn begin_again(&mut self, host: usize) {
        let life = Life::begin(self.swarm.start(host, &["start"]));
        self.lives.insert(host, life);
    }

    /// Adds the life of a host that is about to end to what all have done.
    fn count(&mut self, host: usize) {
        let work = self.lives[host].work();
        self.ended.steps += work.steps;
        self.ended.processor_seconds += work.processor_seconds;
    }

    /// Of all lives so far.
    fn work(&self) -> Work {
        self.lives.iter().map(Life::work).fold(self.ended, |sum, work| Work {
            steps: sum.steps + work.steps,
            processor_seconds: sum.processor_seconds + work.processor_seconds,
        })
    }

    /// The most that any daemon holds.
    fn held(&self) -> Held {
        let held = self.lives.iter().map(|life| {
            let process = life.daemon.process_id();
            let entries = |name: &str| fs::read_dir(format!("/proc/{process}/{name}")).map_or(0, Iterator::count);
            (memory(process).resident, entries("fd"), entries("task"))
        });
        held.fold((0.0, 0, 0), |most, held| (held.0.max(most.0), held.1.max(most.1), held.2.max(most.2)))
    }

    fn assert_bounded(&self, calm: Held) {
        let now = self.held();
        assert!(now.0 < calm.0 + MEMORY_MORE_MB, "{} MB instead of {}", now.0, calm.0);
        assert!(now.1 < calm.1 + FILES_MORE, "{} open files instead of {}", now.1, calm.1);
        assert!(now.2 < calm.2 + THREADS_MORE, "{} threads instead of {}", now.2, calm.2);
    }

    fn largest_disagreement(&self) -> f64 {
        self.lives.iter().filter_map(|life| life.daemon.latest()?.disagreement).fold(0.0, f64::max)
    }

    /// Waits until everybody is connected to everybody, averages, and is as near the others as before.
    fn assert_recovered(&self, calm: f64, left_alone: Duration) {
        let deadline = Instant::now() + RECOVERY;
        sleep(left_alone);
        let others = self.lives.len() - 1;
        let is_well = |report: NodeReport| report.peers == others && report.phase == "training";
        while !self.lives.iter().all(|life| life.daemon.latest().is_some_and(is_well))
            || self.largest_disagreement() > 2.0 * calm
        {
            let reports: Vec<_> = self.lives.iter().filter_map(|life| life.daemon.latest()).collect();
            assert!(Instant::now() < deadline, "they have not recovered: {reports:#?}");
            sleep(Duration::from_millis(200));
        }
        for life in &self.lives {
            let before = life.daemon.latest().map_or(0, |report| report.exchanges_completed);
            life.daemon.wait_for("an exchange", |report| report.exchanges_completed > before);
        }
    }

    fn end(mut self) {
        for mut stranger in self.strangers.drain(..) {
            let _ = stranger.kill();
            let _ = stranger.wait();
        }
        for life in self.lives.drain(..) {
            let directory = life.daemon.directory.clone();
            let finished = life.daemon.stop();
            assert_in_order(&finished);
            let (checkpoint, refused) = load_latest(&directory.join("checkpoints"));
            assert!(checkpoint.is_some() && refused.is_empty(), "{refused:?}");
            if !life.was_paused {
                assert_never_waited(&finished.report.expect("it left in order"));
            }
        }
    }
}

fn assert_in_order(finished: &Finished) {
    assert!(finished.status.success() && !finished.errors.contains("panicked"), "{}", finished.errors);
}
