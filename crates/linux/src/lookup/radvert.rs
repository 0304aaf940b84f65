//! Router advertisements for programs: name servers (RFC 8106) and the NAT64 prefix (RFC 8781).

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::nat64::{self, Nat64Prefix};
use crate::DeviceError;
use crate::netlink::{open_socket, take_message};

/// An option of a router advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterUpdate {
    /// The index of the interface.
    pub index: u32,
    /// The option.
    pub advertised: Advertised,
    /// Its lifetime; zero withdraws it.
    pub lasts: Duration,
}

/// An option that the kernel leaves to programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advertised {
    /// Name servers, at most `SERVERS_MAX`.
    NameServers(Vec<IpAddr>),
    /// A NAT64 prefix.
    Nat64(Nat64Prefix),
}

/// Receives router advertisements.
#[derive(Debug)]
pub struct RouterNotices {
    socket: OwnedFd,
}

impl RouterNotices {
    /// Opens it in the network namespace of the calling thread.
    pub fn open() -> Result<Self, DeviceError> {
        let socket = open_socket(GROUP_ND_USEROPT)
            .map_err(|error| DeviceError::system("listen for router advertisements", error))?;
        Ok(Self { socket })
    }

    /// The options since the last call, at most `UPDATES_MAX`; more may be ready.
    pub fn poll(&mut self) -> Vec<RouterUpdate> {
        let mut updates = Vec::new();
        let mut buffer = [0; 8192];
        while updates.len() < UPDATES_MAX {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => updates.extend(parse(&buffer[..length])),
                Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => break,
            }
        }
        updates
    }
}

impl AsFd for RouterNotices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `nlmsghdr`, `nduseroptmsg`, then the options of one advertisement (`linux/rtnetlink.h`).
fn parse(mut bytes: &[u8]) -> Vec<RouterUpdate> {
    let mut updates = Vec::new();
    while let Some(message) = take_message(&mut bytes) {
        let Some((header, message)) = message.split_first_chunk::<NETLINK_HEADER>() else { break };
        if u16::from_ne_bytes([header[4], header[5]]) == RTM_NEWNDUSEROPT {
            updates.extend(parse_message(message));
        }
    }
    updates
}

fn parse_message(message: &[u8]) -> Vec<RouterUpdate> {
    let Some((header, options)) = message.split_first_chunk::<USEROPT_HEADER>() else {
        return Vec::new();
    };
    let length = usize::from(u16::from_ne_bytes([header[2], header[3]]));
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let (family, icmp_type) = (header[0], header[8]);
    if (family, icmp_type) != (AF_INET6, ROUTER_ADVERTISEMENT) {
        return Vec::new();
    }
    let mut options = options.get(..length).unwrap_or(options);
    let mut updates = Vec::new();
    // RFC 4861 section 4.6: lengths are in units of eight bytes, and zero is invalid.
    while let [_, units @ 1..=255, ..] = options {
        let Some((option, rest)) = options.split_at_checked(usize::from(*units) * 8) else { break };
        options = rest;
        updates.extend(parse_option(option).map(|(advertised, lasts)| RouterUpdate {
            index,
            advertised,
            lasts,
        }));
    }
    updates
}

fn parse_option(option: &[u8]) -> Option<(Advertised, Duration)> {
    match option {
        [nat64::OPTION, ..] => {
            let (prefix, lasts) = nat64::parse_option(option)?;
            Some((Advertised::Nat64(prefix), lasts))
        }
        [RDNSS, _, _, _, a, b, c, d, addresses @ ..] => {
            let lasts = Duration::from_secs(u32::from_be_bytes([*a, *b, *c, *d]).into());
            let (addresses, _) = addresses.as_chunks::<16>();
            let addresses = addresses.iter().map(|octets| Ipv6Addr::from(*octets).into());
            let servers: Vec<IpAddr> = addresses.take(super::servers::SERVERS_MAX).collect();
            (!servers.is_empty()).then_some((Advertised::NameServers(servers), lasts))
        }
        _ => None,
    }
}

const GROUP_ND_USEROPT: u32 = 1 << 19;
const RTM_NEWNDUSEROPT: u16 = 68;
const AF_INET6: u8 = 10;
const ROUTER_ADVERTISEMENT: u8 = 134;
const RDNSS: u8 = 25;
const NETLINK_HEADER: usize = 16;
const USEROPT_HEADER: usize = 16;
const UPDATES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(index: u32, icmp_type: u8, options: &[u8]) -> Vec<u8> {
        let length = (NETLINK_HEADER + USEROPT_HEADER + options.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(RTM_NEWNDUSEROPT.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([AF_INET6, 0]);
        bytes.extend((options.len() as u16).to_ne_bytes());
        bytes.extend(index.to_ne_bytes());
        bytes.extend([icmp_type, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes
    }

    fn rdnss(seconds: u32, addresses: &[&str]) -> Vec<u8> {
        let mut option = vec![RDNSS, 1 + 2 * addresses.len() as u8, 0, 0];
        option.extend(seconds.to_be_bytes());
        for address in addresses {
            option.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        }
        option
    }

    #[test]
    fn name_servers_and_prefixes_are_read() {
        let mut options = rdnss(600, &["2001:db8::1", "fe80::1"]);
        options.extend([nat64::OPTION, 2, 0x07, 0x08, 0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0]);
        let servers = ["2001:db8::1", "fe80::1"].map(|text| text.parse().unwrap()).to_vec();
        let prefix = Nat64Prefix::new("64:ff9b::".parse().unwrap(), 96).unwrap();
        let expected = |index| {
            let of = |advertised, seconds| RouterUpdate {
                index,
                advertised,
                lasts: Duration::from_secs(seconds),
            };
            [of(Advertised::NameServers(servers.clone()), 600), of(Advertised::Nat64(prefix), 1800)]
        };
        let mut two = message(7, ROUTER_ADVERTISEMENT, &options);
        two.extend(message(8, ROUTER_ADVERTISEMENT, &options));
        assert_eq!(parse(&two), [expected(7), expected(8)].concat());
        assert_eq!(parse(&message(7, 137, &options)), [], "a redirect tells nothing");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
            parse(&message(1, ROUTER_ADVERTISEMENT, &bytes));
            let mut option = rdnss(1, &[]);
            option.extend(&bytes);
            parse(&message(1, ROUTER_ADVERTISEMENT, &option));
        }
    }
}
