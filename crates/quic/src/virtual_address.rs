//! A virtual local address for each uplink.
//!
//! The library identifies paths by addresses. Two modems may have the same one, so on a client each
//! uplink gets an address of a unique local prefix (RFC 4193) that ends with its number.

use std::net::{IpAddr, Ipv6Addr};

use roadweave_proto::UplinkId;

pub(crate) fn of(uplink: UplinkId) -> IpAddr {
    let bits = PREFIX | u128::from(uplink.0);
    IpAddr::V6(Ipv6Addr::from_bits(bits))
}

pub(crate) fn uplink(address: IpAddr) -> Option<UplinkId> {
    let IpAddr::V6(address) = address else { return None };
    u32::try_from(address.to_bits() ^ PREFIX).ok().map(UplinkId)
}

/// `fd72:6f61:6477:6561:7665::/96`
const PREFIX: u128 = 0xfd72_6f61_6477_6561_7665_0000_0000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_uplink_has_an_address_of_its_own() {
        for id in [0, 1, 77, u32::MAX] {
            assert_eq!(uplink(of(UplinkId(id))), Some(UplinkId(id)));
        }
        assert_eq!(uplink(IpAddr::from([192, 168, 8, 100])), None);
        assert_eq!(uplink("fe80::1".parse().unwrap()), None);
    }
}
