//! How fast the way to a helper is, and what the helper has to give: asked on a connection of its own.

use std::time::{Duration, Instant};

use murmur_network::team::{TeamLink, TeamWord};
use murmur_protocol::Payload;
use murmur_protocol::team::{Link, Offer, Packet, TeamMessage};
use murmur_training::team::{ECHO_BYTES_MAX, Word};
use tokio::time::timeout;

/// For an answer; the slowest link that is of any use takes a second for the least that is sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Small ones, of which the fastest is the way's own time: the others met something else.
const ROUND_TRIPS: usize = 5;

/// Bytes begin here and double until they take [`MEASURED`].
const BYTES_MIN: usize = 1 << 14;

/// Long against a round trip on a local network.
const MEASURED: Duration = Duration::from_millis(250);

/// What is known of a helper before it has computed.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) offer: Offer,
    /// Its link, with the rates from here to there (`down`) and back (`up`), and the seconds of one way.
    pub(crate) link: Link,
}

impl Way {
    /// What a helper offers with the rates of its link in it, as far as it does not allow less itself.
    pub(crate) fn bounded(link: &Link, offer: Offer) -> Offer {
        let least = |offered: u64, measured: f64| match offered {
            0 => measured as u64,
            offered => offered.min(measured as u64),
        };
        Offer {
            up_bytes_per_second: least(offer.up_bytes_per_second, link.up).max(1),
            down_bytes_per_second: least(offer.down_bytes_per_second, link.down).max(1),
            ..offer
        }
    }
}

/// Asks a helper that has just let this machine in.
///
/// # Errors
/// When the connection ends, or the helper does not answer, in words.
pub(crate) async fn probe(link: &mut TeamLink) -> Result<Way, String> {
    let offer = async {
        loop {
            if let Word::Packet(Packet::Message(TeamMessage::Offer(offer))) = heard(link).await? {
                return Ok::<_, String>(offer);
            }
        }
    };
    let offer = timeout(ANSWER_TIMEOUT, offer).await.map_err(|_| "it offers nothing".to_owned())??;
    let mut round_trip = f64::INFINITY;
    for _ in 0..ROUND_TRIPS {
        round_trip = round_trip.min(asked(link, 0, 0).await?);
    }
    let down = rate(link, round_trip, |bytes| (bytes, 0)).await?;
    let up = rate(link, round_trip, |bytes| (0, bytes)).await?;
    Ok(Way { offer, link: Link { up, down, latency: round_trip / 2.0 } })
}

/// Bytes a second, of ever more until they take long enough.
async fn rate(
    link: &mut TeamLink,
    round_trip: f64,
    there_and_back: fn(usize) -> (usize, usize),
) -> Result<f64, String> {
    let mut bytes = BYTES_MIN;
    loop {
        let (there, back) = there_and_back(bytes);
        let seconds = asked(link, there, back).await?;
        if seconds >= MEASURED.as_secs_f64() + round_trip || 2 * bytes > ECHO_BYTES_MAX as usize {
            return Ok(bytes as f64 / (seconds - round_trip).max(1e-6));
        }
        bytes *= 2;
    }
}

/// Seconds until so many bytes are there and so many are back.
async fn asked(link: &mut TeamLink, there: usize, back: usize) -> Result<f64, String> {
    let begin = Instant::now();
    let (header, body) = Word::Probe(back as u32, Payload::from(vec![0; there])).to_parts();
    let exchange = async {
        link.sender().send(TeamWord { header, body }).await.map_err(|error| error.to_string())?;
        while !matches!(heard(link).await?, Word::Echo(_)) {}
        Ok(begin.elapsed().as_secs_f64())
    };
    timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| "it does not answer".to_owned())?
}

async fn heard(link: &mut TeamLink) -> Result<Word, String> {
    let TeamWord { header, body } = link.next().await.map_err(|closed| closed.to_string())?;
    Word::from_parts(&header, body).ok_or_else(|| "it has sent what is no word".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_has_the_rates_of_the_way_unless_its_helper_allows_less() {
        let offer = |up_bytes_per_second, down_bytes_per_second| Offer {
            memory_bytes: 5,
            operations_per_second: 1e9,
            up_bytes_per_second,
            down_bytes_per_second,
            held: None,
        };
        let link = Link { up: 1e6, down: 0.2, latency: 0.1 };
        assert_eq!(Way::bounded(&link, offer(0, 0)), offer(1_000_000, 1), "0 says that nobody knows");
        assert_eq!(Way::bounded(&link, offer(500, 7_000_000)), offer(500, 1));
    }
}
