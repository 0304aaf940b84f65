//! Which of several endpoints behind one address a packet is for: the shards of a server.
//!
//! ```text
//! packet ─► its destination connection ID, 8 bytes ─► keyed hash ─► modulo the count ─► shard
//! a shard's own IDs: random ones, drawn until their hash says its number
//! ```
//!
//! All packets of a connection carry IDs of its shard, so each finds it: by a program in the kernel
//! that computes the same hash, else in the process that reads the packet. A client's first packets
//! carry a random ID of the client: its hash chooses the shard, and repetitions go to the same.
//!
//! Without the key, IDs are random in all bytes. A shard number in a byte would let two networks
//! that carry paths of one client guess that these belong together (RFC 9000 section 5.1), and let
//! a stranger aim at a shard. The hash is no cipher, since a kernel program has 32-bit arithmetic
//! and no loops: many IDs of one shard reveal the key.
//!
//! Source: XLINK section 6 (connection IDs route to the process); RFC 8999 section 5 (their place).

use roadweave_identity::derive_secret;

/// The most shards that one address may have.
pub const SHARDS_MAX: u16 = 64;

/// Distributes the packets of one address over its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    count: u16,
    key: [u32; 4],
}

/// One of the endpoints behind one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Distributes packets.
    pub map: ShardMap,
    /// The number of the endpoint, below the count of the map.
    pub number: u16,
}

impl ShardMap {
    /// Distributes packets over `count` shards, 1..=[`SHARDS_MAX`], by a key derived from `secret`,
    /// which they share.
    pub fn new(count: u16, secret: &[u8; 32]) -> Self {
        let derived = derive_secret(secret, b"shards");
        let word = |at: usize| {
            let bytes = std::array::from_fn(|place| derived[4 * at + place]);
            // Multiplication by an odd factor loses no bits.
            u32::from_be_bytes(bytes) | u32::from(at > 0)
        };
        Self { count: count.clamp(1, SHARDS_MAX), key: std::array::from_fn(word) }
    }

    /// How many shards there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The words of the key, for a program in the kernel that computes [`ShardMap::shard_of`].
    pub fn key(&self) -> [u32; 4] {
        self.key
    }

    /// The shard for the payload of a UDP packet; the first if it is too short for an ID.
    pub fn shard_of(&self, packet: &[u8]) -> u16 {
        let id = match packet.first() {
            Some(first) if first & LONG_HEADER == 0 => packet.get(1..),
            Some(_) if packet.get(5).is_some_and(|len| usize::from(*len) >= ROUTED_LEN) => {
                packet.get(6..)
            }
            _ => None,
        };
        id.and_then(|id| id.first_chunk()).map_or(0, |id| self.of_id(id))
    }

    /// The shard of a connection ID that begins with `id`.
    pub fn of_id(&self, id: &[u8; ROUTED_LEN]) -> u16 {
        let id = u64::from_be_bytes(*id);
        let [mask, factors @ ..] = self.key;
        let mut hash = ((id >> 32) as u32 ^ mask).wrapping_mul(factors[0]);
        hash ^= hash >> 16;
        hash = hash.wrapping_add(id as u32).wrapping_mul(factors[1]);
        hash ^= hash >> 15;
        hash = hash.wrapping_mul(factors[2]);
        hash ^= hash >> 16;
        (hash % u32::from(self.count)) as u16
    }
}

impl Shard {
    pub(crate) fn has(&self, id: &[u8]) -> bool {
        id.first_chunk().is_some_and(|id| self.map.of_id(id) == self.number)
    }
}

/// Set in the first byte of a long header (RFC 8999 section 5.1).
const LONG_HEADER: u8 = 0x80;
/// All of a server's ID, and the fewest of a client's first one (RFC 9000 section 7.2).
const ROUTED_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(count: u16) -> ShardMap {
        ShardMap::new(count, &[7; 32])
    }

    #[test]
    fn ids_that_count_up_are_spread_evenly_and_by_the_key() {
        for count in [1, 2, 3, 7, 16, SHARDS_MAX] {
            let of = |map: ShardMap, number: u64| map.of_id(&number.to_be_bytes());
            for step in [1_u64, 1 << 20, 1 << 40, 1 << 56] {
                let mut hits = vec![0_u32; count.into()];
                let each = if step == 1 << 56 { 256 } else { 20_000 };
                (0..each).for_each(|n| hits[usize::from(of(map(count), n * step))] += 1);
                let most = *hits.iter().max().unwrap_or(&0);
                let fair = each as u32 / u32::from(count);
                assert!(most <= fair + fair / 2 + 40, "{count} {step}: {hits:?}");
            }
            let other = ShardMap::new(count, &[8; 32]);
            let same = (0..1_000).filter(|n| of(map(count), *n) == of(other, *n)).count();
            assert!(count == 1 || same < 700, "{count}: another key is another map: {same}");
        }
    }

    #[test]
    fn a_connection_id_says_the_same_in_both_headers() {
        let id = [9, 8, 7, 6, 5, 4, 3, 2];
        let short = [&[0x40], &id[..], &[1, 2, 3]].concat();
        let long = [&[0xc0, 0, 0, 0, 1, 8], &id[..], &[0]].concat();
        let longer = [&[0xc0, 0, 0, 0, 1, 20], &id[..], &[0; 13]].concat();
        let of_id = map(16).of_id(&id);
        for packet in [short, long, longer] {
            assert_eq!(map(16).shard_of(&packet), of_id, "{packet:?}");
        }
        assert_ne!(of_id, 0, "else the test proves little");
        let shorter = [&[0xc0, 0, 0, 0, 1, 7], &id[..], &[0]].concat();
        assert_eq!(map(16).shard_of(&shorter), 0, "no ID of 8 bytes");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_shard(bytes: Vec<u8>, count in 1..=SHARDS_MAX) {
            prop_assert!(map(count).shard_of(&bytes) < count);
        }
    }
}
