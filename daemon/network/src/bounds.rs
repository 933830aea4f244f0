//! Every bound of this crate, in one place, each with its reason.
//!
//! Limits that depend on the model's size are given by the caller in
//! [`NetworkConfig`](crate::NetworkConfig). Where no source is named, a number is a guess that errs on the generous side.

use std::time::Duration;

use murmur_protocol::bounds::{ADDRESSES_TOLD_MAX, STATE_PARTS_ON_THEIR_WAY_MAX, STATE_PARTS_SENT_MAX};

/// Orders that may wait for the swarm task: a burst of the core's effects is a few per peer.
pub(crate) const ORDERS_MAX: usize = 256;

/// Events of the swarm task itself (failed dials, addresses, refused transfers) that may wait for the core. While this
/// many less [`OUTBOX_RESERVE`] wait, no order is taken, so the orders' queue fills and the core is told.
pub(crate) const OUTBOX_EVENTS_MAX: usize = 512;

/// Places in that queue which orders leave free: one for each dial under way and each connection that may turn out to be
/// one too many, and some for addresses.
pub(crate) const OUTBOX_RESERVE: usize = DIALS_MAX + CONNECTIONS_MAX as usize + 32;

/// Orders that may wait for one peer's task.
pub(crate) const MEMBER_ORDERS_MAX: usize = 64;

/// Control messages that may wait to be written to one connection. Beyond it they are dropped: the core repeats what
/// matters.
pub(crate) const OUTGOING_MESSAGES_MAX: usize = 64;

/// Dials under way at once: the core starts a few per second, each lasts eight seconds at most.
pub(crate) const DIALS_MAX: usize = 64;

/// Dials in a burst that libp2p makes of itself, for lookups, probes and hole punches: a lookup visits some twenty nodes,
/// each with up to four addresses.
pub(crate) const UNASKED_DIALS_MAX: u32 = 128;

/// In the long run there is one more this often: a lookup a minute.
pub(crate) const UNASKED_DIAL_PERIOD: Duration = Duration::from_millis(500);

/// Of them, for peers that want to be tried: half, and a quarter in the long run.
pub(crate) const TRIES_MAX: u32 = UNASKED_DIALS_MAX / 2;
pub(crate) const TRY_PERIOD: Duration = Duration::from_secs(2);

/// Where there is none left, nobody is offered one for this long, by which there are fifteen: all who are connected hear of it.
pub(crate) const TRIES_PAUSE: Duration = Duration::from_secs(30);

/// Of all, to one host and port: three attempts to punch a hole, over two transports.
pub(crate) const UNASKED_TO_PLACE_MAX: u32 = 6;

/// In the long run there is one more to a host and port this often: a hole is tried anew every half minute at most.
pub(crate) const UNASKED_PLACE_PERIOD: Duration = Duration::from_secs(10);

/// Hosts and ports that are counted: those of a burst, and of the minute in which their count is made good.
pub(crate) const UNASKED_PLACES_MAX: usize = 256;

/// Addresses that wait to be dialed because this node wants it: those of all dials under way.
pub(crate) const VOUCHED_MAX: usize = DIALS_MAX * DIAL_ADDRESSES_MAX;

/// How long they may wait; libp2p dials them at once, but for a relay to which it is already connected.
pub(crate) const VOUCHED_FOR: Duration = Duration::from_secs(8);

/// Addresses tried in one dial: the core remembers fewer for a peer.
pub(crate) const DIAL_ADDRESSES_MAX: usize = 16;

/// Connections to one peer: two from a simultaneous dial, and room for a probe that dials back, or for two more circuits
/// and the two connections that each side makes in a hole punch over QUIC.
pub(crate) const CONNECTIONS_PER_PEER_MAX: u32 = 6;

/// Established connections in all; a gossip view holds some tens of peers.
pub(crate) const CONNECTIONS_MAX: u32 = 256;

/// Connections without a handshake, under way or for something else such as a lookup. With one more, one that others
/// opened is closed, of the network that has opened the most, so that they leave room for members.
pub(crate) const HANDSHAKES_MAX: usize = CONNECTIONS_MAX as usize / 2;

/// Connections of others that are still negotiating. With one more, one of the network that has the most gives way.
pub(crate) const NEGOTIATING_MAX: usize = 224;

/// Those of one host: a computing centre behind one address may come at once, and fourteen hosts have room.
pub(crate) const NEGOTIATING_PER_HOST_MAX: usize = 16;

/// And those of one network.
pub(crate) const NEGOTIATING_PER_NETWORK_MAX: usize = 64;

/// Above that newcomers are denied: the swarm has not taken notice yet of so many that gave way.
pub(crate) const PENDING_INBOUND_MAX: u32 = 256;

/// Established connections that one host opened to this node, half of all: all nodes of a swarm may run on one machine, and
/// each has some tens of connections.
pub(crate) const INBOUND_PER_HOST_MAX: usize = CONNECTIONS_MAX as usize / 2;

/// And those of one network.
pub(crate) const INBOUND_PER_NETWORK_MAX: usize = CONNECTIONS_MAX as usize * 3 / 4;

/// Members of one host that dialed this node and have not proven themselves, half of the places of the core: with all of them, that
/// host would be the swarm for this node. Those who come through relays count as one host. Whoever has fewer than the eight members
/// that it wants keeps looking, so that no swarm behind one address falls apart.
pub(crate) const MEMBERS_PER_HOST_MAX: usize = murmur_protocol::bounds::CONNECTIONS_MAX / 2;

/// And those of one network on the internet. A private network is its owner's, and may be all of a synchronous group.
pub(crate) const MEMBERS_PER_NETWORK_MAX: usize = murmur_protocol::bounds::CONNECTIONS_MAX * 3 / 4;

/// While so many members are connected, a host has no place beyond those, however well its machines have proven themselves: a
/// computing centre behind one address leaves a quarter to others.
pub(crate) const MEMBERS_WITH_HOST_MAX: usize = murmur_protocol::bounds::CONNECTIONS_MAX * 3 / 4;

/// Peers for whom there is no place and that still read whom to turn to, a second each; more are hung up on. As many as the core
/// turns away at once.
pub(crate) const TURNED_AWAY_MAX: usize = murmur_protocol::bounds::LOBBY_MAX;

/// Streams of a connection that are still negotiating their protocol.
pub(crate) const NEGOTIATING_STREAMS_MAX: usize = 32;

/// Streams of one connection: control, ping, and transfers both ways with room to spare. yamux ends a connection on
/// which the peer opens more.
pub(crate) const STREAMS_PER_CONNECTION_MAX: usize = 64;

/// Control streams that a connection's owner has not taken yet: there is one in a connection's life.
pub(crate) const WAITING_CONTROL_STREAMS_MAX: usize = 1;

/// Transfers that a peer opened and that wait for their turn on one connection: twice what an honest peer sends in all.
pub(crate) const WAITING_BULK_STREAMS_MAX: usize = 16;

/// Questions about this node's life that a peer opened and that are not answered yet on one connection: it asks three,
/// one after the other.
pub(crate) const WAITING_LIFE_STREAMS_MAX: usize = 2;

/// Requests for shards that a peer opened and that nobody has taken yet on one connection: they are taken at once.
pub(crate) const WAITING_DATA_STREAMS_MAX: usize = 4;

/// Requests for shards that are answered at once on one connection: shards being sent, and a question beside them.
pub(crate) const DATA_REQUESTS_PER_CONNECTION_MAX: usize = 4;

/// Shards sent to one peer at once; it asks for as many.
pub const DATA_SENDING_PER_PEER_MAX: usize = 2;

/// Shards sent at once in all: four joiners are fed at the same time, and exchanges still get through.
pub(crate) const DATA_SENDING_MAX: usize = 8;

/// While others wait, a shard is sent for this long, and goes on when its peer asks again. At the least rate, which a slow line may
/// have, one of 64 MiB would keep its place for eleven hours. A guess: a thousand times as long as asking again takes.
pub(crate) const DATA_TURN: Duration = Duration::from_secs(60);

/// Bytes of a shard between two looks at the clock: small, so that a capped uplink shared by all that it may serve is not
/// taken for one that has stopped.
pub(crate) const DATA_CHUNK_BYTES: usize = 16 * 1024;

/// The longest request for a shard or answer to one, in bytes; ours take up to 30.
pub(crate) const SHARD_WORDS_BYTES_MAX: usize = 64;

/// A shard that does not move for this long is asked for elsewhere. Shorter than [`PROGRESS_TIMEOUT`], since nothing is
/// lost by it: the next peer goes on where this one stopped. With [`DATA_CHUNK_BYTES`] a minimum rate of 1.6 KiB/s.
pub(crate) const DATA_PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// From the moment that the core hears of a peer until it can be asked for shards; it takes microseconds, on a busy
/// machine milliseconds.
pub(crate) const CONNECTION_READY_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests for outbound streams that wait for a connection's handler.
pub(crate) const OPEN_REQUESTS_MAX: usize = 16;

/// Transfers received from one peer at once: its steps and codes, or parts of the model, of which one is on its way, one is
/// being confirmed, and one follows.
pub(crate) const INBOUND_TRANSFERS_PER_PEER_MAX: usize = STATE_PARTS_SENT_MAX;

/// Transfers sent to one peer at once: what the other side receives at once, so that none waits there with its clock
/// running.
pub(crate) const OUTGOING_TRANSFERS_PER_PEER_MAX: usize = INBOUND_TRANSFERS_PER_PEER_MAX;

/// Transfers of exchanges sent at once in all: an uplink shared by more finishes none in time.
pub(crate) const OUTGOING_TRANSFERS_MAX: usize = 8;

/// Of those, for peers of one network of the internet that have not proven themselves: three exchanges, both ways, are as many as a
/// node has at once. At the least rate a transfer of 12 Mi values keeps its place for two hours.
pub(crate) const OUTGOING_TRANSFERS_PER_NETWORK_MAX: usize = OUTGOING_TRANSFERS_MAX * 3 / 4;

/// Places beside them for peers that have taken a whole transfer in time: an exchange each, both ways.
pub(crate) const OUTGOING_TRANSFERS_RESERVED: usize = 4;

/// Parts of the model sent at once in all, beside them, to all joiners: those that read slowly keep no exchange from its place.
pub(crate) const OUTGOING_PARTS_MAX: usize = STATE_PARTS_ON_THEIR_WAY_MAX;

/// The longest transfer header, in bytes; ours take up to 60.
pub(crate) const HEADER_BYTES_MAX: usize = 4 * 1024;

/// Payload bytes read or written at once. With yamux's header of 12 bytes they fill one record of TLS. Between 16 KiB and 4 MiB the
/// size makes no difference to the speed (measured).
pub(crate) const CHUNK_BYTES: usize = 16 * 1024 - 12;

/// A payload's digest takes so many bytes at once.
pub(crate) const DIGEST_STEP_BYTES: usize = 128 * 1024;

/// A payload's first bytes, at least so many, may move when its buffer grows; after them it has all addresses that it needs.
pub(crate) const MOVED_BYTES_MAX: usize = 1024 * 1024;

/// What waits on the way to a peer is to be carried in this time: pings and messages wait behind it.
pub(crate) const FLOW_DELAY: Duration = Duration::from_secs(1);

/// Where confirmations take longer than this, too much waits there. Twice as long, because a part of it is no queue: on a busy
/// machine each of them waits some tenths of a second for a processor.
pub(crate) const FLOW_DELAY_MAX: Duration = Duration::from_secs(2);

/// The bytes on their way to a peer, before anything is known of its line: about as many as TCP begins with (RFC 6928), two
/// seconds at 64 kbit/s. The queues of such lines drop more, and TCP then waits for seconds. With 8 KiB, and 4 KiB at the least,
/// a stream is opened only after the one before, and who dawdles is not noticed.
pub(crate) const FLOW_WINDOW_START: usize = 16 * 1024;

/// The least: two seconds at 64 kbit/s.
pub(crate) const FLOW_WINDOW_MIN: usize = 16 * 1024;

/// The most: what 1 Gbit/s carries in a round trip of 130 ms.
pub(crate) const FLOW_WINDOW_MAX: usize = 16 << 20;

/// Below this window, 67 Mbit/s, the values of a model are packed. That takes about a third of a second of processor time for 100 MB on
/// either side, and less than a fifth of the line's time.
pub(crate) const PACKED_BELOW_WINDOW: usize = 8 << 20;

/// A receiver tells what has come after so many bytes at the latest,
pub(crate) const CONFIRM_BYTES_MAX: usize = 256 * 1024;

/// or, after so many, this long after its last word: each costs some hundred bytes on the way back, 2 % where both
/// ways are slow,
pub(crate) const CONFIRM_BYTES: usize = 8 * 1024;
pub(crate) const CONFIRM_PERIOD: Duration = Duration::from_millis(5);

/// or after this long.
pub(crate) const CONFIRM_PERIOD_MAX: Duration = Duration::from_millis(500);

/// Bytes a second that a transfer has to move in the long run, after [`PROGRESS_TIMEOUT`] and without the waits of this
/// side: what four who share a link of 64 kbit/s have each.
pub(crate) const TRANSFER_RATE_MIN: f64 = 1800.0;

/// Nor may it be so many times as slow as the peer was before (a guess: no line becomes that slow from one transfer to the
/// next, and on a busy machine not for that long).
pub(crate) const SLOWEST_OF_LEARNED: f64 = 256.0;

/// How much of a cap's rate may be drawn at once after a pause: a hundredth of the ten seconds over which it is held.
pub(crate) const CAP_BURST: Duration = Duration::from_millis(100);

/// Control bytes read from one connection in a second, in the long run: a busy honest peer sends some kilobytes. Beyond
/// it nothing is read for a while, so that a flood fills the peer's own queue and not the core's.
pub(crate) const CONTROL_BYTES_PER_SECOND: u64 = 64 * 1024;

/// How much of that may come at once.
pub(crate) const CONTROL_BURST: Duration = Duration::from_secs(4);

/// What a control message counts for beside its bytes: each is work for the core, however short.
pub(crate) const CONTROL_MESSAGE_COST: usize = 128;

/// A transfer of so many bytes tells how fast a peer is; a shorter one tells of the way's length.
pub(crate) const LEARNED_FROM_BYTES: u64 = 256 * 1024;

/// A transfer that is not in time is the peer's fault where something else came from it this short a time ago, half of
/// [`PROGRESS_TIMEOUT`]: its line works, and it is not asleep. It answers a ping in each [`PING_INTERVAL`].
pub(crate) const STALL_HEARD_WITHIN: Duration = Duration::from_secs(10);

/// Unit of the inbound byte budget, so that a semaphore of 32-bit requests can count it.
pub(crate) const BUDGET_UNIT_BYTES: u64 = 1024;

/// What a payload holds at first; then it doubles. Of whole units: the parts of a largest payload, each rounded up, would not fit.
pub(crate) const ROOM_START_BYTES: usize = 16 * BUDGET_UNIT_BYTES as usize;

/// Opening a connection, encryption, multiplexing and the gate of a closed run included. Less than the ten seconds after
/// which libp2p gives up a probe of reachability: a NAT answers a dial with silence, and whoever is asked to try one has
/// to say in time that nothing came back, or nodes behind NATs never learn where they are.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

/// So long a dial over QUIC waits where its host is dialed over TCP as well: four round trips, those of TCP's handshakes, of a line
/// across a continent.
pub(crate) const TCP_HEAD_START: Duration = Duration::from_millis(500);

/// Dials of one peer's addresses begin within this time.
pub(crate) const ADDRESSES_WITHIN: Duration = Duration::from_millis(10);

/// Opening a stream on an established connection.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// From an established connection to the end of the handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// From an opened stream to the header of its transfer, or to its request for a shard. Either waits behind what is on its way, and
/// on a line of 64 kbit/s whose queue drops some of that TCP is silent for three seconds, then six, then twelve.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A transfer, or a control message being written, that does not move for this long is given up. Not a total: slow
/// links are welcome.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);

/// A transfer for which there is no memory for this long is dropped, before its sender takes this node for one that keeps it
/// waiting.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last word on a connection may take to be read by the other side.
pub(crate) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// From the order to close everything to the end, whatever peers do.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a listener may take to report its first address; it takes milliseconds.
pub(crate) const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a listener on all interfaces may take from one to the next; it takes less than a millisecond.
pub(crate) const LISTEN_SETTLE_TIMEOUT: Duration = Duration::from_millis(50);

/// A connection on which nothing is open is closed after this long; the handshake's own limit comes first.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(12);

/// Time between pings, and before the first.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(8);

/// A ping without an answer for this long has failed. libp2p tells of the second failure in a row, and that ping has a stream of its
/// own, whose negotiation has libp2p's 10 s: a peer that dies without a word is noticed after 34 s at most.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(8);

/// A connected peer was heard this long ago at most, in whole seconds: then two pings have failed.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(34);

/// Probes, of this node's addresses and by it of others', begin this long after it last asked for a model or got a part of
/// one: parts take two seconds, and on a slow line that drops packets TCP is silent for three seconds, then six, then twelve.
pub(crate) const PROBES_HELD: Duration = Duration::from_secs(30);

/// And this long after the start: by then a node knows whether it is given a model.
pub(crate) const PROBES_HELD_AT_START: Duration = Duration::from_secs(10);

/// How often the driver looks after what takes its time: lookups, reservations, being alone.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A node with fewer connected members than this looks for others.
pub(crate) const FEW_PEERS: usize = 4;

/// Pause between two lookups of a node with few peers, more or less by a quarter: one costs a message to each of about
/// twenty nodes.
pub(crate) const LOOKUP_PERIOD: Duration = Duration::from_secs(60);

/// Pause between the first node heard of and the first lookup: others that connect at the same time are then asked too.
pub(crate) const FIRST_LOOKUP_DELAY: Duration = Duration::from_secs(1);

/// Addresses that a peer tells of itself at once and that are looked at: a machine has a few, times two transports. Those of
/// one message would fill it a hundred times over.
pub(crate) const TOLD_OF_SELF_MAX: usize = 64;

/// Those of them that are kept, and told to others. The longest leads through a relay and takes 109 bytes, without the peer at
/// its end 68: twenty nodes and twenty announcements with four each fit into the 16 KiB of an answer of the run's table, and who
/// asks reads no longer one.
pub(crate) const TABLE_ADDRESSES_MAX: usize = ADDRESSES_TOLD_MAX;

/// How often in a row a peer is heard on one connection that says what it is and where: as it starts it tells of each address,
/// and of each protocol that it begins to offer.
pub(crate) const IDENTIFIED_MAX: u32 = 16;

/// In the long run it is heard once more this often: what has changed is told with the next ping.
pub(crate) const IDENTIFIED_PERIOD: Duration = PING_INTERVAL;

/// Nodes that somebody who looks for a run asks at once: each costs a connection.
pub(crate) const SEARCH_ASKED_AT_ONCE: usize = 8;

/// Nodes that it asks in all: a local network with more murmur nodes of other runs is a computing centre.
pub(crate) const SEARCH_ASKED_MAX: usize = 256;

/// Addresses of one of them that it tries: two transports on two networks.
pub(crate) const SEARCH_ADDRESSES_MAX: usize = 4;

/// How often it asks the run's table, and the addresses of its ticket, again: as long as one may take to answer.
pub(crate) const SEARCH_LOOK_PERIOD: Duration = Duration::from_secs(10);

/// A lookup ends after this, finished or not.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a node walks through the run's table to keep its own part of it fresh. libp2p's five minutes would make
/// many nodes on one machine dial each other all the time.
pub(crate) const TABLE_REFRESH_PERIOD: Duration = Duration::from_secs(30 * 60);

/// How often a node says anew that it takes part in the run.
pub(crate) const ANNOUNCE_PERIOD: Duration = Duration::from_secs(60 * 60);

/// How long others believe it: three announcements may be lost.
pub(crate) const ANNOUNCEMENT_KEPT: Duration = Duration::from_secs(4 * 60 * 60);

/// Members that a node of the table remembers as taking part, itself among them: Kademlia's k; more are not needed to find the
/// swarm. With one more, one of the host or network with the most gives way.
pub(crate) const ANNOUNCEMENTS_MAX: usize = 20;

/// Peers that turned out to take part in another run and are not told to the core again.
pub(crate) const STRANGERS_MAX: usize = 64;

/// How long they are not.
pub(crate) const STRANGERS_KEPT: Duration = Duration::from_secs(60 * 60);

/// Addresses at which peers see this node that are tried in a while: it has a few, times two transports.
pub(crate) const CANDIDATES_MAX: usize = 8;

/// Of those, what one host tells of: an address, over two transports.
pub(crate) const CANDIDATES_PER_HOST_MAX: usize = CANDIDATES_MAX / 4;

/// How long that while is: somebody with a hundred hosts costs this node 16 probes of 100 kB an hour, and libp2p some megabytes of
/// memory a year. A machine that moves to another network is tried there after it.
pub(crate) const CANDIDATE_KEPT: Duration = Duration::from_secs(30 * 60);

/// External addresses kept of each kind, confirmed or only seen by peers: a machine has a few, times two transports.
pub(crate) const EXTERNAL_ADDRESSES_MAX: usize = 8;

/// Connected peers remembered as offering to relay.
pub(crate) const RELAYS_KNOWN_MAX: usize = 16;

/// Relays at which a node behind a NAT reserves a place: one may vanish.
pub(crate) const RESERVATIONS_WANTED: usize = 2;

/// Pause after a reservation that came to nothing.
pub(crate) const RESERVATION_PAUSE: Duration = Duration::from_secs(30);

/// Peers that may hold a reservation with this node.
pub(crate) const RELAY_RESERVATIONS_MAX: usize = 32;

/// Circuits through this node at once. libp2p's default.
pub(crate) const RELAY_CIRCUITS_MAX: usize = 16;

/// Bytes through one circuit, each way: handshakes, hole punching and some minutes of messages. libp2p's default is half.
pub(crate) const RELAY_CIRCUIT_BYTES_MAX: u64 = 256 * 1024;

/// How long a circuit may last; libp2p's default.
pub(crate) const RELAY_CIRCUIT_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// A connection without a handshake, that only a lookup, a probe or a circuit uses, is closed after this: longer than a
/// circuit lasts.
pub(crate) const AUXILIARY_TIMEOUT: Duration = Duration::from_secs(3 * 60);

/// How long a relayed link outlives the first direct one: the other side must have finished the handshake, or it would
/// see its only link close.
pub(crate) const RELAY_LINGER: Duration = Duration::from_secs(2);

/// How long a circuit stays the only way to a peer before another hole is tried; libp2p's own three attempts take up to
/// 24 s. Later pauses are longer.
pub(crate) const HOLE_PUNCH_PAUSE: Duration = Duration::from_secs(30);

/// The same where a direct way was there and failed, such as by a handshake that took too long: the next may do.
pub(crate) const LOST_WAY_PAUSE: Duration = Duration::from_secs(5);

/// A node that has members dials one that it finds on the local network after this: longer than [`DIAL_TIMEOUT`], since that
/// one finds it at the same moment, and over a line of 64 kbit/s a second handshake with each takes seconds from the model.
pub(crate) const NEIGHBOUR_WAIT: Duration = Duration::from_secs(10);

/// Findings on the local network that wait so long: each is of one query.
pub(crate) const NEIGHBOURS_WAITING_MAX: usize = 64;

/// And those on their way to the swarm task, which takes them at once.
#[cfg(feature = "mdns")]
pub(crate) const NEIGHBOURS_FOUND_MAX: usize = 64;

/// Places on the local network that are known, of whatever speaks libp2p's mDNS. With one more it is not watched for a while. As
/// many as somebody who looks for a run tries.
#[cfg(feature = "mdns")]
pub(crate) const NEIGHBOURS_KNOWN_MAX: usize = SEARCH_ASKED_MAX * SEARCH_ADDRESSES_MAX;

/// For how long not: whoever floods it begins anew after that, and each time a thread is busy for a moment (a guess).
#[cfg(feature = "mdns")]
pub(crate) const LOCAL_NETWORK_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Time without any connected member after which a node is called isolated.
pub(crate) const ISOLATED_AFTER: Duration = Duration::from_secs(60);

/// Reasons of failed dials that are kept to explain an isolation.
pub(crate) const DIAL_ERRORS_KEPT: usize = 3;
