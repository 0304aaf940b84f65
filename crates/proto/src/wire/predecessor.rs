//! The packet before this one in its flow, for lanes that keep the order of each flow.
//!
//! ```text
//!  0                   1
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//! +-------+-----------------------+------------------
//! |0 0 0 0|        after          |  inner packet ...
//! +-------+-----------------------+------------------
//! ```
//!
//! An inner packet begins with its IP version, 4 or 6, so four zero bits mark this prefix. It is
//! inside the symbol, so recovered packets have it as well.
//!
//! With IDs alone, every packet of a lane would have to wait for a missing one of unknown flow.

use bytes::Bytes;

/// Bytes of the prefix.
pub const PREDECESSOR_HEADER: usize = 2;

/// The greatest distance that can be expressed.
pub const PREDECESSOR_DISTANCE_MAX: u16 = (1 << 12) - 1;

/// The prefix of a packet that follows its flow's last packet or fragment `after` IDs later; 0, or
/// more than [`PREDECESSOR_DISTANCE_MAX`]: none, or none so near.
pub fn predecessor_prefix(after: u32) -> [u8; PREDECESSOR_HEADER] {
    let known = u16::try_from(after).ok().filter(|after| *after <= PREDECESSOR_DISTANCE_MAX);
    known.unwrap_or(0).to_be_bytes()
}

/// Splits the prefix, if any, from the body of a symbol: `after`, and the inner packet.
pub fn split_predecessor(mut body: Bytes) -> (Option<u16>, Bytes) {
    match body.first_chunk::<PREDECESSOR_HEADER>().map(|prefix| u16::from_be_bytes(*prefix)) {
        Some(after) if after <= PREDECESSOR_DISTANCE_MAX => {
            (Some(after), body.split_off(PREDECESSOR_HEADER))
        }
        _ => (None, body),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_no_prefix_is_left_alone() {
        for body in [&[0x45, 0, 0, 28][..], &[0x60, 0], &[0x10, 0, 1], &[0], &[]] {
            let body = Bytes::copy_from_slice(body);
            assert_eq!(split_predecessor(body.clone()), (None, body));
        }
    }

    #[test]
    fn what_is_too_far_back_is_not_named() {
        let named = |after| u16::from_be_bytes(predecessor_prefix(after));
        assert_eq!([0, 1, 4095, 4096, u32::MAX].map(named), [0, 1, 4095, 0, 0]);
    }

    proptest! {
        #[test]
        fn the_prefix_reads_back(
            after in 0..=u32::from(PREDECESSOR_DISTANCE_MAX),
            packet in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let body = Bytes::from([&predecessor_prefix(after)[..], &packet].concat());
            prop_assert_eq!(split_predecessor(body), (Some(after as u16), Bytes::from(packet)));
        }
    }
}
