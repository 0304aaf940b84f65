//! The flow of an inner packet.

use std::net::IpAddr;

use crate::wire::inner::InnerPacket;

impl InnerPacket<'_> {
    /// A hash of the 5-tuple, the same on every machine and in every run, for one direction of a
    /// flow. Without ports, as in later fragments, of the addresses and the protocol.
    pub fn flow_hash(&self) -> u64 {
        let mut hash = Fnv::default();
        for address in [self.source, self.destination] {
            match address {
                IpAddr::V4(address) => hash.write(&address.octets()),
                IpAddr::V6(address) => hash.write(&address.octets()),
            }
        }
        hash.write(&[self.protocol]);
        if let Some((source, destination)) = self.ports() {
            hash.write(&source.to_be_bytes());
            hash.write(&destination.to_be_bytes());
        }
        hash.finish()
    }
}

/// FNV-1a with 64 bits. The last step mixes the low bits, since only a few of them choose a path.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(self) -> u64 {
        let folded = (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        folded ^ folded >> 29
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::inner::tests::udp_v4;

    fn udp(source: [u8; 4], ports: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = udp_v4(payload);
        packet[12..16].copy_from_slice(&source);
        packet[20..24].copy_from_slice(&ports);
        packet
    }

    fn hash(packet: &[u8]) -> u64 {
        InnerPacket::parse(packet).expect("well-formed").flow_hash()
    }

    #[test]
    fn the_packets_of_a_flow_have_one_hash_and_other_flows_another() {
        let flow = hash(&udp([10, 0, 0, 1], [0, 80, 0, 81], b"one"));
        assert_eq!(flow, hash(&udp([10, 0, 0, 1], [0, 80, 0, 81], b"another, longer")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 2], [0, 80, 0, 81], b"one")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 1], [0, 80, 0, 82], b"one")));
        assert_ne!(flow, hash(&udp([10, 0, 0, 1], [0, 81, 0, 80], b"one")), "the way back");
    }

    #[test]
    fn flows_spread_over_a_few_paths() {
        let mut counts = [0; 3];
        for port in 0..300_u16 {
            let [high, low] = port.to_be_bytes();
            let hash = hash(&udp([10, 0, 0, 1], [high, low, 0, 81], b"x"));
            counts[(hash % 3) as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 70), "{counts:?}");
    }
}
