//! Which numbers came over one link, so that duplicates made by the network do not hide its losses.

use roadweave_proto::PacketId;

/// How many numbers behind the newest are remembered; older ones count as seen.
const SEEN_IDS: u32 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct DuplicateFilter {
    newest: Option<PacketId>,
    bits: Vec<u64>,
}

impl DuplicateFilter {
    pub(super) fn note(&mut self, id: PacketId) -> bool {
        let ahead = match self.newest {
            None => SEEN_IDS,
            Some(newest) if newest.precedes(id) => id.0.wrapping_sub(newest.0),
            Some(newest) if newest.0.wrapping_sub(id.0) >= SEEN_IDS => return false,
            Some(_) => 0,
        };
        if ahead >= SEEN_IDS {
            self.bits.clear();
            self.bits.resize((SEEN_IDS / 64) as usize, 0);
        }
        let skipped = if ahead < SEEN_IDS { ahead } else { 0 };
        for skipped in (0..skipped).map(|back| id.0.wrapping_sub(back)) {
            let (word, bit) = place(skipped);
            self.bits[word] &= !bit;
        }
        if ahead > 0 {
            self.newest = Some(id);
        }
        let (word, bit) = place(id.0);
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        is_new
    }
}

fn place(number: u32) -> (usize, u64) {
    let slot = number % SEEN_IDS;
    ((slot / 64) as usize, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_seen_as_a_set_would_see_them(
            start in prop_oneof![Just(u32::MAX - 100), any::<u32>()],
            steps in prop::collection::vec(
                prop_oneof![-50_i64..50, -40_000_i64..40_000, 0_i64..200_000], 1..200),
        ) {
            let (mut seen, mut set) = (DuplicateFilter::default(), BTreeSet::new());
            let (mut at, mut newest) = (1_i64 << 40, 0);
            for step in steps {
                at += step;
                let is_known = newest - i64::from(SEEN_IDS) < at;
                newest = newest.max(at);
                let is_new = set.insert(at) && is_known;
                prop_assert_eq!(seen.note(PacketId(start.wrapping_add(at as u32))), is_new);
            }
        }
    }
}
