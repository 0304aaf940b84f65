//! The kinds of DATAGRAM payloads.
//!
//! ```text
//! 0x00..=0xfc ...   a datagram of `send_on`, as it is
//! 0xfd fragment     a fragment of a message, see `control`
//! 0xfe datagram     a datagram of `send_on` that starts with 0xfd or above, or is empty
//! 0xff feedback     a datagram of `send_feedback_on`
//! ```
//!
//! Feedback must be distinct from data: only data wants feedback, or two sides would answer each
//! other for ever. Data costs nothing extra unless it starts with a mark.

use bytes::{BufMut, Bytes, BytesMut};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Data(Bytes),
    Feedback(Bytes),
    Fragment(Bytes),
}

impl Payload {
    pub(crate) fn encode(self) -> Bytes {
        match self {
            Self::Data(data) if data.first().is_some_and(|&first| first < MARKS) => data,
            Self::Data(data) => prefixed(ESCAPE, &data),
            Self::Feedback(data) => prefixed(FEEDBACK, &data),
            Self::Fragment(data) => prefixed(FRAGMENT, &data),
        }
    }

    pub(crate) fn decode(mut payload: Bytes) -> Option<Self> {
        match *payload.first()? {
            FEEDBACK => Some(Self::Feedback(payload.split_off(1))),
            ESCAPE => Some(Self::Data(payload.split_off(1))),
            FRAGMENT => Some(Self::Fragment(payload.split_off(1))),
            _ => Some(Self::Data(payload)),
        }
    }
}

fn prefixed(mark: u8, data: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(1 + data.len());
    payload.put_u8(mark);
    payload.put_slice(data);
    payload.freeze()
}

pub(crate) const PAYLOAD_OVERHEAD: usize = 1;

const MARKS: u8 = FRAGMENT;
const FRAGMENT: u8 = 0xfd;
const ESCAPE: u8 = 0xfe;
const FEEDBACK: u8 = 0xff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_data_is_not_copied() {
        let data = Bytes::from_static(b"\x01 a datagram");
        assert_eq!(Payload::Data(data.clone()).encode().as_ptr(), data.as_ptr());
    }

    proptest! {
        #[test]
        fn every_payload_survives(data in prop::collection::vec(any::<u8>(), 0..40)) {
            let data = Bytes::from(data);
            let kinds = [Payload::Data, Payload::Feedback, Payload::Fragment];
            for payload in kinds.map(|kind| kind(data.clone())) {
                let encoded = payload.clone().encode();
                prop_assert!(encoded.len() <= data.len() + PAYLOAD_OVERHEAD);
                prop_assert_eq!(Payload::decode(encoded), Some(payload));
            }
        }

        #[test]
        fn only_an_empty_payload_is_nothing(data in prop::collection::vec(any::<u8>(), 0..40)) {
            let is_empty = data.is_empty();
            prop_assert_eq!(Payload::decode(Bytes::from(data)).is_none(), is_empty);
        }
    }
}
