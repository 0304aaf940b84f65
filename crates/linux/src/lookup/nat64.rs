//! NAT64: how a network without IPv4 reaches servers that have only IPv4 (RFC 6052). Router
//! advertisements (RFC 8781) and AAAA records of `ipv4only.arpa` (RFC 7050) show the prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// A NAT64 prefix (RFC 6052).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nat64Prefix {
    bits: u128,
    length: u8,
}

impl Nat64Prefix {
    /// `None` for a length, or set bits 64 to 71, that RFC 6052 section 2.2 excludes.
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Self> {
        if !LENGTHS.contains(&length) {
            return None;
        }
        let bits = address.to_bits() & !(u128::MAX >> length);
        (bits.to_be_bytes()[RESERVED_OCTET] == 0).then_some(Self { bits, length })
    }

    pub(crate) fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.bits.to_be_bytes();
        let mut place = usize::from(self.length / 8);
        for octet in address.octets() {
            if place == RESERVED_OCTET {
                place += 1;
            }
            octets[place] = octet;
            place += 1;
        }
        octets.into()
    }
}

impl fmt::Display for Nat64Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.bits), self.length)
    }
}

/// The prefixes in the addresses of `ipv4only.arpa` (RFC 7050 section 3). If a well-known address
/// occurs twice in one address, the place of the other one in another address decides.
pub(crate) fn discover(found: &[IpAddr]) -> Vec<Nat64Prefix> {
    let found: Vec<Ipv6Addr> = found
        .iter()
        .filter_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
        .collect();
    let mut prefixes = Vec::new();
    for address in &found {
        let candidates: Vec<(Nat64Prefix, Ipv4Addr)> = candidates(*address);
        for (prefix, embedded) in &candidates {
            let other = WELL_KNOWN.into_iter().find(|known| known != embedded);
            let confirmed = other.is_some_and(|other| found.contains(&prefix.embed(other)));
            if (candidates.len() == 1 || confirmed) && !prefixes.contains(prefix) {
                prefixes.push(*prefix);
            }
        }
    }
    prefixes
}

fn candidates(address: Ipv6Addr) -> Vec<(Nat64Prefix, Ipv4Addr)> {
    let prefixes = LENGTHS.into_iter().filter_map(|length| Nat64Prefix::new(address, length));
    prefixes
        .flat_map(|prefix| WELL_KNOWN.map(|known| (prefix, known)))
        .filter(|(prefix, known)| prefix.embed(*known) == address)
        .collect()
}

/// A PREF64 option (RFC 8781 section 4), including type and length: the prefix and its lifetime.
pub(crate) fn parse_option(option: &[u8]) -> Option<(Nat64Prefix, Duration)> {
    let [OPTION, 2, high, low, prefix @ ..] = option else { return None };
    let prefix: &[u8; 12] = prefix.first_chunk()?;
    let word = u16::from_be_bytes([*high, *low]);
    // 13 bits count units of 8 s, 3 bits are the code of the length.
    let lasts = Duration::from_secs(u64::from(word >> 3) * 8);
    let length = *OPTION_LENGTHS.get(usize::from(word & 7))?;
    let mut address = [0; 16];
    address[..12].copy_from_slice(prefix);
    Some((Nat64Prefix::new(address.into(), length)?, lasts))
}

pub(crate) const DISCOVERY_NAME: &str = "ipv4only.arpa";
pub(crate) const OPTION: u8 = 38;
const WELL_KNOWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];
const OPTION_LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
const RESERVED_OCTET: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(text: &str) -> Nat64Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Nat64Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    #[test]
    fn addresses_are_embedded_as_in_rfc_6052_and_every_prefix_is_discovered() {
        let check = |text: &str, expected: &str| {
            let prefix = prefix(text);
            let embedded = prefix.embed("192.0.2.33".parse().unwrap());
            assert_eq!(embedded, expected.parse::<Ipv6Addr>().unwrap(), "{text}");
            for known in WELL_KNOWN {
                assert_eq!(discover(&[prefix.embed(known).into()]), [prefix], "{text}");
            }
        };
        check("2001:db8::/32", "2001:db8:c000:221::");
        check("2001:db8:100::/40", "2001:db8:1c0:2:21::");
        check("2001:db8:122::/48", "2001:db8:122:c000:2:2100::");
        check("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::");
        check("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::");
        check("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33");
        check("64:ff9b::/96", "64:ff9b::192.0.2.33");
    }

    #[test]
    fn what_could_be_several_prefixes_is_settled_by_the_other_address() {
        let prefix = prefix("2001:db8:c000:aa::/96");
        let [first, second] = WELL_KNOWN.map(|known| IpAddr::from(prefix.embed(known)));
        assert_eq!(candidates(prefix.embed(WELL_KNOWN[0])).len(), 1);
        assert_eq!(discover(&[first, second]), [prefix]);
        let ambiguous: IpAddr = "2001:db8:c000:aa::c000:aa".parse().unwrap();
        assert_eq!(discover(&[ambiguous]).len(), 1);
        assert_eq!(discover(&["2001:db8::1".parse().unwrap(), "192.0.0.170".parse().unwrap()]), []);
    }

    #[test]
    fn the_routers_option_is_read() {
        let option = |word: u16, prefix: [u8; 12]| {
            let mut bytes = vec![OPTION, 2];
            bytes.extend(word.to_be_bytes());
            bytes.extend(prefix);
            bytes
        };
        let well_known = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
        let check = |bytes: &[u8], expected| assert_eq!(parse_option(bytes), expected);
        let lasts = Duration::from_secs(1800);
        check(&option(225 << 3, well_known), Some((prefix("64:ff9b::/96"), lasts)));
        let shorter = [0x20, 0x01, 0x0d, 0xb8, 1, 0x22, 0, 0, 0, 0, 0, 0];
        check(&option(3, shorter), Some((prefix("2001:db8:122::/48"), Duration::ZERO)));
        check(&option(6, well_known), None);
        check(&option(0, well_known)[..15], None);
        check(&[], None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            parse_option(&bytes);
            let mut option = vec![OPTION, 2];
            option.extend(&bytes);
            parse_option(&option);
        }

        #[test]
        fn any_answer_gives_prefixes_that_hold_it(bits in any::<[u128; 3]>()) {
            let found = bits.map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)));
            for prefix in discover(&found) {
                let holds = |known| found.contains(&prefix.embed(known).into());
                prop_assert!(WELL_KNOWN.into_iter().any(holds));
            }
        }
    }
}
