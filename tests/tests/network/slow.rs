//! Slow lines: whoever joins over one gets the model in little more than the line's own time, whatever happens to donors.

use murmur_tests::at_once;
use murmur_tests::slow_join::{Transport, join, run_of_width};

use crate::MURMUR;

/// Of eight tenths of a million parameters: 3.2 MB, 80 s at 320 kbit/s. What a donor that dies takes with it, and the time until
/// another one sends, are some seconds whatever the model: of half as long a copy they were up to a sixth.
const WIDTH: u32 = 168;

/// Kilobits a second.
const LINE: u32 = 320;

/// So many times the line's own time: headers, the start of the process, and what a donor that dies takes with it.
const TIMES_MAX: f64 = 1.3;

fn joins_near_the_lines_rate(transport: Transport) {
    let Some(joined) = join(MURMUR, transport, LINE, &run_of_width(WIDTH)) else { return };
    println!("{transport:?}: {joined:?}, {:.2} times the line's own time", joined.ratio());
    assert!((0.3..0.9).contains(&joined.killed_at), "a donor was to be killed in the middle: {joined:?}");
    assert!(joined.ratio() < TIMES_MAX, "{:.2} times the line's own time: {joined:?}", joined.ratio());
}

/// Over QUIC pings died behind the bulk, and the connection with them.
#[test]
fn a_joiner_on_a_slow_line_whose_donor_is_killed_gets_the_model_in_time_over_tcp_and_quic() {
    at_once([Transport::Tcp, Transport::Quic], joins_near_the_lines_rate);
}
