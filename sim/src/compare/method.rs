//! The methods: what they are called, what they do in a few sentences, where they come from.

use murmur_protocol::collective::Shape;
use murmur_protocol::manifest::{GossipSpec, SynchronousSpec, Topology};
use murmur_protocol::numerics::SliceCodec::{self, Bfloat16, Float32, Int8};

/// Local steps between two outer steps of DiLoCo and NoLoCo: short enough for a short run. The papers take 50 to 500.
pub(crate) const INTERVAL: u64 = 15;

/// DiLoCo's outer optimizer, as in the paper.
pub(crate) const OUTER_LEARNING_RATE: f64 = 0.7;
pub(crate) const OUTER_MOMENTUM: f64 = 0.9;

/// How nodes learn from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The daemon's own pairwise modular gossip.
    Gossip,
    /// Gossip or data-parallel round a ring, as the nodes themselves find out what pays.
    Auto,
    /// Gradients of all nodes are reduced in every step, written like this on their way.
    DataParallel(Shape, SliceCodec),
    /// Parameters are reduced every few steps, with an outer Nesterov step.
    Diloco(Shape),
    /// Workers push gradients to servers and pull parameters.
    Server {
        /// Ticks that a worker may be ahead of the slowest; `None` for as many as it likes.
        bound: Option<u64>,
        /// Nodes that hold a part of the parameters each, from 1.
        shards: usize,
    },
    /// Pairs, matched anew in each round, with a modified Nesterov step.
    Noloco,
    /// Pairs that meet when they like, at full precision.
    AdPsgd,
    /// Nothing is averaged.
    Alone,
}

impl Kind {
    /// What the run file of daemons says that train by it; `None` where daemons do not have it.
    pub fn of_daemons(self) -> Option<(GossipSpec, SynchronousSpec)> {
        let all_reduce = |shape: Shape, codec: SliceCodec, every_steps: u32| SynchronousSpec {
            topology: match shape {
                Shape::Ring => Topology::Ring,
                Shape::Tree => Topology::Tree,
                Shape::Star => Topology::Star,
                Shape::HalvingDoubling => Topology::HalvingDoubling,
            },
            every_steps,
            slice_bits: match codec {
                Float32 => 32,
                Bfloat16 => 16,
                Int8 => 8,
            },
            ..SynchronousSpec::default()
        };
        match self {
            Kind::Gossip | Kind::Alone => Some(Default::default()),
            Kind::Auto => {
                Some((GossipSpec::default(), SynchronousSpec { auto: true, ..all_reduce(Shape::Ring, Float32, 1) }))
            }
            Kind::DataParallel(shape, codec) => Some((GossipSpec::default(), all_reduce(shape, codec, 1))),
            Kind::Diloco(shape) => {
                let (outer_learning_rate, outer_momentum) = (OUTER_LEARNING_RATE, OUTER_MOMENTUM);
                let outer = GossipSpec { outer_learning_rate, outer_momentum, ..GossipSpec::default() };
                Some((outer, all_reduce(shape, Float32, INTERVAL as u32)))
            }
            Kind::Server { .. } | Kind::Noloco | Kind::AdPsgd => None,
        }
    }
}

/// A method with its name and words.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// As typed.
    pub name: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// What it does.
    pub kind: Kind,
    /// How it works, what it costs, what it waits for, and when to take it: four sentences.
    pub sentences: [&'static str; 4],
    /// Where it is described.
    pub source: &'static str,
}

impl PartialEq for Method {
    fn eq(&self, other: &Method) -> bool {
        self.name == other.name
    }
}

impl Method {
    /// The method of this name.
    pub fn named(name: &str) -> Option<Method> {
        ALL.into_iter().find(|method| method.name == name)
    }

    /// What a comparison takes where nobody says which.
    pub const DEFAULT: [&'static str; 7] = ["gossip", "ring", "star", "ps-async", "diloco", "noloco", "alone"];
}

const ALL_REDUCE: &str = "Use it where links are fast and nodes are alike; one slow or dead node holds up all of them.";

/// All methods.
pub const ALL: [Method; 16] = [
    Method {
        name: "gossip",
        title: "murmur's own: a few partners each, one bit a parameter, while all train",
        kind: Kind::Gossip,
        sentences: [
            "Each node trains by itself and keeps a few partners; every few steps it exchanges with one, and both move closer.",
            "An exchange sends one bit a parameter each way, the sign of what differs from a reference that both keep; \
             the first one of two partners takes a byte, and so does each of the four after the last step.",
            "Nobody waits: training goes on while an exchange is under way, and its result is added between two steps.",
            "Use it on slow, unlike or failing machines; each step learns a little less than one of all nodes together.",
        ],
        source: "this program; after CHOCO-Gossip, arXiv 1902.00340, and signs with a scale, arXiv 1802.04434",
    },
    Method {
        name: "auto",
        title: "gossip or a ring, as the nodes find out what pays",
        kind: Kind::Auto,
        sentences: [
            "The nodes begin with gossip and tell each other how long their steps take and what their lines carry.",
            "Once a step of all together is expected to cost less than it is worth, they go over to a ring all at once.",
            "They measure what it costs, and go back to gossip where it costs more: because of a slow line, a slow node, or failures.",
            "Use it where you do not know your links, or where they change; it takes some steps to find out.",
        ],
        source: "this program; after consensus control, Kong et al., ICML 2021",
    },
    Method {
        name: "ring",
        title: "data-parallel, gradients summed round a ring",
        kind: Kind::DataParallel(Shape::Ring, Float32),
        sentences: [
            "In every step the gradients of all nodes are cut into slices that go round a ring, once to be summed, once to be copied.",
            "Each node sends 2(N-1)/N times the gradient in every step, however many nodes there are.",
            "Everybody waits for the slowest node and for 2(N-1) messages one after the other.",
            ALL_REDUCE,
        ],
        source: "Patarasuk and Yuan 2009; Horovod, arXiv 1802.05799",
    },
    Method {
        name: "ring-bf16",
        title: "the ring, with slices in 16 bits",
        kind: Kind::DataParallel(Shape::Ring, Bfloat16),
        sentences: [
            "As the ring, but slices are rounded to bfloat16 on their way; all nodes end with the same rounded sum.",
            "Each node sends half of what the ring sends; what rounding takes away it adds to its next gradient.",
            "Everybody waits for the slowest node and for 2(N-1) messages one after the other.",
            ALL_REDUCE,
        ],
        source: "error feedback: Seide et al. 2014; Karimireddy et al., arXiv 1901.09847",
    },
    Method {
        name: "ring-8bit",
        title: "the ring, with slices in 8 bits",
        kind: Kind::DataParallel(Shape::Ring, Int8),
        sentences: [
            "As the ring, but slices are codes of 8 bits with a scale for each 256 values; all nodes end with the same sum.",
            "Each node sends a fourth of what the ring sends; what rounding takes away it adds to its next gradient.",
            "Everybody waits for the slowest node and for 2(N-1) messages one after the other.",
            ALL_REDUCE,
        ],
        source: "error feedback: Seide et al. 2014; Karimireddy et al., arXiv 1901.09847",
    },
    Method {
        name: "star",
        title: "data-parallel, one aggregator: the synchronous parameter server",
        kind: Kind::DataParallel(Shape::Star, Float32),
        sentences: [
            "In every step all nodes send their gradients to the first one, which sends the sum back.",
            "The first node sends N-1 times the gradient in every step, the others once.",
            "Everybody waits for the slowest node and for the first node's uplink.",
            "Use it for few nodes behind a fast aggregator; another node takes over when the aggregator dies.",
        ],
        source: "Li et al. 2014 (parameter server), synchronous",
    },
    Method {
        name: "tree",
        title: "data-parallel, gradients summed up a binary tree",
        kind: Kind::DataParallel(Shape::Tree, Float32),
        sentences: [
            "In every step gradients are summed from the leaves of a binary tree to its root, and the sum goes down again.",
            "An inner node sends the gradient three times in every step, a leaf once.",
            "Everybody waits for the slowest node and for two messages for each level of the tree.",
            ALL_REDUCE,
        ],
        source: "binomial and binary trees of MPI; Sanders et al. 2009",
    },
    Method {
        name: "halving-doubling",
        title: "data-parallel, recursive halving and doubling",
        kind: Kind::DataParallel(Shape::HalvingDoubling, Float32),
        sentences: [
            "In every step pairs exchange halves of their gradients, then quarters, until each holds a piece of the sum; then back.",
            "Each node sends 2(P-1)/P times the gradient in every step, where P is the largest power of two.",
            "Everybody waits for the slowest node, but for only 2 log2(P) messages one after the other.",
            ALL_REDUCE,
        ],
        source: "Thakur, Rabenseifner and Gropp 2005",
    },
    Method {
        name: "ps-async",
        title: "asynchronous parameter server",
        kind: Kind::Server { bound: None, shards: 1 },
        sentences: [
            "The first node holds the parameters; workers push gradients to it whenever they have one, and pull what is there.",
            "The first node sends the parameters to every worker for every gradient, so its uplink carries N-1 times as much.",
            "No worker waits for another one, but gradients are older than the parameters that they are applied to.",
            "Use it for unlike workers round a fast server; when the server dies everything stands still.",
        ],
        source: "Downpour SGD, Dean et al. 2012",
    },
    Method {
        name: "ps-stale",
        title: "parameter server with a bound on staleness of two ticks",
        kind: Kind::Server { bound: Some(2), shards: 1 },
        sentences: [
            "The first node holds the parameters, and a worker may be at most two steps ahead of the slowest one.",
            "The first node sends the parameters to every worker for every gradient, so its uplink carries N-1 times as much.",
            "Fast workers wait for slow ones once they are two steps ahead; a worker that is silent too long is given up.",
            "Use it where gradients without a bound grow too old; a straggler still costs all of them its pace.",
        ],
        source: "stale synchronous parallel, Ho et al. 2013",
    },
    Method {
        name: "ps-sharded",
        title: "asynchronous parameter server, a shard on each of four nodes",
        kind: Kind::Server { bound: None, shards: 4 },
        sentences: [
            "The first four nodes hold a quarter of the parameters each; workers push to and pull from all of them.",
            "The load of one server's uplink is spread over four.",
            "No worker waits for another one, but for the slowest of four servers.",
            "Use it where one server's line is the limit; when any of the four dies everything stands still.",
        ],
        source: "Li et al. 2014",
    },
    Method {
        name: "diloco",
        title: "parameters averaged every 15 steps, outer Nesterov momentum",
        kind: Kind::Diloco(Shape::Ring),
        sentences: [
            "Each node takes 15 steps by itself; then all parameters are averaged round a ring, and an outer Nesterov step follows.",
            "Each node sends what a ring sends, but only every 15th step.",
            "Everybody waits for the slowest node, once a round.",
            "Use it where links are slow and nodes alike and reliable; one dead node holds up a round.",
        ],
        source: "Douillard et al., arXiv 2311.08105",
    },
    Method {
        name: "diloco-star",
        title: "DiLoCo through one aggregator",
        kind: Kind::Diloco(Shape::Star),
        sentences: [
            "As DiLoCo, but parameters are summed by the first node, which sends the sum back.",
            "The first node sends N-1 times the parameters every 15th step, the others once.",
            "Everybody waits for the slowest node and the first node's uplink, once a round.",
            "Use it for few nodes with one good line among them.",
        ],
        source: "Douillard et al., arXiv 2311.08105",
    },
    Method {
        name: "noloco",
        title: "random pairs every 15 steps, modified Nesterov momentum",
        kind: Kind::Noloco,
        sentences: [
            "Each node takes 15 steps by itself; then random pairs exchange slow and fast weights and take a modified Nesterov step.",
            "Each node sends the parameters twice every 15th step, however many nodes there are.",
            "A node waits for its partner of the round alone, so slow nodes hold up few others.",
            "Use it where an average of all nodes at once takes too long.",
        ],
        source: "Kolehmainen et al., arXiv 2506.10911",
    },
    Method {
        name: "ad-psgd",
        title: "asynchronous gossip at full precision",
        kind: Kind::AdPsgd,
        sentences: [
            "A node that has no exchange under way sends its model to a random other one after a step; both move half way.",
            "Each model takes four bytes a parameter each way, as often as the link allows.",
            "Nobody waits: steps go on while models travel.",
            "Use it on fast links with unlike nodes.",
        ],
        source: "Lian et al. 2018, arXiv 1710.06952",
    },
    Method {
        name: "alone",
        title: "nobody talks to anybody",
        kind: Kind::Alone,
        sentences: [
            "Each node trains its own model on its own share of the data.",
            "Nothing is sent.",
            "Nobody waits.",
            "It is what every other method has to beat.",
        ],
        source: "-",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_default_ones_exist() {
        for method in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == method.name).count(), 1, "{}", method.name);
            assert!(method.sentences.iter().all(|sentence| sentence.ends_with('.')), "{}", method.name);
        }
        assert!(Method::DEFAULT.iter().all(|name| Method::named(name).is_some()));
    }
}
