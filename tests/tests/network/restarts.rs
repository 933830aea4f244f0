//! Kills in a row: what is lost is what the killed ones did since their last checkpoints.

use murmur::observe::report::NodeReport;
use murmur_tests::netns::{Family, Lan};
use murmur_tests::swarm::{CALM_RUN, Swarm, watch};

use crate::MURMUR;

const DAEMONS: usize = 5;

/// `MURMUR_TEST_SCALE=nightly` kills thirty times.
fn kills() -> usize {
    if murmur_tests::is_nightly() { 30 } else { 12 }
}

/// Seconds between two checkpoints of each daemon.
const CHECKPOINT_SECONDS: f64 = 1.0;

/// What a killed daemon may have done since its last checkpoint, in seconds: the period, the writing of a checkpoint on a
/// busy disk, and the half second between two reports.
const LOST_SECONDS_MAX: f64 = CHECKPOINT_SECONDS + 3.0;

#[test]
fn kills_cost_only_the_last_steps_of_the_killed() {
    let Some(lan) = Lan::new(Family::V4, DAEMONS) else { return };
    let settings = format!("[checkpoint]\nevery_seconds = {CHECKPOINT_SECONDS}\n[training]\nevaluate_every = 0\n");
    let mut swarm = Swarm::with_settings(MURMUR, lan, DAEMONS, CALM_RUN, &settings);
    swarm.wait_until_all_average();
    let mut dice = Dice(20_261_121);
    for kill in 0..kills() {
        let victim = dice.below(DAEMONS);
        let helper = (victim + 1 + dice.below(DAEMONS - 1)) % DAEMONS;
        // Somewhere between two checkpoints, and after the first one of this life.
        let seconds = 2.0 * CHECKPOINT_SECONDS + dice.below(1000) as f64 / 1000.0;
        let before =
            swarm.daemons[victim].wait_for("some life", |report| report.seconds >= seconds && report.steps > 0);
        let ticket = swarm.daemons[helper].ticket();
        swarm.kill_and_restart(victim, &["join", &ticket]);
        let after = swarm.daemons[victim].wait_for("steps of its own", |report| report.loss.is_some());
        assert_resumed(kill, &before, &after);
    }
    let others = DAEMONS - 1;
    for daemon in &swarm.daemons {
        daemon.wait_for("all train and average", |report| {
            report.peers == others && report.phase == "training" && report.exchanges_completed >= 30
        });
    }
    let all: Vec<_> = swarm.daemons.iter().collect();
    for (daemon, stretch) in all.iter().zip(watch(&all, 5.0)) {
        assert!(stretch.pace > 0.5 && stretch.exchanges > 0, "{:?}", daemon.latest());
    }
    let reports: Vec<NodeReport> = all.iter().map(|daemon| daemon.latest().expect("it reported")).collect();
    let progress = reports.iter().map(|report| report.progress);
    let (least, most) = (progress.clone().fold(f64::MAX, f64::min), progress.fold(0.0, f64::max));
    println!("after {} kills: progress {least:.0} to {most:.0}", kills());
    assert!(least > 0.9 * most, "they agree about how far they are: {reports:#?}");
    for report in &reports {
        let ratio = report.disagreement_ratio.expect("it has averaged");
        println!("steps {}, loss {:?}, disagreement ratio {ratio:.2}", report.steps, report.loss);
    }
}

/// It is the same node, and goes on where its last checkpoint was.
fn assert_resumed(kill: usize, before: &NodeReport, after: &NodeReport) {
    assert_eq!(before.peer, after.peer);
    let pace = 1.0 / before.step_seconds.max(1e-3);
    let lost = before.steps.saturating_sub(after.steps) as f64;
    println!("kill {kill}: {} steps before, {} after; {:.1} s old", before.steps, after.steps, before.seconds);
    assert!(lost <= (LOST_SECONDS_MAX * pace).max(5.0), "kill {kill}: {lost} steps lost at {pace:.0} steps/s");
}

/// A repeatable choice (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).expect("below sides")
    }
}
