//! Shared by the tests of routes and filters.

use ipnet::IpNet;
pub use roadweave_linux::netns::{
    NetNs, WAIT_MAX, Watch, cable, run_sandboxed, wait_or_show, wait_until,
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
