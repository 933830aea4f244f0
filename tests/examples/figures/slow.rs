//! How long it takes to join over a slow line whose donor is killed in the middle, against the line alone.

use murmur_tests::slow_join::{Transport, join, run_of_width};
use serde_json::{Value, json};

/// Kilobits a second and the width of the model: 0.1, 1 and 5 million parameters.
const LINES: [(u32, u32); 3] = [(64, 56), (1000, 200), (8000, 448)];

pub(crate) fn measure(murmur: &str) -> Option<Value> {
    let mut results = Vec::new();
    for (kilobits, width) in LINES {
        for transport in [Transport::Tcp, Transport::Quic] {
            let joined = join(murmur, transport, kilobits, &run_of_width(width))?;
            results.push(
                json!({ "over": format!("{transport:?}"), "kbit/s": kilobits, "parameters": joined.parameters,
                "times the line's own": joined.ratio(), "seconds": joined.seconds,
                "seconds to the first chunk": joined.first_chunk_seconds, "bytes received": joined.received_bytes,
                "bytes sent": joined.sent_bytes, "killed at": joined.killed_at }),
            );
            println!("{}", results.last().expect("just pushed"));
        }
    }
    Some(results.into())
}
