//! Corrupted, duplicated, replayed and forged packets of a link.
//!
//! ```text
//! link ─► [corrupt or cut] ─► packet, its duplicate, an old packet, a forged one ─► the end
//! ```

use std::collections::VecDeque;

use bytes::BytesMut;
use roadweave_emulate::Random;

/// Rates of tampering per packet, each a share in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tampering {
    /// Flips some bits, or truncates the packet.
    pub corrupt: f64,
    pub duplicate: f64,
    /// Replays one of the last [`Tampering::REMEMBERED`] packets after this one.
    pub replay: f64,
    /// Adds a packet of random bytes from the same address.
    pub forge: f64,
}

impl Tampering {
    /// How many packets are kept for replay.
    pub const REMEMBERED: usize = 256;
}

#[derive(Debug)]
pub(super) struct Tamperer {
    tampering: Tampering,
    random: Random,
    remembered: VecDeque<BytesMut>,
    spoilt_bytes: u64,
}

impl Tamperer {
    pub(super) fn new(tampering: Tampering, seed: u64) -> Self {
        let random = Random::new(seed);
        Self { tampering, random, remembered: VecDeque::new(), spoilt_bytes: 0 }
    }

    pub(super) fn spoilt_bytes(&self) -> u64 {
        self.spoilt_bytes
    }

    /// Returns the packets that arrive instead of `packet`; at most four.
    pub(super) fn pass(&mut self, mut packet: BytesMut) -> impl Iterator<Item = BytesMut> {
        let Tampering { corrupt, duplicate, replay, forge } = self.tampering;
        if self.remembered.len() >= Tampering::REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(packet.clone());
        if self.happens(corrupt) {
            self.spoilt_bytes += packet.len() as u64;
            self.spoil(&mut packet);
        }
        let double = self.happens(duplicate).then(|| packet.clone());
        let old = self.happens(replay).then(|| {
            let position = self.random.below(self.remembered.len());
            self.remembered[position].clone()
        });
        let forged = self.happens(forge).then(|| self.forged());
        [Some(packet), double, old, forged].into_iter().flatten()
    }

    fn happens(&mut self, share: f64) -> bool {
        self.random.unit() < share
    }

    fn spoil(&mut self, packet: &mut BytesMut) {
        if packet.is_empty() {
            return;
        }
        if self.happens(0.3) {
            let length = self.random.below(packet.len());
            packet.truncate(length);
            return;
        }
        for _ in 0..=self.random.below(4) {
            let position = self.random.below(packet.len());
            packet[position] ^= 1 << self.random.below(8);
        }
    }

    /// Random bytes, some behind the beginning of a real packet.
    fn forged(&mut self) -> BytesMut {
        let length = self.random.below(FORGED_MAX);
        let mut bytes: BytesMut = (0..length).map(|_| self.random.bits() as u8).collect();
        if self.happens(0.5)
            && let Some(real) = self.remembered.back()
        {
            let genuine = length.min(real.len()).min(GENUINE);
            bytes[..genuine].copy_from_slice(&real[..genuine]);
        }
        bytes
    }
}

const FORGED_MAX: usize = 1_500;
/// Flags and connection ID of a short header, enough to reach a connection.
const GENUINE: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(tampering: Tampering) -> Vec<Vec<BytesMut>> {
        let mut tamperer = Tamperer::new(tampering, 1);
        (0..200_u8).map(|n| tamperer.pass(BytesMut::from(&[n; 40][..])).collect()).collect()
    }

    #[test]
    fn nothing_happens_unless_it_is_asked_for() {
        let all = passed(Tampering::default());
        assert!((0..200_u8).all(|n| all[usize::from(n)] == [BytesMut::from(&[n; 40][..])]));
    }

    #[test]
    fn each_kind_does_what_its_name_says() {
        let whole = |n: usize| BytesMut::from(&[n as u8; 40][..]);
        let corrupted = passed(Tampering { corrupt: 1.0, ..Tampering::default() });
        assert!(corrupted.iter().all(|packets| packets.len() == 1));
        let changed = corrupted.iter().enumerate().filter(|(n, packets)| packets[0] != whole(*n));
        assert!(changed.count() > 190);
        let doubled = passed(Tampering { duplicate: 1.0, ..Tampering::default() });
        assert!(doubled.iter().enumerate().all(|(n, packets)| *packets == [whole(n), whole(n)]));
        let replayed = passed(Tampering { replay: 1.0, ..Tampering::default() });
        assert!(replayed.iter().enumerate().all(|(n, packets)| {
            packets.len() == 2 && (0..=n).any(|old| packets[1] == whole(old))
        }));
        let forged = passed(Tampering { forge: 1.0, ..Tampering::default() });
        assert!(forged.iter().all(|packets| packets.len() == 2 && packets[1].len() < FORGED_MAX));
    }
}
