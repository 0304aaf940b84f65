//! The chain that finds what is for sockets of this machine which bear addresses of clients.
//!
//! ```text
//! answer from a host ─► source NAT undone ─► of such a socket? ─ yes ─► mark ─► rule 522: this machine
//!                                                └─ no ─► the TUN, as ever
//! ```
//!
//! A SYN is never looked up: no such socket listens, and another program's may, at any address.
//! Errors about a connection (ICMP) are, by the packet that they quote, so that the socket learns
//! the path's MTU and that a host is not there.

use ipnet::IpNet;

use super::chain::{family, has_family};
use super::{FilterOptions, apart, call_nft};
use crate::{ClientSockets, DeviceError};

/// After destination NAT, which undoes source NAT for answers.
pub(super) const HOOK: &str = "filter hook prerouting priority dstnat + 5";

pub(super) fn rules(options: &FilterOptions) -> Vec<String> {
    match options.client_sockets {
        true => rules_for(&apart::near(options)),
        false => Vec::new(),
    }
}

fn rules_for(near: &[IpNet]) -> Vec<String> {
    let (mark, mask) = ClientSockets::MARK;
    let found = format!("socket transparent 1 meta mark set meta mark & {:#x} | {mark:#x}", !mask);
    let mut rules = Vec::new();
    for (ipv4, set, icmp) in [(true, "near4", "icmp"), (false, "near6", "ipv6-icmp")] {
        if has_family(near, ipv4) {
            let destination = format!("{} daddr @{set}", family(ipv4));
            rules.push(format!("{destination} tcp flags & (syn | ack) != syn {found}"));
            rules.push(format!("{destination} meta l4proto {icmp} {found}"));
        }
    }
    rules
}

/// Whether the kernel can find sockets so.
///
/// # Errors
/// As [`super::run_nft`].
pub(crate) fn check_sockets(table: &str) -> Result<(), DeviceError> {
    let rules =
        rules_for(&["192.0.2.0/24", "2001:db8::/64"].map(|net| net.parse().expect("a network")));
    let text = format!(
        "table inet {table} {{\n\
         set near4 {{ type ipv4_addr; flags interval; elements = {{ 192.0.2.0/24 }}; }}\n\
         set near6 {{ type ipv6_addr; flags interval; elements = {{ 2001:db8::/64 }}; }}\n\
         chain sockets {{ type {HOOK}; policy accept;\n{}\n}}\n}}\n",
        rules.join("\n")
    );
    call_nft(&["-c", "-f", "-"], &text)
}
