//! What real daemons came to, beside what was simulated.

use super::cost::cost;
use super::{Cost, End, Words, mean, rate};
use crate::compare::{Fault, Kind, Method, Results};
use crate::report::{Table, bytes, counted};

/// How real daemons were connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Each on a host of its own, whose line has the rates of the comparison's links, and no latency or loss of its own.
    Shaped,
    /// Over loopback, and why.
    Loopback(String),
}

/// Of what a daemon sends, the share of copies and last exchanges from which on it is said. A guess.
const NOTABLE: f64 = 0.1;

/// What real daemons came to with a method, with the first seed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The method by which they trained.
    pub method: Method,
    /// What went wrong.
    pub fault: Fault,
    /// Of each daemon that came to the end, the loss on its held-out text there.
    pub losses: Vec<f64>,
    /// Bytes that each of them sent: everything, joining included.
    pub sent_bytes: Vec<u64>,
    /// Steps a second of each of them while it trained.
    pub steps_per_second: Vec<f64>,
    /// Seconds since the first step of any of them, and their mean loss on held-out text then.
    pub curve: Vec<(f64, f64)>,
    /// Whether all that the fault left alive came to the end of the run.
    pub is_complete: bool,
}

impl Measured {
    /// The mean loss of all daemons.
    pub fn loss(&self) -> f64 {
        mean(self.losses.iter().copied())
    }

    /// The first seconds at which the loss is at most `target`, between two points on a straight line. Those of the second one where
    /// the loss before was not finite.
    pub fn reaches(&self, target: f64) -> Option<f64> {
        let after = self.curve.iter().position(|(_, loss)| *loss <= target)?;
        let (seconds, loss) = self.curve[after];
        let before = after.checked_sub(1).map(|before| self.curve[before]);
        let Some((before, above)) = before.filter(|(_, loss)| loss.is_finite()) else { return Some(seconds) };
        Some(before + (above - target) / (above - loss) * (seconds - before))
    }
}

/// What real daemons came to.
#[derive(Clone, Debug)]
pub struct Real {
    /// How they were connected.
    pub lines: Lines,
    /// Every method without a fault, and then with those that were tried.
    pub measured: Vec<Measured>,
    /// The loss that times are told for, of real daemons and of simulated nodes.
    pub target: f64,
    /// Swarms that would have been trained besides, had nobody interrupted and nothing failed.
    pub left_out: usize,
}

impl Real {
    /// No less than `least`: what real daemons of every method reached without a fault, but for those alone.
    pub fn reached_by_all(&self, least: f64) -> f64 {
        let together = self.with(Fault::None).filter(|one| one.method.kind != Kind::Alone);
        let reached = together.filter_map(|one| one.curve.iter().map(|(_, loss)| *loss).reduce(f64::min));
        reached.map(|loss| (loss * 1000.0).ceil() / 1000.0).fold(least, f64::max)
    }

    /// How they were connected and how fast they stepped, in sentences.
    pub fn conditions(&self, results: &Results) -> String {
        let links = &results.plan.base.links;
        let lines = match &self.lines {
            Lines::Shaped => format!(
                "Each is in a network namespace of its own, whose link carries {} up and {} down (tc tbf). Latency and loss of the \
                 links are not made.",
                rate(links.up_bytes_per_second),
                rate(links.down_bytes_per_second)
            ),
            Lines::Loopback(reason) => {
                format!("They are connected over loopback, without rates, latency, loss or partitions: {reason}.")
            }
        };
        let left_out = match self.left_out {
            0 => String::new(),
            left_out => {
                format!(
                    "Partial: ended early, so {left_out} of {} swarms are left out. ",
                    left_out + self.measured.len()
                )
            }
        };
        // A daemon ends after a whole round.
        let (steps, interval) = (results.plan.base.steps, crate::compare::method::INTERVAL);
        let has_rounds = results.plan.methods.iter().any(|method| matches!(method.kind, Kind::Diloco(_)));
        let rounds = if has_rounds && !steps.is_multiple_of(interval) {
            let whole = steps.next_multiple_of(interval);
            format!(
                " DiLoCo's daemons take whole rounds: {whole} steps each, where the simulated ones end after {steps}."
            )
        } else {
            String::new()
        };
        let short = self.short(results).unwrap_or_default();
        format!(
            "{left_out}{lines} A step takes as long as a simulated one, or longer where the processor that all share is too slow. \
             Bytes are all that a daemon sent: with handshakes, the model that a joiner is given and the last exchanges.{short}{rounds}"
        )
    }

    /// Of gossip's bytes those that are the same in a long run, where they are many.
    fn short(&self, results: &Results) -> Option<String> {
        let one = self.with(Fault::None).find(|one| one.method.kind == Kind::Gossip)?;
        let (gossip, _) = one.method.kind.of_daemons()?;
        let busiest = *one.sent_bytes.iter().max()? as f64;
        let base = &results.plan.base;
        let parameters = murmur_training::parameter_count(&base.trainer.model.clone().into()) as f64;
        let joiners = base.nodes - 1;
        let copies = 4.0 * parameters * joiners as f64;
        // Each starts so many, and takes part in as many that others start: a byte a parameter.
        let last = 2.0 * f64::from(gossip.final_exchanges) * parameters;
        (copies + last >= NOTABLE * busiest).then(|| {
            format!(
                " Gossip's bytes are hard to compare after {}: copies for {} are up to {}, which no simulated node sends, and a \
                 node's last exchanges about {}, real and simulated; its busiest daemon sent {}.",
                counted(base.steps, "step"),
                counted(joiners as u64, "joiner"),
                bytes(copies),
                bytes(last),
                bytes(busiest)
            )
        })
    }

    /// Loss, time and bytes of the busiest node without a fault, measured, and simulated with the first seed. Beside each other on
    /// 80 columns, as long as all have come to the end.
    pub fn table(&self, results: &Results) -> Table {
        let target = format!("to {:.3}", self.target);
        let head = ["method", "loss", "simulated", "busiest", "simulated", &target, "simulated", "steps/s"];
        let mut table = Table::new(&head);
        for one in self.with(Fault::None) {
            let runs = results.of(&one.method);
            let Some(run) = runs.first() else { continue };
            let time = |reached: Option<f64>| reached.map_or("never".to_owned(), super::seconds);
            table.row(vec![
                one.method.name.to_owned(),
                format!("{:.3}{}", one.loss(), if one.is_complete { "" } else { " (unfinished)" }),
                format!("{:.3}", run.end().loss),
                bytes(one.sent_bytes.iter().copied().max().unwrap_or(0) as f64),
                bytes(run.end().busiest_bytes as f64),
                time(one.reaches(self.target)),
                time(run.reaches(self.target).map(|point| point.seconds)),
                format!("{:.1}", mean(one.steps_per_second.iter().copied())),
            ]);
        }
        table
    }

    /// What each fault cost in these words, measured and simulated; `None` where none was tried.
    pub fn fault_table(&self, results: &Results, words: Words) -> Option<Table> {
        let was_tried = |fault: &Fault| self.with(*fault).next().is_some();
        let faults: Vec<Fault> = Fault::ALL.into_iter().filter(was_tried).collect();
        let pairs = faults.iter().flat_map(|fault| [fault.name(), "simulated"]);
        let mut table = Table::new(&std::iter::once("method").chain(pairs).collect::<Vec<_>>());
        for calm in self.with(Fault::None) {
            let own = |fault: &Fault| {
                Some([self.cost(results, calm, *fault)?, cost(results, &calm.method, *fault, self.target)])
            };
            let costs: Vec<_> = faults.iter().map(own).collect();
            if costs.iter().any(Option::is_some) {
                let words = |costs: Option<[Cost; 2]>| {
                    costs.map_or(["-", "-"].map(str::to_owned), |both| both.each_ref().map(words))
                };
                let cells = costs.into_iter().flat_map(words);
                table.row(std::iter::once(calm.method.name.to_owned()).chain(cells).collect());
            }
        }
        (!faults.is_empty()).then_some(table)
    }

    fn with(&self, fault: Fault) -> impl Iterator<Item = &Measured> {
        self.measured.iter().filter(move |one| one.fault == fault)
    }

    fn cost(&self, results: &Results, calm: &Measured, fault: Fault) -> Option<Cost> {
        let hurt = self.with(fault).find(|one| one.method == calm.method)?;
        let end = |one: &Measured| End {
            reached: one.reaches(self.target),
            // At its last evaluation.
            seconds: one.curve.last().map_or(f64::NAN, |(seconds, _)| *seconds),
            loss: one.loss(),
            is_complete: one.is_complete,
            stands_still: false,
        };
        let at = results.plan.base.fault_at().as_secs_f64();
        Some(Cost { method: calm.method, fault, at, calm: end(calm), hurt: end(hurt), stood_still: 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use murmur_protocol::manifest::{OptimizerSpec, ScheduleSpec, TransformerModel};

    use super::*;
    use crate::TransformerSpec;
    use crate::compare::{Links, Plan, Setting};

    fn measured(fault: Fault, curve: &[(f64, f64)], loss: f64) -> Measured {
        let method = Method::named("ring").expect("a method");
        let (losses, curve) = (vec![loss], curve.to_vec());
        Measured { method, fault, losses, sent_bytes: vec![], steps_per_second: vec![], curve, is_complete: true }
    }

    #[test]
    fn a_target_is_reached_between_two_evaluations() {
        let one = measured(Fault::None, &[(1.0, 5.0), (2.0, 4.0), (4.0, 3.0)], 3.0);
        assert_eq!(
            [5.5, 5.0, 3.5, 3.0, 2.9].map(|target| one.reaches(target)),
            [Some(1.0), Some(1.0), Some(3.0), Some(4.0), None]
        );
        let again = measured(Fault::None, &[(1.0, f64::INFINITY), (2.0, 4.0)], 4.0);
        assert_eq!(again.reaches(4.5), Some(2.0), "there is no line from infinity");
    }

    #[test]
    fn what_a_fault_cost_for_real_stands_beside_what_it_cost_in_the_simulator() {
        let calm = measured(Fault::None, &[(5.0, 5.0), (7.0, 3.0)], 3.0);
        let straggler = measured(Fault::Straggler, &[(5.0, 5.0), (13.0, 3.0)], 3.0);
        let mut kill = measured(Fault::Kill, &[(5.0, 5.0), (13.0, 4.5)], 4.5);
        let results = simulated(&[Fault::Kill, Fault::Straggler]);
        let real = |kill: &Measured| {
            let measured = vec![calm.clone(), kill.clone(), straggler.clone()];
            let real = Real { lines: Lines::Shaped, measured, target: 0.0, left_out: 0 };
            Real { target: real.reached_by_all(4.0), ..real }
        };
        let rows = |kill: &Measured, words: Words| {
            let table = real(kill).fault_table(&results, words).expect("two faults");
            table.rows().map(|cells| cells.map(str::to_owned).collect()).collect::<Vec<Vec<String>>>()
        };
        assert_eq!((real(&kill).target, real(&kill).reached_by_all(2.0)), (4.0, 3.0));
        let simulated = |fault| cost(&results, &calm.method, fault, 4.0);
        let both = [simulated(Fault::Kill), simulated(Fault::Straggler)];
        let head = ["method", "kill", "simulated", "straggler", "simulated"];
        let [killed, slow] = both.each_ref().map(Cost::to_target);
        assert_eq!(rows(&kill, Cost::to_target), [head, ["ring", "never", &killed, "+3.0 s", &slow]]);
        let [killed, slow] = both.each_ref().map(Cost::until_the_end);
        assert!(slow.starts_with('+'), "a ring waits for its slowest: {slow}");
        let row = ["ring", "+6.0 s (+1.500)", &killed, "+6.0 s (+0.000)", &slow];
        assert_eq!(rows(&kill, Cost::until_the_end), [head, row]);
        kill.is_complete = false;
        assert_eq!(rows(&kill, Cost::to_target)[1][1], "unfinished");
        let calm_alone = Real { lines: Lines::Shaped, measured: vec![calm.clone()], target: 4.0, left_out: 0 };
        assert!(calm_alone.fault_table(&results, Cost::to_target).is_none());
    }

    /// A real round is never cut short, a simulated one is.
    #[test]
    fn where_steps_are_no_multiple_of_a_round_the_conditions_say_how_many_a_daemon_takes() {
        let mut results = simulated(&[]);
        let real = Real { lines: Lines::Shaped, measured: vec![], target: 4.0, left_out: 0 };
        let says = |results: &Results| {
            real.conditions(results).contains("60 steps each, where the simulated ones end after 48.")
        };
        results.plan.base.steps = 48;
        assert!(!says(&results), "there is no DiLoCo");
        results.plan.methods.extend(Method::named("diloco"));
        assert!(says(&results), "{}", real.conditions(&results));
        results.plan.base.steps = 60;
        assert!(!real.conditions(&results).contains("whole rounds"));
    }

    /// Joiners' copies and last exchanges weigh the same in a long run, where they are next to nothing.
    #[test]
    fn where_gossip_sends_little_it_is_said_what_of_it_the_simulator_does_not_send() {
        let results = simulated(&[]);
        let gossip = Method::named("gossip").expect("a method");
        let says = |method, busiest: u64| {
            let one = Measured { method, sent_bytes: vec![busiest / 2, busiest], ..measured(Fault::None, &[], 3.0) };
            Real { lines: Lines::Shaped, measured: vec![one], target: 4.0, left_out: 0 }.conditions(&results)
        };
        let parameters = murmur_training::parameter_count(&results.plan.base.trainer.model.clone().into()) as f64;
        let expected = format!(
            "after 12 steps: copies for 2 joiners are up to {}, which no simulated node sends, and a node's last exchanges about {}, \
             real and simulated; its busiest daemon sent 100.0 kB.",
            bytes(8.0 * parameters),
            bytes(8.0 * parameters)
        );
        assert!(says(gossip, 100_000).contains(&expected), "{}", says(gossip, 100_000));
        assert!(!says(gossip, 100_000_000).contains("hard to compare"));
        assert!(!says(Method::named("ring").expect("a method"), 100_000).contains("hard to compare"));
    }

    /// A ring of three nodes that train a tiny model.
    fn simulated(faults: &[Fault]) -> Results {
        let (steps, model) = (
            12,
            TransformerModel { layers: 1, width: 16, heads: 2, feed_forward: 24, context: 16, ..Default::default() },
        );
        let base = Setting {
            method: Method::named("ring").expect("a method"),
            trainer: TransformerSpec {
                model,
                optimizer: OptimizerSpec { batch_sequences: 2, ..OptimizerSpec::default() },
                schedule: ScheduleSpec { total_steps: steps, warmup_steps: 2, ..ScheduleSpec::default() },
                validation_sequences: 4,
                ..TransformerSpec::default()
            },
            nodes: 3,
            steps,
            step_time: Duration::from_secs(1),
            speeds: vec![1.0],
            links: Links::named("lan").expect("built in"),
            fault: Fault::None,
            seed: 1,
            sabotage: None,
        };
        let (methods, faults) = (vec![base.method], faults.to_vec());
        let plan = Plan { base, methods, faults, seeds: 1, learning_rates: vec![8e-3] };
        plan.run(1, &AtomicBool::new(false), &|_, _| ()).expect("nobody interrupts")
    }
}
