//! An address with the length of its network, as `ip` writes it: `10.8.0.2/24`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP address and the length of its prefix in bits (at most 32 or 128).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// The text is no prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no prefix: write an address and a length, as 10.8.0.2/24 or fd00:8::2/64")]
pub struct ParsePrefixError(String);

impl Prefix {
    /// The prefix of `length` bits around `address`; lengths beyond the address are cut to it.
    pub fn new(address: IpAddr, length: u8) -> Self {
        Self { address, length: length.min(bits(address)) }
    }

    /// The prefix that holds `address` alone.
    pub fn host(address: IpAddr) -> Self {
        Self { address, length: bits(address) }
    }

    /// The prefix that holds every IPv4 address.
    pub const DEFAULT_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 };
    /// The prefix that holds every IPv6 address.
    pub const DEFAULT_V6: Self = Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 };

    /// The address as it was given, host bits included.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// The same prefix with the host bits cleared, as a route wants it.
    #[must_use]
    pub fn network(&self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(u32::from(32 - self.length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(u32::from(128 - self.length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, length: self.length }
    }

    /// Its two halves, in order; a host has none.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let length = self.length + 1;
        let low = self.network().address;
        let high = match low {
            IpAddr::V4(v4) => {
                IpAddr::from(Ipv4Addr::from_bits(v4.to_bits() | 1 << 32_u8.checked_sub(length)?))
            }
            IpAddr::V6(v6) => {
                IpAddr::from(Ipv6Addr::from_bits(v6.to_bits() | 1 << 128_u8.checked_sub(length)?))
            }
        };
        Some([low, high].map(|address| Self { address, length }))
    }

    /// Whether `address` lies within.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.is_ipv4() == address.is_ipv4()
            && Self::new(address, self.length).network() == self.network()
    }

    /// Whether it is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }
}

fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Prefix {
    type Err = ParsePrefixError;

    /// Reads `ADDRESS/LENGTH`; an address alone is a host.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParsePrefixError(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let length = match length {
            Some(length) => length.parse().map_err(|_| bad())?,
            None => bits(address),
        };
        if length > bits(address) {
            return Err(bad());
        }
        Ok(Self { address, length })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(prefix: &str, network: &str, within: &str, outside: &str) {
        let prefix: Prefix = prefix.parse().unwrap();
        assert_eq!(prefix.network().to_string(), network);
        assert!(prefix.contains(within.parse().unwrap()), "{within}");
        assert!(!prefix.contains(outside.parse().unwrap()), "{outside}");
    }

    #[test]
    fn a_prefix_holds_what_shares_its_bits() {
        check("10.8.3.2/22", "10.8.0.0/22", "10.8.3.255", "10.8.4.0");
        check("10.8.3.2", "10.8.3.2/32", "10.8.3.2", "10.8.3.3");
        check("0.0.0.0/0", "0.0.0.0/0", "255.1.1.1", "::1");
        check("fd00:8::2/64", "fd00:8::/64", "fd00:8::ffff:0:1", "fd00:8:0:1::1");
        check("::/0", "::/0", "fe80::1", "1.2.3.4");
    }

    #[test]
    fn what_is_no_prefix_is_told_with_an_example() {
        for text in ["", "10.8.0.2/33", "10.8.0/24", "fd00::/129", "10.8.0.2/", "10.8.0.2/-1"] {
            let error = text.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains("10.8.0.2/24"), "{error}");
        }
    }
}
