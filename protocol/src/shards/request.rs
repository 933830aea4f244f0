//! The words with which nodes ask each other for shards, before the bytes. Encoded with the codec of control messages.

use bincode::{Decode, Encode};

use super::ShardSet;

/// The first frame on a data stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ShardRequest {
    /// Which shards are there?
    Holdings,
    /// The bytes of one, from an offset on.
    Shard {
        /// Which, in the order of the corpus.
        index: u16,
        /// Bytes of it that the asker has already.
        offset: u64,
    },
}

/// The answer, followed by the bytes where there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShardAnswer {
    /// What the answering node holds. It comes with every answer, so that it need rarely be asked for alone.
    pub held: ShardSet,
    /// About the shard that was asked for.
    pub offer: ShardOffer,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ShardOffer {
    /// No shard was asked for.
    Unasked,
    /// It is not there, or has no byte at the offset.
    Missing,
    /// Too many are being sent already; another peer may have room.
    Busy,
    /// Its bytes follow from the offset on.
    Coming {
        /// Length of the whole shard, in bytes.
        length: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    /// Printed once by this very test; other bytes are another protocol.
    #[test]
    fn the_format_has_not_changed() {
        let requests = [ShardRequest::Holdings, ShardRequest::Shard { index: 300, offset: 70_000 }];
        let bytes: Vec<Vec<u8>> = requests.iter().map(codec::encode).collect();
        assert_eq!(bytes, [vec![0], vec![1, 251, 44, 1, 252, 112, 17, 1, 0]]);
        let answer = ShardAnswer { held: [0, 127].into_iter().collect(), offer: ShardOffer::Coming { length: 7 } };
        let mut expected = vec![254, 1];
        expected.extend([0; 14]);
        expected.extend([128, 3, 7]);
        assert_eq!(codec::encode(&answer), expected);
        assert_eq!(codec::decode(&expected), Ok(answer));
    }
}
