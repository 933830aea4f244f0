//! What a simulated team is made of, and what happens to it. All drawn from one seed.

use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt, stream};

use super::stage::Mistake;

/// A team, its machines and links, and its misfortunes.
#[derive(Clone, Debug)]
pub struct TeamPlan {
    /// Seeds whatever is drawn while it runs.
    pub seed: u64,
    /// Layers of the model, beside the embedding and the head.
    pub layers: u32,
    /// Microbatches of a batch; some of them in a second lane where that is odd.
    pub microbatches: u32,
    /// The helpers.
    pub helpers: Vec<MachinePlan>,
    /// The captain's own machine. Its memory is in layers.
    pub captain: MachinePlan,
    /// Whether helpers send their state after every step, as with adapters.
    pub copies_after_steps: bool,
    /// Whether a layer has a frozen base, which a helper that is new asks for.
    pub has_base: bool,
    /// How often the owner wants something else between batches, of 100: an evaluation, a copy, a correction.
    pub others_percent: u32,
    /// Messages that come twice, of 1,000.
    pub repeats: u32,
    /// Messages that are preceded by nonsense, of 1,000.
    pub nonsense: u32,
    /// By how much each message may be late, so that they overtake each other; zero keeps their order.
    pub shuffle: Duration,
    /// By how much the time of a computation varies: a share.
    pub jitter: f64,
    /// What happens, and when.
    pub faults: Vec<(Duration, Fault)>,
    /// Until when faults, repeats, nonsense and shuffling last; calm after it.
    pub hostile_for: Duration,
    /// How long it all lasts.
    pub lasts: Duration,
    /// Batches after which it ends in any case.
    pub batches_max: u64,
    /// A mistake, and of which helper.
    pub mistake: Option<(usize, Mistake)>,
    /// A mistake of what carries out the machines' orders.
    pub carelessness: Option<Carelessness>,
}

/// A machine.
#[derive(Clone, Copy, Debug)]
pub struct MachinePlan {
    /// Layers that fit.
    pub memory_layers: u32,
    /// Layers a second, forward; a backward takes twice as long.
    pub speed: f64,
    /// Bytes a second each way.
    pub rate: f64,
    /// One way.
    pub latency: Duration,
}

/// A misfortune. Helpers by their numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A connection breaks; both ends hear of it after a while, and it is made anew.
    Break {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// Until it is made anew.
        away: Duration,
    },
    /// A helper's process dies, with all in its memory, and comes back.
    Crash {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// Until it is back.
        away: Duration,
    },
    /// The same, after so many more events of its machine.
    CrashAtEvent {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// Events.
        events: u32,
        /// Until it is back.
        away: Duration,
    },
    /// A helper does nothing for a while.
    Pause {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// How long.
        lasts: Duration,
    },
    /// What a helper sends and is sent vanishes, and nobody hears of it.
    Swallow {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// How long.
        lasts: Duration,
    },
    /// A helper computes so many times as long from now on.
    Slow {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// How many times.
        times: f64,
    },
    /// The next stream of a helper is not finite.
    NotFinite {
        /// The helper's place in the plan, from 0.
        helper: usize,
    },
    /// A helper wants to leave, and comes back.
    Leave {
        /// The helper's place in the plan, from 0.
        helper: usize,
        /// Until it is back.
        away: Duration,
    },
    /// The captain's process dies and comes back from its checkpoint.
    CaptainCrash {
        /// Until it is back.
        away: Duration,
    },
    /// The same, after so many more events of its machine.
    CaptainCrashAtEvent {
        /// Events.
        events: u32,
        /// Until it is back.
        away: Duration,
    },
}

/// A mistake of what carries out orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carelessness {
    /// Nobody tells the captain that its deadline has come.
    ForgetsDeadlines,
    /// Streams of an earlier batch go out again as if they were of this one.
    RelabelsOldStreams,
    /// Commits to one helper are lost, and answered as if it had stepped.
    AnswersForHelper,
    /// The captain is told that states are kept which cannot be read.
    TakesUnfitStates,
}

fn seconds(from: f64, to: f64, dice: &mut Generator) -> Duration {
    Duration::from_secs_f64(dice.random_range(from..to))
}

impl TeamPlan {
    /// Like machines on a good network, and no misfortune.
    pub fn calm(helpers: usize, layers: u32, microbatches: u32) -> TeamPlan {
        let machine =
            MachinePlan { memory_layers: layers, speed: 20.0, rate: 1e6, latency: Duration::from_micros(200) };
        TeamPlan {
            seed: 1,
            layers,
            microbatches,
            helpers: vec![machine; helpers],
            // Its share and no more, so that there has to be a team.
            captain: MachinePlan { memory_layers: layers - layers * helpers as u32 / (helpers as u32 + 1), ..machine },
            copies_after_steps: true,
            has_base: true,
            others_percent: 0,
            repeats: 0,
            nonsense: 0,
            shuffle: Duration::ZERO,
            jitter: 0.0,
            faults: Vec::new(),
            hostile_for: Duration::ZERO,
            lasts: Duration::from_secs(600),
            batches_max: 20,
            mistake: None,
            carelessness: None,
        }
    }

    /// A team of a seed, its machines, links and misfortunes.
    pub fn hostile(seed: u64) -> TeamPlan {
        let mut dice = stream(seed, "team plan", &[]);
        let helpers = dice.random_range(1..=4);
        let layers = dice.random_range(helpers as u32..=10);
        let calm = TeamPlan::calm(helpers, layers, dice.random_range(1..=9));
        let fits = dice.random_range(0..3) == 0;
        let captain =
            MachinePlan { memory_layers: if fits { layers } else { calm.captain.memory_layers }, ..calm.captain };
        let hostile_for = seconds(30.0, 120.0, &mut dice);
        let mut plan = TeamPlan {
            seed,
            captain,
            copies_after_steps: dice.random_range(0..3) > 0,
            has_base: dice.random(),
            others_percent: dice.random_range(0..40),
            repeats: dice.random_range(0..3) * 20,
            nonsense: dice.random_range(0..3) * 10,
            shuffle: Duration::from_millis([0, 0, 5, 200][dice.random_range(0..4)]),
            jitter: [0.0, 0.2, 1.0][dice.random_range(0..3)],
            hostile_for,
            // The slowest of these teams take two minutes a batch, and have to learn anew how long their work takes.
            lasts: hostile_for + Duration::from_secs(1000),
            batches_max: u64::MAX,
            ..calm
        };
        for helper in &mut plan.helpers {
            helper.speed = 20.0 * dice.random_range(0.3..2.0);
            helper.rate = 10_f64.powf(dice.random_range(3.0..6.0));
            helper.latency = seconds(0.0, 0.05, &mut dice);
            helper.memory_layers = dice.random_range(layers.div_ceil(2)..=layers);
        }
        // Drawn apart, so that what a seed's team is else stays as it was.
        let mut liars = stream(seed, "team liars", &[]);
        if liars.random_range(0..6) == 0 {
            plan.mistake = Some((liars.random_range(0..helpers), Mistake::SendsUnfitStates));
        }
        for _ in 0..dice.random_range(0..10) {
            let fault = Fault::draw(helpers, &mut dice);
            plan.faults.push((seconds(0.0, hostile_for.as_secs_f64(), &mut dice), fault));
        }
        plan
    }
}

impl Fault {
    fn draw(helpers: usize, dice: &mut Generator) -> Fault {
        let helper = dice.random_range(0..helpers);
        // Now within the grace of a captain, now beyond it.
        let away = if dice.random() { seconds(0.01, 2.0, dice) } else { seconds(2.0, 40.0, dice) };
        match dice.random_range(0..12) {
            0 | 1 => Fault::Break { helper, away },
            2 => Fault::Crash { helper, away },
            3..6 => Fault::CrashAtEvent { helper, events: dice.random_range(0..400), away },
            6 => Fault::Pause { helper, lasts: away },
            7 => Fault::Swallow { helper, lasts: seconds(0.01, 2.0, dice) },
            8 => Fault::Slow { helper, times: dice.random_range(1.5..5.0) },
            9 => match dice.random() {
                true => Fault::NotFinite { helper },
                false => Fault::Leave { helper, away },
            },
            10 => Fault::CaptainCrash { away: seconds(0.1, 20.0, dice) },
            _ => Fault::CaptainCrashAtEvent { events: dice.random_range(0..1500), away: seconds(0.1, 20.0, dice) },
        }
    }
}
