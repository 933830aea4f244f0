//! Bounds and periods of membership, each with its reason.
//!
//! Views and periods follow the peer sampling service (Jelasity et al., "Gossip-based peer sampling", TOCS 2007), which
//! measures views of 30 in swarms of 10,000, and Cyclon (Voulgaris et al., JNSM 2005: views of 20 to 100, samples of 3
//! to 50 in swarms of 100,000). Where no source is named, a number is a guess.

use std::time::Duration;

/// Descriptors told in one [`Message::Shuffle`] or [`Message::Prune`]: twice what this version sends.
pub const PEERS_TOLD_MAX: usize = 16;

/// Addresses told for each peer.
pub const ADDRESSES_TOLD_MAX: usize = 4;

/// Members that a node tries to be connected to, directly: enough random partners (a random graph of degree 8 is connected and
/// mixes fast at any size), few enough keep-alives.
pub const CONNECTIONS_WANTED: usize = 8;

/// A node with more connections than this lets go of the oldest, bit by bit: room above [`CONNECTIONS_WANTED`] for those
/// who dial it. Nor does it look for direct ones beside so many: relays have few circuits, and those end within minutes, so that
/// others are tried.
pub const CONNECTIONS_SURPLUS: usize = 10;

/// Members that may be connected to a node at once; the next one is told of others and turned away.
pub const CONNECTIONS_MAX: usize = 64;

/// Members that a node remembers without being connected to them. Random pairing needs a sample of the swarm, not all
/// of it: twice the views of the papers, so that a node whose every connection fails still finds eight living members
/// when most of the swarm died within [`AGE_MAX`]. Takes about 10 KiB a node.
pub const DESCRIPTORS_MAX: usize = 64;

/// Members that a node knows in all.
pub const VIEW_MAX: usize = CONNECTIONS_MAX + DESCRIPTORS_MAX;

/// Members in a view that one teller may be the source of. Whoever tells more replaces what it told before, so that a
/// flood of invented members displaces a quarter of a view at most, and no connection.
pub const TOLD_BY_ONE_MAX: usize = DESCRIPTORS_MAX / 4;

/// Members told in one shuffle, beside the teller itself: Cyclon's usual length of 8.
pub const SHUFFLE_SAMPLE: usize = 8;

/// Members told by a node that has not settled: as many as one message may hold beside the teller.
pub const SHUFFLE_SAMPLE_YOUNG: usize = PEERS_TOLD_MAX - 1;

/// Of these, members that the teller has never met itself. With none, a swarm that was bootstrapped as a chain is still
/// far from a random graph after twenty minutes (second eigenvalue 0.84, with one 0.77, with two below 0.7); with eight,
/// what one hostile member makes up reaches 291 of 300 nodes, with four 120, with two 72.
pub const HEARSAY_TOLD_MAX: usize = 2;

/// How often a settled node shuffles with one random connected peer: two to five kilobytes a minute.
pub const SHUFFLE_PERIOD: Duration = Duration::from_secs(60);

/// The first shuffle comes after this; each further interval is a quarter longer, up to [`SHUFFLE_PERIOD`], so that a
/// young view is soon a random one.
pub const SHUFFLE_PERIOD_FIRST: Duration = Duration::from_secs(2);

/// A shuffle without a reply by then counts as a silence: twice the longest delay of a network worth using.
pub const SHUFFLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests of one peer are answered this far apart at least; what comes sooner is heard, but has no reply.
pub const SHUFFLE_REPLY_PAUSE: Duration = Duration::from_secs(1);

/// A member of whom no sign of life is younger than this is dropped from every view. Fifteen shuffles: a living member's
/// descriptor is rarely older than three.
pub const AGE_MAX: Duration = Duration::from_secs(15 * 60);

/// How old the news of a peer counts that the driver has looked up: nobody says when it was last alive. Half of
/// [`AGE_MAX`], so that it displaces nothing fresher and is forgotten soon where nobody is there.
pub const FOUND_AGE: Duration = Duration::from_secs(AGE_MAX.as_secs() / 2);

/// How often a settled node connects to a new random member, and lets go of surplus ones: a connection lasts about ten
/// minutes.
pub const ROTATION_PERIOD: Duration = Duration::from_secs(120);

/// The first rotation comes after this; each further interval is a quarter longer, up to [`ROTATION_PERIOD`]: about a
/// dozen rotations in the first ten minutes, because a swarm that was bootstrapped as a chain becomes a random graph by
/// them.
pub const ROTATION_PERIOD_FIRST: Duration = Duration::from_secs(10);

/// By then a connection through a relay has become direct, or does not: the driver's three attempts take up to 24 s.
pub const HOLE_PUNCH_TIME: Duration = Duration::from_secs(30);

/// Connections that one rotation lets go of at most; it is otherwise half of the surplus.
pub const SHED_MAX: usize = 8;

/// How long a peer that is asked to part has for hanging up itself, having read whom to turn to.
pub const PRUNE_GRACE: Duration = Duration::from_secs(3);

/// A peer that asked to part has hung up after this long, or keeps the connection: its grace, and as much for the way.
pub const PARTING_MAX: Duration = Duration::from_secs(6);

/// A peer from which a node has parted is not dialed again before this, where there is anybody else.
pub const PRUNED_BACK_OFF: Duration = Duration::from_secs(5 * 60);

/// A node that has too few connections and knows only peers from which it has parted dials those after this: the founder
/// of a crowd is everybody's oldest connection, and all part from it within the same minute.
pub const PRUNED_PAUSE: Duration = Duration::from_secs(15);

/// Peers at once that are being turned away and still read whom to turn to; more are hung up on.
pub const LOBBY_MAX: usize = 64;

/// Members lost for long that a node remembers beside its view: after a split of hours some member of the other part is
/// among them.
pub const RESERVE_MAX: usize = 32;

/// A lost member is forgotten for good after this: a weekend.
pub const RESERVE_KEPT: Duration = Duration::from_secs(48 * 3600);

/// Who says something so long after it took leave is back: its process was killed before it had hung up, and another life of it
/// came by a second connection. Words of before come within seconds, however they were held back (a guess).
pub const LEAVE_OVER_AFTER: Duration = Duration::from_secs(20);

/// Dials under way at once.
pub const DIALS_MAX: usize = 4;

/// The wait after a first failed dial; doubles with each further one.
pub const DIAL_BACK_OFF: Duration = Duration::from_secs(1);

/// The longest wait between two dials of one peer.
pub const DIAL_BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// A dial that brings neither success nor failure counts as failed after this: the driver's own limit is 10 s.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Failed dials in a row after which a peer leaves the view for the reserve: about three minutes.
pub const DIAL_FAILURES_MAX: u8 = 8;

/// Addresses dialed in a burst, those of one member together: a node that is alone tries every member of a view at once
/// where each has one address, and every fourth where they have [`ADDRESSES_TOLD_MAX`].
pub const ADDRESS_DIALS_MAX: u32 = DESCRIPTORS_MAX as u32;

/// In the long run one more address is dialed this often: eight connections are made again within a minute, and whoever
/// tells of made-up members gets no more than one packet a second sent to where it likes.
pub const ADDRESS_DIAL_PERIOD: Duration = Duration::from_secs(1);

/// Addresses remembered as those at which a dial has failed: what a view holds at most.
pub const FAILED_ADDRESSES_MAX: usize = DESCRIPTORS_MAX * ADDRESSES_TOLD_MAX;

/// A connection that ends sooner counts as a failed dial: a peer without room hangs up at once.
pub const CONNECTION_COUNTS_AFTER: Duration = Duration::from_secs(5);

/// How often a node with few peers dials its bootstrap addresses and one lost member, and one with enough peers a member lost
/// lately, in case the swarm has split.
pub const BOOTSTRAP_PERIOD: Duration = Duration::from_secs(30);

/// How often a node with enough peers dials one member lost long ago or unreachable bootstrap address: halves of a split are both
/// well connected.
pub const RETRY_PERIOD: Duration = Duration::from_secs(120);

/// A node with enough peers dials a bootstrap address that it has reached before this seldom, more or less by half: ten
/// thousand nodes may have the same one, which then sees one of them every four seconds.
pub const BOOTSTRAP_RECHECK_PERIOD: Duration = Duration::from_secs(12 * 3600);

/// How long a node is alone before it says so, and how often it repeats it.
pub const ALONE_NOTICE_PERIOD: Duration = Duration::from_secs(20);

/// After a first silence a peer is not asked for this long; doubles with each further one.
pub const SUSPICION: Duration = Duration::from_secs(10);

/// The longest that a silent peer is not asked.
pub const SUSPICION_MAX: Duration = Duration::from_secs(600);

/// Silences in a row after which a connection is dropped. On a network that loses a tenth of all messages, one question
/// in five goes unanswered, and one in 600 four times.
pub const SILENCES_MAX: u8 = 4;

/// A member that was out of reach for this long has come back, when it comes back; also sooner, where models go their own
/// way sooner.
pub const AWAY_COUNTS_AFTER: Duration = Duration::from_secs(30);

/// Peers banned at once; the ban that ends first makes room.
pub const BANS_MAX: usize = 256;

/// Peers of other runs that are remembered; as many as one local network has.
pub const FOREIGN_MAX: usize = 64;

/// How long a peer of another run is left alone: its owner may start it anew with this one. A guess.
pub const FOREIGN_KEPT: Duration = Duration::from_secs(3600);

/// Members that left on purpose and are not to be learned again from those who have not heard of it.
pub const LEAVERS_MAX: usize = 64;

/// For how long they are not: longer than [`AGE_MAX`], for who has not heard of it may have a slower clock, and have heard from the
/// leaver a little later.
pub const LEAVERS_KEPT: Duration = Duration::from_secs(AGE_MAX.as_secs() * 5 / 4);
