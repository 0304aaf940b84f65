//! Shared by the tests of TUNs, routes and filters.

use std::net::IpAddr;

use ipnet::IpNet;
pub use roadweave_linux::netns::{
    NetNs, WAIT_MAX, Watch, cable, echo, run_sandboxed, wait_or_show, wait_until,
};

pub fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn prefixes(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| prefix(text)).collect()
}

pub fn sysctl(path: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap().trim().to_owned()
}

pub fn tables(namespace: &NetNs) -> String {
    namespace.run("nft list tables").unwrap()
}

pub fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = [from.1, to.1, length, 0].map(u16::to_be_bytes).concat();
    datagram.extend_from_slice(payload);
    match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            header[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            seal(&mut header);
            [header, datagram].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let pseudo = [&addresses[..], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 17]].concat();
            let sum = checksum(&[pseudo, datagram.clone()].concat());
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([17, 64]);
            [header, addresses, datagram].concat()
        }
        _ => panic!("of one family"),
    }
}

pub fn seal(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = checksum(&header[..20]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        rest => u32::from(rest[0]) << 8,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}
