//! How a network and single links of it behave: plain values of a scenario.

use std::time::Duration;

use murmur_protocol::random::{Generator, RngExt};

/// No packet is faster than this share of the median: a way has a length. A guess.
const FLOOR_SHARE: f64 = 0.5;

/// Standard deviations to which the draws reach: four uniform ones are summed, see [`LatencySpec::draw`].
const DEVIATIONS_MAX: f64 = 3.464_101_615_137_754_6;

/// How the network behaves. Shares are probabilities, 0 to 1. What a host's line carries is the host's own: see
/// [`NodePlan`](crate::NodePlan).
#[derive(Clone, Debug)]
pub struct NetworkSpec {
    /// Time of a packet's way.
    pub latency: LatencySpec,
    /// Share of control messages that vanish.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplication: f64,
    /// Share that is held back, and so overtaken.
    pub reordering: f64,
    /// The longest that one is held back.
    pub held_back_max: Duration,
    /// Share of payloads that their sender believes lost; half of those arrived.
    pub transfer_failure: f64,
    /// Share of dials that come to nothing.
    pub dial_failure: f64,
    /// Share of dials that get through and whose greeting is not answered.
    pub handshake_failure: f64,
    /// Share of messages and payloads with which their link breaks.
    pub breakage: f64,
    /// Shortest and longest time until an end notices that a link is gone: that the other process has been killed, or has closed it.
    /// By TCP that takes a packet's way, by QUIC up to 10 s; where the machine is gone with the process, up to 34 s.
    pub detection: (Duration, Duration),
    /// Whether a downlink carries a transfer as soon as it has the time for all of it. Else it carries transfers in the order in
    /// which they were given to their senders' uplinks, and is idle before one that waits there for long. A real line has no such
    /// order: scenario files leave this off, so that transfers are late rather than early and a seed's run stays the same.
    pub fills_gaps: bool,
}

/// A log-normal time, as measured ways through the Internet have, and never below half its median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySpec {
    /// Half of all packets take longer.
    pub median: Duration,
    /// Standard deviation of the logarithm: 0 for always the median, 0.5 for a home line, 1 for a very bad one.
    pub spread: f64,
}

/// One direction between two hosts, on top of what the [`NetworkSpec`] does to all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Added to every packet's way.
    pub delay: Duration,
    /// Bytes of payloads a second; `f64::INFINITY` where only the lines of the hosts limit them.
    pub bytes_per_second: f64,
    /// Share of control messages that vanish.
    pub loss: f64,
    /// Nothing gets through.
    pub is_dead: bool,
}

impl NetworkSpec {
    /// A home network on which nothing is lost.
    pub fn calm() -> NetworkSpec {
        NetworkSpec {
            latency: LatencySpec { median: Duration::from_millis(15), spread: 0.5 },
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            held_back_max: Duration::ZERO,
            transfer_failure: 0.0,
            dial_failure: 0.0,
            handshake_failure: 0.0,
            breakage: 0.0,
            detection: (Duration::from_millis(10), Duration::from_millis(500)),
            fills_gaps: false,
        }
    }

    /// Much worse than any network that people put up with, on every count.
    pub fn hostile() -> NetworkSpec {
        NetworkSpec {
            latency: LatencySpec { median: Duration::from_millis(300), spread: 0.8 },
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            held_back_max: Duration::from_secs(8),
            transfer_failure: 0.1,
            dial_failure: 0.2,
            handshake_failure: 0.05,
            breakage: 0.02,
            detection: (Duration::from_millis(10), Duration::from_secs(34)),
            fills_gaps: false,
        }
    }
}

impl LatencySpec {
    /// The same on every machine: from additions, multiplications and one division alone.
    pub(crate) fn draw(&self, random: &mut Generator) -> Duration {
        // The sum of four uniform numbers, from four times 16 bits, is normal enough: variance 4/12.
        let bits: u64 = random.random();
        let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
        let deviations = (sum as f64 / 65_535.0 - 2.0) * (DEVIATIONS_MAX / 2.0);
        self.median.mul_f64(exponential(self.spread * deviations).max(FLOOR_SHARE))
    }

    /// The longest that [`draw`](Self::draw) can give.
    pub(crate) fn longest(&self) -> Duration {
        self.median.mul_f64(exponential(self.spread * DEVIATIONS_MAX))
    }
}

impl LinkSpec {
    /// As if there were only the network.
    pub const WHOLE: LinkSpec =
        LinkSpec { delay: Duration::ZERO, bytes_per_second: f64::INFINITY, loss: 0.0, is_dead: false };

    /// Late, and narrow.
    pub fn slow(delay: Duration, bytes_per_second: f64) -> LinkSpec {
        LinkSpec { delay, bytes_per_second, ..LinkSpec::WHOLE }
    }

    /// One that loses this share of control messages.
    pub fn lossy(loss: f64) -> LinkSpec {
        LinkSpec { loss, ..LinkSpec::WHOLE }
    }

    /// One that lets nothing through.
    pub fn dead() -> LinkSpec {
        LinkSpec { is_dead: true, ..LinkSpec::WHOLE }
    }
}

/// eˣ as (1 + x/1024)¹⁰²⁴, good to half a percent for |x| ≤ 3: the library's own differs between machines.
fn exponential(x: f64) -> f64 {
    (0..10).fold(1.0 + x / 1024.0, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    use murmur_protocol::random::stream;

    use super::*;

    #[test]
    fn latencies_are_log_normal_with_a_floor() {
        let spec = LatencySpec { median: Duration::from_millis(100), spread: 0.5 };
        let mut random = stream(1, "test", &[]);
        let mut draws: Vec<Duration> = (0..10_001).map(|_| spec.draw(&mut random)).collect();
        draws.sort();
        let at = |share: f64| draws[(share * 10_000.0) as usize].as_secs_f64();
        assert!((at(0.5) / 0.1 - 1.0).abs() < 0.03, "median {}", at(0.5));
        // One standard deviation up: e^0.5.
        assert!((at(0.841) / 0.1649 - 1.0).abs() < 0.05, "{}", at(0.841));
        assert!(draws[0] >= spec.median / 2 && draws[10_000] <= spec.longest(), "{:?}", draws[0]);
    }
}
