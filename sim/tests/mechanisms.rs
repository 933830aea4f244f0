//! What some of the core's mechanisms are worth: swarms that are worse off without them, with the figures of both.

use std::time::Duration;

use murmur_protocol::manifest::{GossipKind, GossipSpec};
use murmur_sim::{Incident, Lie, NetworkSpec, QuadraticSpec, Scenario, Swarm, TrainerSpec};

use crate::{after, seconds};

fn eight(kind: GossipKind) -> Scenario {
    Scenario { gossip: GossipSpec { kind, ..GossipSpec::default() }, ..Scenario::calm(8) }
}

/// The mean of a figure over so many seeds.
fn mean(seeds: u64, scenario: &Scenario, figure: impl Fn(Swarm) -> f64) -> f64 {
    (0..seeds).map(|seed| figure(Swarm::new(scenario.clone(), seed))).sum::<f64>() / seeds as f64
}

/// Where messages take half a second, exchanges take so many steps that models drift apart; the network then rests less
/// than half of the time. Without that rule models are 2.97 apart on links and 2.53 as pairs, and their losses 0.0200 and
/// 0.0160 instead of 0.0149 and 0.0115.
#[test]
fn models_that_drift_apart_are_averaged_more_often() {
    for (kind, apart_max) in [(GossipKind::Links, 2.65), (GossipKind::Pairs, 2.2)] {
        let mut scenario = eight(kind);
        scenario.network.latency.median = Duration::from_millis(500);
        let apart = mean(3, &scenario, |mut swarm| {
            let samples = (11..=30).map(|time| {
                swarm.run_until(seconds(10 * time));
                swarm.sample().disagreement
            });
            samples.sum::<f64>() / 20.0
        });
        assert!(apart < apart_max, "{kind:?}: {apart}");
    }
}

/// Messages and payloads get lost, and one member after the other stands still for eight seconds. With the waits of the
/// beginning, twenty seconds for an exchange and 0.3 s for an answer, there are 1196 exchanges on links and 1221 as pairs.
#[test]
fn waits_that_are_learned_leave_more_time_for_exchanges() {
    for (kind, exchanges_min) in [(GossipKind::Links, 1290.0), (GossipKind::Pairs, 1290.0)] {
        let mut scenario = eight(kind);
        scenario.network = NetworkSpec { loss: 0.15, transfer_failure: 0.1, ..NetworkSpec::calm() };
        for turn in 0..20 {
            scenario = scenario.at(seconds(20 + 5 * turn), Incident::Pause(1 + turn as usize % 7, seconds(8)));
        }
        let exchanges = mean(3, &scenario, |mut swarm| {
            swarm.run_until(seconds(120));
            swarm.sample().exchanges_completed as f64
        });
        assert!(exchanges > exchanges_min, "{kind:?}: {exchanges}");
    }
}

/// So many nodes, the last `apart` of which are out of reach of the others from 30 s on, each learning with its own data.
struct Split {
    kind: GossipKind,
    nodes: usize,
    apart: usize,
    lasts: Duration,
    step_time: Duration,
    data: QuadraticSpec,
}

impl Split {
    const BEGINS: Duration = Duration::from_secs(30);

    fn ends(&self) -> Duration {
        Split::BEGINS + self.lasts
    }

    fn scenario(&self) -> Scenario {
        let gossip = GossipSpec { kind: self.kind, ..GossipSpec::default() };
        let mut scenario = Scenario { gossip, parameters: 100, ..Scenario::calm(self.nodes) };
        scenario.trainer = TrainerSpec::Quadratic(self.data.clone());
        scenario.nodes.iter_mut().for_each(|plan| plan.step_time = self.step_time);
        let others = (self.nodes - self.apart..self.nodes).collect();
        scenario.at(Split::BEGINS, Incident::Split(others)).at(self.ends(), Incident::Heal)
    }

    /// Seconds from the end of the split until models are as near as before, within a half; at most 60.
    fn heals_in(&self, swarm: &mut Swarm) -> f64 {
        swarm.run_until(Split::BEGINS);
        let before = swarm.sample().disagreement;
        let is_healed = |second: &u64| {
            swarm.run_until(self.ends() + seconds(*second));
            swarm.sample().disagreement < 1.5 * before
        };
        (1..60).find(is_healed).unwrap_or(60) as f64
    }
}

/// Two parts of a swarm were apart for so long that their models are many usual distances from each other. If that counted
/// against them like any other distance, they would take 45 s on links and 56 s as pairs in place of 18 and 13, swarms that take
/// longer than a minute counted as a minute: they give up links with each other, and copy each other's models.
#[test]
fn parts_that_were_apart_for_long_are_soon_one_swarm_again() {
    let data = QuadraticSpec { learning_rate: 0.001, spread: 3.0, noise: 1.0 };
    for (kind, nodes, lasts) in [(GossipKind::Links, 6, seconds(60)), (GossipKind::Pairs, 10, seconds(120))] {
        let split =
            Split { kind, nodes, apart: nodes / 2, lasts, step_time: Duration::from_millis(30), data: data.clone() };
        let healed = mean(10, &split.scenario(), |mut swarm| split.heals_in(&mut swarm));
        assert!(healed < 30.0, "{kind:?}: {healed} s");
    }
}

/// Learning ends in the moment in which a split does. From then on each part draws together faster than the two of them do; did
/// the clip norm follow the usual distance at once, they would take 29 s on links and as pairs in place of 23 and 20.
#[test]
fn parts_that_meet_when_learning_is_over_soon_become_one() {
    let links = QuadraticSpec { learning_rate: 0.003, spread: 0.3, noise: 1.0 };
    let pairs = QuadraticSpec { spread: 10.0, noise: 10.0, ..links };
    let splits = [(GossipKind::Links, 6, seconds(60), links), (GossipKind::Pairs, 8, seconds(20), pairs)];
    for (kind, nodes, lasts, data) in splits {
        let split = Split { kind, nodes, apart: nodes / 2, lasts, step_time: Duration::from_millis(100), data };
        let scenario = split.scenario().at(split.ends(), Incident::StopLearning);
        let healed = mean(10, &scenario, |mut swarm| split.heals_in(&mut swarm));
        assert!(healed < 26.0, "{kind:?}: {healed} s");
    }
}

/// Half of a swarm of four is out of reach of the other half, and nobody is told: connections last. Two that still reach each
/// other ask those who do not answer as well; as long as both wait for these, nobody averages. In twenty seconds the one with
/// the fewest exchanges has 11 of them on average over the seeds, and 8 at least; if each waited as long for an answer as for an
/// exchange, it would have 5.6 on average, and in one of the fifty swarms none.
#[test]
fn two_that_are_left_average_on_while_the_others_do_not_answer() {
    let fewest = |seed: u64| {
        let (began, ends) = (seconds(30), seconds(50));
        let mut scenario = Scenario::calm(4);
        scenario.nodes.iter_mut().for_each(|plan| plan.step_time = Duration::from_millis(300));
        scenario.network.detection = (seconds(15), seconds(25));
        let scenario = scenario.at(began, Incident::Split(vec![2, 3]));
        let mut swarm = Swarm::new(scenario, seed);
        let mut completed = |until: Duration| {
            swarm.run_until(until);
            [0, 1, 2, 3].map(|host| swarm.status(host).expect("it runs").exchanges.completed())
        };
        let (before, after) = (completed(began), completed(ends));
        before.iter().zip(after).map(|(before, after)| after - before).min().expect("four nodes")
    };
    let fewest: Vec<u64> = (0..50).map(fewest).collect();
    assert!(fewest.iter().all(|exchanges| *exchanges >= 6), "{fewest:?}");
}

/// A machine trains for a hundred seconds between two exchanges, and is then told that it is taken away. Its line takes some ten
/// seconds for its codes: longer than leaving does where the owner gives no time.
#[test]
fn a_machine_that_gets_notice_hands_on_what_it_has_learned() {
    let gossip = GossipSpec {
        interval_steps: 10_000,
        interval_steps_min: 10_000,
        interval_steps_max: 10_000,
        ..GossipSpec::default()
    };
    let progress_of_the_other = |leaving_max: Duration, end: Incident| {
        let mut scenario = Scenario { gossip: gossip.clone(), leaving_max, ..Scenario::calm(2) };
        scenario.nodes[0].step_time = seconds(1);
        scenario.nodes[1].uplink_bytes_per_second = 60.0;
        let mut swarm = after(seconds(102), scenario.at(seconds(103), end), 1);
        let before = swarm.status(0).expect("it runs").training.progress;
        swarm.run_until(seconds(150));
        assert!(!swarm.is_running(1));
        swarm.sample().progress - before
    };
    // Half of what it is ahead, which is 900 steps, and 48 of the other's own in the meantime.
    let handed_on = progress_of_the_other(seconds(40), Incident::Leave(1));
    assert!((400.0..600.0).contains(&handed_on), "{handed_on}");
    for (leaving_max, end) in [(seconds(40), Incident::Crash(1)), (seconds(3), Incident::Leave(1))] {
        let lost = progress_of_the_other(leaving_max, end.clone());
        assert!(lost < 60.0, "{end:?}: {lost}");
    }
}

/// One of eight accepts exchanges and never answers in them. The others merge 93 % as many of their own as among honest ones.
#[test]
fn one_that_accepts_and_never_answers_costs_the_others_little() {
    let mut scenario = eight(GossipKind::Pairs);
    let merged = |scenario: &Scenario| {
        mean(3, scenario, |mut swarm| {
            swarm.run_until(seconds(300));
            let of = |host: usize| swarm.status(host).expect("it runs").exchanges.completed_as_starter;
            (0..7).map(of).sum::<u64>() as f64
        })
    };
    let among_honest = merged(&scenario);
    scenario.nodes[7].lie = Some(Lie::Silent);
    let share = merged(&scenario) / among_honest;
    assert!(share > 0.88, "{share} of {among_honest}");
}
