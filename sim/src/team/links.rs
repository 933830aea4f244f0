//! Connections between a captain and its helpers: bytes take time, messages may overtake each other, come twice or vanish.

use std::time::Duration;

use murmur_protocol::Time;
use murmur_protocol::team::Packet;

use super::plan::MachinePlan;

/// On the wire: a stream is a kibibyte whatever its number has.
fn bytes(packet: &Packet) -> f64 {
    match packet {
        Packet::Message(_) => 64.0,
        Packet::Frame(_) => STREAM_BYTES as f64,
        Packet::State(_, payload) => 64.0 + 16.0 * payload.len() as f64,
    }
}

/// Messages, streams and states do not wait for each other: each has its own order.
fn channel(packet: &Packet) -> usize {
    match packet {
        Packet::Message(_) => 0,
        Packet::Frame(_) => 1,
        Packet::State(..) => 2,
    }
}

/// Bytes that a stream takes on the wire.
pub(crate) const STREAM_BYTES: u64 = 1024;

/// One machine's end of the network.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    sends_until: Time,
    receives_until: Time,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToCaptain,
    ToHelper,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Links {
    captain: Port,
    captain_rate: f64,
    helpers: Vec<Link>,
    next_connection: u64,
}

#[derive(Debug)]
struct Link {
    port: Port,
    rate: f64,
    latency: Duration,
    /// The connection that there is.
    connection: Option<u64>,
    /// When the last packet of each way and channel arrives: those behind it come later.
    last: [[Time; 3]; 2],
    /// Until when all vanishes.
    swallows_until: Time,
    /// Some that went over this connection, to come once more.
    remembered: [Vec<Packet>; 2],
}

/// Packets of a connection that may come once more.
const REMEMBERED: usize = 16;

impl Links {
    pub(crate) fn new(captain: &MachinePlan, helpers: &[MachinePlan]) -> Links {
        let link = |machine: &MachinePlan| Link {
            port: Port::default(),
            rate: machine.rate,
            latency: machine.latency,
            connection: None,
            last: Default::default(),
            swallows_until: Time::ZERO,
            remembered: Default::default(),
        };
        let helpers = helpers.iter().map(link).collect();
        Links { captain: Port::default(), captain_rate: captain.rate, helpers, next_connection: 0 }
    }

    pub(crate) fn connect(&mut self, helper: usize) -> u64 {
        self.next_connection += 1;
        let link = &mut self.helpers[helper];
        link.connection = Some(self.next_connection);
        link.remembered = Default::default();
        self.next_connection
    }

    pub(crate) fn disconnect(&mut self, helper: usize) {
        self.helpers[helper].connection = None;
    }

    pub(crate) fn connection(&self, helper: usize) -> Option<u64> {
        self.helpers[helper].connection
    }

    pub(crate) fn latency(&self, helper: usize) -> Duration {
        self.helpers[helper].latency
    }

    pub(crate) fn swallow(&mut self, helper: usize, until: Time) {
        self.helpers[helper].swallows_until = until;
    }

    /// One of the packets that went this way over the connection there is.
    pub(crate) fn remembered(&self, helper: usize, way: Way, number: usize) -> Option<Packet> {
        let remembered = &self.helpers[helper].remembered[way as usize];
        (!remembered.is_empty()).then(|| remembered[number % remembered.len()].clone())
    }

    /// Sends a packet; when it arrives, or `None` where it never does. Late by so much beyond its turn, it may overtake others.
    pub(crate) fn send(
        &mut self,
        now: Time,
        helper: usize,
        way: Way,
        packet: &Packet,
        late: Option<Duration>,
    ) -> Option<Time> {
        let link = &mut self.helpers[helper];
        link.connection?;
        let (sender, receiver, rates) = match way {
            Way::ToCaptain => (&mut link.port, &mut self.captain, (link.rate, self.captain_rate)),
            Way::ToHelper => (&mut self.captain, &mut link.port, (self.captain_rate, link.rate)),
        };
        let seconds = |rate: f64| Duration::from_secs_f64(bytes(packet) / rate);
        let begin = now.max(sender.sends_until);
        sender.sends_until = begin + seconds(rates.0);
        // The receiver takes in while the sender sends, from several at once; the slower one decides.
        receiver.receives_until = now.max(receiver.receives_until) + seconds(rates.1);
        let received = receiver.receives_until.max(sender.sends_until);
        if now < link.swallows_until {
            return None;
        }
        let remembered = &mut link.remembered[way as usize];
        if remembered.len() == REMEMBERED {
            remembered.remove(0);
        }
        remembered.push(packet.clone());
        let arrives = received + link.latency;
        let last = &mut link.last[way as usize][channel(packet)];
        match late {
            Some(late) => Some(arrives + late),
            None => {
                *last = arrives.max(*last);
                Some(*last)
            }
        }
    }
}
