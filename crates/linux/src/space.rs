//! Address space with a special purpose.

use std::net::IpAddr;

use ipnet::IpNet;

/// The length of the private space that holds `address`; zero for public space.
pub fn space_length(address: IpAddr) -> u8 {
    let space = PRIVATE.iter().find(|(space, length)| {
        IpNet::new_assert(space.parse().expect("a constant address"), *length).contains(&address)
    });
    space.map_or(0, |(_, length)| *length)
}

pub(crate) fn is_private(network: IpNet) -> bool {
    within(network, &PRIVATE)
}

pub(crate) fn is_link_local(network: IpNet) -> bool {
    within(network, &LINK_LOCAL)
}

fn within(network: IpNet, spaces: &[(&str, u8)]) -> bool {
    spaces.iter().any(|(address, length)| {
        let space = IpNet::new_assert(address.parse().expect("a constant address"), *length);
        network.prefix_len() >= *length && space.contains(&network.addr())
    })
}

/// Private (RFC 1918), shared (RFC 6598) and unique local (RFC 4193) space.
const PRIVATE: [(&str, u8); 5] =
    [("10.0.0.0", 8), ("172.16.0.0", 12), ("192.168.0.0", 16), ("100.64.0.0", 10), ("fc00::", 7)];
/// Link-local space and groups (RFC 3927, RFC 4291, RFC 5771).
const LINK_LOCAL: [(&str, u8); 4] =
    [("169.254.0.0", 16), ("fe80::", 10), ("224.0.0.0", 4), ("ff00::", 8)];
