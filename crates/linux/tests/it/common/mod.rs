//! Shared by the tests of routes and filters.

use ipnet::IpNet;
pub use roadweave_linux::netns::{
    NetNs, WAIT_MAX, Watch, cable, run_sandboxed, wait_or_show, wait_until,
};
use roadweave_linux::{Excluded, FilterOptions, Forwarding};
use roadweave_proto::Marks;

pub fn prefix(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn prefixes(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| prefix(text)).collect()
}

/// Filters of this TUN without NAT.
pub fn filter_options(tun: &str, forwarding: Forwarding) -> FilterOptions {
    FilterOptions {
        tun: tun.to_owned(),
        mtu: 1400,
        own_addresses: Vec::new(),
        inner: Vec::new(),
        masquerade: false,
        masquerade_into_tun: None,
        excluded: Excluded::default(),
        forwards: Vec::new(),
        client_sockets: false,
        forwarding,
        apart: None,
        share: None,
        marks: Marks::default(),
        forward: true,
    }
}

pub fn sysctl(path: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap().trim().to_owned()
}

pub fn tables(namespace: &NetNs) -> String {
    namespace.run("nft list tables").unwrap()
}
