//! The table and rules by which this machine takes what is for sockets of its own that bear
//! addresses of clients.
//!
//! ```text
//! priority  rule                               table
//! 522       bears the mark                  -> of the sockets: clients' prefixes, taken as its own
//! ```
//!
//! The filters mark what is for such a socket, and nothing else. All else for a client meets the
//! rules as ever. No default route is taken: what the reverse path filter asks for, by the mark
//! where `src_valid_mark` is set, is the sender, who is no client.

use ipnet::IpNet;

use super::Routes;
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Route, Rule, sysctl};

/// Sockets of this machine that bear addresses of clients: the mark of what is for one, with the
/// mask.
///
/// It is of the lower half, since the upper one tells instances apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSockets;

impl ClientSockets {
    /// The mark, with the mask.
    pub const MARK: (u32, u32) = (0x5257, 0xffff);
}

/// What a server has beside its routes into the TUN.
#[derive(Clone, Debug)]
pub(super) struct SocketTable {
    number: u32,
    networks: Vec<IpNet>,
}

impl Routes {
    /// Takes what is marked for one of its sockets and goes to `networks`, or to what is led into
    /// the TUN from now on. Call it once, before [`Routes::route_into_tun`].
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] when the mark is another's; nothing is changed then. Else what
    /// the kernel says.
    pub fn take_for_sockets(&mut self, networks: &[IpNet]) -> Result<(), DeviceError> {
        check_mark(&self.netlink.rules()?, ClientSockets::MARK)?;
        let table = SocketTable { number: self.tunnel_table() + 2, networks: networks.to_vec() };
        for route in table.networks.iter().filter_map(|network| table.route(network)) {
            self.netlink.replace_route(&route)?;
        }
        for rule in table.rules() {
            self.netlink.add_rule(&rule)?;
        }
        self.socket_table = Some(table);
        Ok(())
    }
}

/// Whether nobody else's rule takes what bears the mark before ours does.
///
/// # Errors
/// [`DeviceError::Unavailable`] says which does.
pub(super) fn check_mark(rules: &[Rule], (own, mine): (u32, u32)) -> Result<(), DeviceError> {
    let takes = |rule: &&Rule| {
        let (mark, mask) = rule.mark.unwrap_or_default();
        let seen = mask & mine;
        rule.priority <= PRIORITY_SOCKETS
            && rule.protocol != ROUTE_PROTOCOL
            && seen != 0
            && (mark ^ own) & seen == 0
    };
    let Some(rule) = rules.iter().find(takes) else { return Ok(()) };
    let (mark, mask) = rule.mark.unwrap_or_default();
    let why = format!(
        "the mark {own:#x} is taken by another's rule (priority {}, fwmark {mark:#x}/{mask:#x})",
        rule.priority
    );
    Err(DeviceError::Unavailable { why })
}

impl SocketTable {
    /// The route by which what goes to `prefix` is taken.
    pub(super) fn route(&self, prefix: &IpNet) -> Option<Route> {
        let is_default = prefix.prefix_len() == 0;
        (!is_default).then(|| Route {
            destination: prefix.trunc(),
            gateway: None,
            interface: Some(LOOPBACK),
            table: self.number,
            metric: METRIC,
            protocol: ROUTE_PROTOCOL,
            preferred_source: None,
            local: true,
            passes_by: false,
        })
    }

    /// What there is for the own networks, and the rules.
    pub(super) fn ways(&self) -> (Vec<Route>, Vec<Rule>) {
        let routes = self.networks.iter().filter_map(|network| self.route(network));
        (routes.collect(), self.rules())
    }

    fn rules(&self) -> Vec<Rule> {
        let has_ipv6 = self.networks.iter().any(|network| network.addr().is_ipv6());
        // A kernel without IPv6 has none of its rules to be missed.
        let families = [true, false].into_iter().filter(|ipv4| {
            *ipv4 || has_ipv6 || sysctl::read("net.ipv6.conf.all.forwarding").is_ok()
        });
        let rule = |ipv4| Rule {
            ipv4,
            priority: PRIORITY_SOCKETS,
            mark: Some(ClientSockets::MARK),
            table: self.number,
            protocol: ROUTE_PROTOCOL,
            ..Rule::default()
        };
        families.map(rule).collect()
    }
}

pub(super) const PRIORITY_SOCKETS: u32 = 522;
/// The index of the loopback interface, in every network namespace.
pub(super) const LOOPBACK: u32 = 1;
/// Anything but zero, for which the kernel would choose.
pub(super) const METRIC: u32 = 1024;
