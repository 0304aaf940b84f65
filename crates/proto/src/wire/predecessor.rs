//! Which packet precedes this one in its flow, for lanes that keep the order of each flow and not
//! of all.
//!
//! ```text
//!  0                   1
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//! +-------+-----------------------+------------------
//! |0 0 0 0|        after          |  inner packet ...
//! +-------+-----------------------+------------------
//! ```
//!
//! An inner packet begins with its IP version, 4 or 6, so the four zero bits tell that this prefix
//! is there. It stands within the symbol: a packet that was computed from coded ones has it as
//! well.
//!
//! A receiver that knows IDs alone must let every packet of a lane wait for a missing one, since it
//! cannot know whose flow the missing one belongs to. With the distance to the packet before it in
//! its flow, a packet waits for that one and for nothing else, whatever the other flows of the lane
//! lose.

use bytes::Bytes;

/// Bytes of the prefix.
pub const PREDECESSOR_HEADER: usize = 2;

/// The furthest back that a packet can name the one before it.
pub const PREDECESSOR_DISTANCE_MAX: u16 = (1 << 12) - 1;

/// The prefix of a packet that follows its flow's last one, or last fragment, `after` IDs later; of
/// one that follows none, or none so near, for 0.
///
/// `after`: at most [`PREDECESSOR_DISTANCE_MAX`], larger ones are taken for 0.
pub fn predecessor_prefix(after: u32) -> [u8; PREDECESSOR_HEADER] {
    let known = u16::try_from(after).ok().filter(|after| *after <= PREDECESSOR_DISTANCE_MAX);
    known.unwrap_or(0).to_be_bytes()
}

/// Takes the prefix, if there is one, off what a symbol or its fragments hold: `after`, and the
/// inner packet.
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
