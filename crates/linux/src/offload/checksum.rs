//! The Internet checksum, summed in the machine's byte order. The one's complement sum allows any
//! byte order that reading and writing share (RFC 1071 section 2 B).

/// Adds `bytes`, zero-padded, to a running sum; each step adds < 2^32: 64 KiB do not overflow.
pub(super) fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
    }
    sum
}

pub(super) fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// IPv6 routing headers are ignored: the kernel does not offload such packets.
pub(super) fn pseudo_header(packet: &[u8], ipv6: bool, protocol: u8, transport_len: u16) -> u64 {
    let addresses = if ipv6 { &packet[8..40] } else { &packet[12..20] };
    let tail = [0, protocol, transport_len.to_be_bytes()[0], transport_len.to_be_bytes()[1]];
    add(add(0, addresses), &tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest::proptest! {
        #[test]
        fn the_fast_sum_equals_the_definition(bytes in proptest::collection::vec(0u8.., 0..3000)) {
            let fast = u16::from_be_bytes(finish(add(0, &bytes)).to_ne_bytes());
            proptest::prop_assert_eq!(fast, slow(&bytes));
        }
    }
}
