//! Whatever bytes the other side of a team sends, decoding them asks the system for no more memory than a control message is bounded to.

mod counting;

use murmur_protocol::codec::{self, CONTROL_BYTES_MAX};
use murmur_protocol::random::{Rng as _, RngExt, stream};
use murmur_protocol::team::{FRAME_HEADER_BYTES, FrameHeader, StateHeader, TeamMessage};

use counting::allocated;

#[test]
fn hostile_lengths_allocate_no_more_than_a_control_message_may_hold() {
    let (vector, _) = allocated(|| drop(std::hint::black_box(vec![0_u8; 5000])));
    assert!(vector >= 5000, "the counter works: {vector}");
    let mut dice = stream(1, "hostile lengths", &[]);
    let (mut decoded, mut most) = (0, 0);
    let whole = [
        TeamMessage::Sums { epoch: 1, batch: 2, squares: vec![1.0; 3000], busy_nanos: 3 },
        TeamMessage::Cannot { epoch: 1, reason: "x".repeat(500) },
        TeamMessage::Ready { epoch: 1 },
    ];
    let whole = whole.map(|message| codec::encode(&message));
    for round in 0..30_000_u32 {
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..dice.random_range(0..400)).map(|_| dice.next_u32() as u8).collect(),
            // Squares, a reason: with a length of up to 2^64 in front of few bytes.
            1 => {
                let begin = [&[6_u8, 1, 1][..], &[4, 1]][round as usize / 3 % 2];
                let rest = (0..20).map(|_| dice.next_u32() as u8);
                begin.iter().copied().chain([251 + (round / 6 % 3) as u8]).chain(rest).collect()
            }
            _ => {
                let mut bytes = whole[round as usize / 3 % 3].clone();
                let at = dice.random_range(0..bytes.len().min(12));
                bytes[at] = dice.next_u32() as u8;
                bytes
            }
        };
        let (bytes_allocated, _) = allocated(|| {
            decoded += u32::from(codec::decode::<TeamMessage>(&bytes).is_ok());
            decoded += u32::from(codec::decode::<StateHeader>(&bytes).is_ok());
        });
        most = most.max(bytes_allocated);
        let header = bytes.first_chunk::<FRAME_HEADER_BYTES>();
        let (of_header, _) = allocated(|| {
            std::hint::black_box(header.map(FrameHeader::decode));
        });
        assert_eq!(of_header, 0);
    }
    assert!(decoded > 100, "{decoded} were messages");
    assert!((24_000..=2 * CONTROL_BYTES_MAX).contains(&most), "{most} bytes");
}
