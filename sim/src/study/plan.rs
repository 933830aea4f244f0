//! Which runs the study has, the most telling first.

use murmur_protocol::manifest::{GossipKind, OptimizerKind};

use serde::Deserialize;

use super::{Conditions, Method, Setting, Treatment};

/// Nodes of every run.
const NODES: usize = 8;

/// Steps of each node.
const STEPS: u64 = 400;

/// H of the runs with an outer momentum.
const INTERVAL: u32 = 25;

/// α and μ for horizons of some tens of rounds; larger ones lose on so few.
const OUTER: (f64, f64) = (0.7, 0.5);

/// The learning rate where none is searched for.
const LEARNING_RATE: f64 = 4e-3;

/// The learning rates that are tried.
const LEARNING_RATES: [f64; 3] = [4e-3, 8e-3, 2e-3];

/// H of the runs without an outer momentum.
const INTERVALS: [u32; 5] = [25, 5, 10, 50, 1];

/// The seeds that bars are the mean of.
pub const SEEDS: [u64; 3] = [0, 1, 2];

/// Synchronous DiLoCo as in the bars.
pub const DILOCO: Method = Method::Diloco { interval: INTERVAL, outer_learning_rate: OUTER.0, outer_momentum: OUTER.1 };

/// Gossip as in the bars: 8 bits, equal speeds, a calm network.
pub const GOSSIP: Method = gossip(GossipKind::Pairs, INTERVAL, OUTER, false, Conditions::Calm);

/// The same without quantization.
pub const GOSSIP_FULL_PRECISION: Method = gossip(GossipKind::Pairs, INTERVAL, OUTER, true, Conditions::Calm);

/// The same with unequal speeds on a slow and lossy network.
pub const GOSSIP_UNEVEN: Method = gossip(GossipKind::Pairs, INTERVAL, OUTER, false, Conditions::Uneven);

const fn gossip(
    kind: GossipKind,
    interval: u32,
    outer: (f64, f64),
    full_precision: bool,
    conditions: Conditions,
) -> Method {
    let (outer_learning_rate, outer_momentum) = outer;
    Method::Gossip { kind, interval, outer_learning_rate, outer_momentum, full_precision, conditions }
}

/// Gossip without an outer momentum.
pub const fn plain_gossip(interval: u32) -> Method {
    gossip(GossipKind::Pairs, interval, (0.0, 0.5), false, Conditions::Calm)
}

const ADAMW: Treatment = Treatment { kind: OptimizerKind::AdamW, muon_learning_rate: 0.02, match_batch: false };
const ADAMW_MATCHED: Treatment = Treatment { match_batch: true, ..ADAMW };
const MUON: Treatment = Treatment { kind: OptimizerKind::Muon, ..ADAMW };
const MUON_MATCHED: Treatment = Treatment { match_batch: true, ..MUON };

/// What all optimizers are measured against: AdamW at the best of its learning rates.
pub const REFERENCE: (Method, f64, Treatment) = (Method::DataParallel, 8e-3, ADAMW);

/// The runs of [`Question::Optimizers`].
const OPTIMIZERS: [(Method, f64, Treatment); 11] = [
    REFERENCE,
    (plain_gossip(5), 8e-3, MUON_MATCHED),
    (plain_gossip(25), 8e-3, MUON_MATCHED),
    (plain_gossip(5), 4e-3, MUON_MATCHED),
    (plain_gossip(25), 4e-3, MUON_MATCHED),
    (plain_gossip(5), 4e-3, MUON),
    (plain_gossip(25), 4e-3, MUON),
    (plain_gossip(5), 4e-3, ADAMW_MATCHED),
    (plain_gossip(5), 4e-3, ADAMW),
    (plain_gossip(25), 4e-3, ADAMW),
    (Method::DataParallel, 4e-3, MUON),
];

/// Gossip on links of one bit.
pub const fn links(interval: u32) -> Method {
    gossip(GossipKind::Links, interval, (0.0, 0.5), false, Conditions::Calm)
}

/// The runs of [`Question::Links`].
const LINKS: [(Method, f64, Treatment); 8] = [
    REFERENCE,
    (Method::DataParallel, 8e-3, MUON),
    (links(2), 8e-3, MUON_MATCHED),
    (links(5), 8e-3, MUON_MATCHED),
    (links(1), 8e-3, MUON_MATCHED),
    (links(3), 8e-3, MUON_MATCHED),
    (gossip(GossipKind::Links, 3, (0.0, 0.5), false, Conditions::Uneven), 8e-3, MUON_MATCHED),
    (links(8), 8e-3, MUON_MATCHED),
];

/// The runs of [`Question::Lengths`]. A lower rate, so that what links are measured against is at its best.
const LENGTHS: [(Method, f64, Treatment); 5] = [
    REFERENCE,
    (Method::DataParallel, 8e-3, MUON),
    (links(14), 8e-3, MUON_MATCHED),
    (links(24), 8e-3, MUON_MATCHED),
    (Method::DataParallel, 4e-3, ADAMW),
];

/// The runs of [`Question::Longest`].
const LONGEST: [(Method, f64, Treatment); 5] = [
    (links(128), 8e-3, MUON_MATCHED),
    REFERENCE,
    (Method::DataParallel, 4e-3, ADAMW),
    (links(16), 8e-3, MUON_MATCHED),
    (Method::DataParallel, 8e-3, MUON),
];

/// The runs of [`Question::Stages`].
const STAGES: [(Method, f64, Treatment); 6] = [
    (Method::TwoStages { interval: 5, is_wiring_random: true }, 8e-3, MUON_MATCHED),
    (Method::TwoStages { interval: 5, is_wiring_random: false }, 8e-3, MUON_MATCHED),
    (Method::Delayed, 8e-3, MUON),
    (Method::DataParallel, 8e-3, MUON),
    (Method::Delayed, 8e-3, ADAMW),
    REFERENCE,
];

/// Links with an exchange every three steps under churn.
const LINKS_CHURN: Method = gossip(GossipKind::Links, 3, (0.0, 0.5), false, Conditions::Churn);

/// The learning rate of AdamW, alone or beside Muon, on links.
const LINKS_RATE: f64 = 8e-3;

/// One of the study's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What pairwise averaging and quantization cost, over seeds.
    Bars,
    /// What unequal speeds, delays and losses cost.
    Asynchrony,
    /// Loss against traffic, each method at its best learning rate.
    Traffic,
    /// What the optimizer is worth, against data-parallel training with AdamW, over seeds.
    Optimizers,
    /// What links of one bit are worth, against data-parallel training with AdamW, over seeds.
    Links,
    /// The bars where every node reads another part of the text.
    UnlikeData,
    /// Links where nodes come and go, and where every node reads another part of the text, over seeds.
    Conditions,
    /// Links of sixteen and 32 nodes, with as much text a node, over seeds.
    Sizes,
    /// Links in runs four times as long, over seeds.
    Lengths,
    /// Links in runs sixteen times as long, over seeds.
    Longest,
    /// What random wiring between stages and gradients that are one update old cost, over seeds.
    Stages,
    /// Whole nodes and teams whose machines exchange what each holds, over seeds.
    Hybrid,
}

impl Question {
    /// All of them.
    pub const ALL: [Question; 12] = [
        Question::Bars,
        Question::Asynchrony,
        Question::Traffic,
        Question::Optimizers,
        Question::Links,
        Question::UnlikeData,
        Question::Conditions,
        Question::Sizes,
        Question::Lengths,
        Question::Longest,
        Question::Stages,
        Question::Hybrid,
    ];
}

/// What `make` makes of all kinds, seed by seed.
fn vary<T: Copy>(kinds: &[T], make: impl Fn(T, u64) -> Setting) -> Vec<Setting> {
    SEEDS.iter().flat_map(|seed| kinds.iter().map(|kind| make(*kind, *seed))).collect()
}

/// The runs that answer `question` on a text of this name.
pub fn runs(question: Question, text: &str) -> Vec<Setting> {
    let setting = |method, learning_rate, seed| Setting {
        method,
        text: text.to_owned(),
        by_node: question == Question::UnlikeData,
        parameters: murmur_training::parameter_count(&super::model().into()),
        nodes: NODES,
        fragments: 1,
        teams: 0,
        steps: STEPS,
        learning_rate,
        treatment: Treatment::default(),
        seed,
    };
    let over_seeds = |methods: &[Method]| vary(methods, |method, seed| setting(method, LEARNING_RATE, seed));
    // Muon: matched where nodes average parameters, as it is where all average gradients.
    let with_muon = |method, seed| Setting {
        treatment: if method == Method::DataParallel { MUON } else { MUON_MATCHED },
        ..setting(method, LINKS_RATE, seed)
    };
    match question {
        Question::Bars => over_seeds(&[GOSSIP, DILOCO, Method::LocalOnly, GOSSIP_FULL_PRECISION]),
        Question::Asynchrony => over_seeds(&[GOSSIP_UNEVEN, GOSSIP]),
        Question::Traffic => {
            let methods = [Method::DataParallel, DILOCO, Method::LocalOnly].into_iter();
            let methods: Vec<Method> = methods.chain(INTERVALS.map(plain_gossip)).collect();
            let pairs = LEARNING_RATES.iter().flat_map(|rate| methods.iter().map(move |method| (*method, *rate)));
            pairs.map(|(method, rate)| setting(method, rate, SEEDS[0])).collect()
        }
        Question::Optimizers | Question::Links | Question::Stages => {
            let of_question = match question {
                Question::Links => &LINKS[..],
                Question::Stages => &STAGES,
                _ => &OPTIMIZERS,
            };
            vary(of_question, |(method, learning_rate, treatment), seed| Setting {
                treatment,
                ..setting(method, learning_rate, seed)
            })
        }
        Question::UnlikeData => over_seeds(&[GOSSIP, DILOCO, Method::LocalOnly]),
        Question::Conditions => {
            let kinds = [(LINKS_CHURN, false), (links(3), true), (links(3), false), (Method::DataParallel, false)];
            vary(&kinds, |(method, by_node), seed| Setting { by_node, ..with_muon(method, seed) })
        }
        Question::Sizes => {
            let kinds = [16, 32].map(|nodes| [links(3), Method::DataParallel].map(|method| (nodes, method)));
            vary(kinds.as_flattened(), |(nodes, method), seed| Setting { nodes, ..with_muon(method, seed) })
        }
        Question::Hybrid => {
            // Each fragment is exchanged as often as a model that is whole.
            let kinds =
                [(Method::DataParallel, 1, false), (links(3), 1, false), (links(1), 3, false), (links(1), 3, true)];
            let kinds: Vec<_> = [2, 4].into_iter().flat_map(|nodes| kinds.map(|kind| (nodes, kind))).collect();
            let mut all = vary(&kinds, |(nodes, (method, fragments, has_teams)), seed| {
                let teams = if has_teams { nodes / 2 } else { 0 };
                Setting { nodes, fragments, teams, ..with_muon(method, seed) }
            });
            all.extend(vary(&[2, 4], |nodes, seed| {
                let (method, rate, treatment) = REFERENCE;
                Setting { nodes, treatment, ..setting(method, rate, seed) }
            }));
            all
        }
        Question::Lengths | Question::Longest => {
            let (times, kinds) = match question {
                Question::Longest => (16, &LONGEST[..]),
                _ => (4, &LENGTHS[..]),
            };
            vary(kinds, |(method, learning_rate, treatment), seed| Setting {
                steps: times * STEPS,
                treatment,
                ..setting(method, learning_rate, seed)
            })
        }
    }
}
