//! Whatever bytes a peer sends: they are refused, or are a message that encodes to the same message again.
//! `cargo fuzz run -s none codec` in `protocol`

#![no_main]

use libfuzzer_sys::fuzz_target;
use murmur_protocol::shards::{ShardAnswer, ShardRequest};
use murmur_protocol::team::{FRAME_HEADER_BYTES, FrameHeader, StateHeader, TeamMessage};
use murmur_protocol::{Message, TransferHeader, codec};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = codec::decode::<Message>(bytes) {
        let again = codec::decode::<Message>(&codec::encode(&message)).expect("our own encoding");
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    if let Ok(header) = codec::decode::<TransferHeader>(bytes) {
        let again = codec::decode::<TransferHeader>(&codec::encode(&header)).expect("our own encoding");
        assert_eq!(format!("{again:?}"), format!("{header:?}"));
    }
    if let Ok(message) = codec::decode::<TeamMessage>(bytes) {
        let again = codec::decode::<TeamMessage>(&codec::encode(&message)).expect("our own encoding");
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
        message.is_sound();
    }
    if let Ok(header) = codec::decode::<StateHeader>(bytes) {
        assert_eq!(codec::decode(&codec::encode(&header)), Ok(header));
    }
    if let Some(Ok(header)) = bytes.first_chunk::<FRAME_HEADER_BYTES>().map(FrameHeader::decode) {
        assert_eq!(header.encode(), bytes[..FRAME_HEADER_BYTES]);
    }
    if let Ok(request) = codec::decode::<ShardRequest>(bytes) {
        assert_eq!(codec::decode(&codec::encode(&request)), Ok(request));
    }
    if let Ok(answer) = codec::decode::<ShardAnswer>(bytes) {
        assert_eq!(codec::decode(&codec::encode(&answer)), Ok(answer));
    }
});
