//! The table and rules by which this machine's sockets with clients' addresses receive packets.
//!
//! ```text
//! priority  rule                               table
//! 522       has the mark                    -> of the sockets: clients' prefixes, local
//! ```
//!
//! The filters mark packets for such a socket only. Default routes get no local route: the reverse
//! path filter, where `src_valid_mark` is set, looks up the sender by the mark, which is no client.

use ipnet::IpNet;

use super::entries::{LOOPBACK, METRIC_SOCKETS, PRIORITY_SOCKETS, matches_mark, refusal};
use super::families;
use crate::process::ROUTE_PROTOCOL;
use crate::{DeviceError, Netlink, Route, Rule};

#[derive(Debug)]
pub(super) struct SocketTable {
    number: u32,
    mark: (u32, u32),
    networks: Vec<IpNet>,
}

/// Fails with [`DeviceError::Unavailable`] if another program's rule matches the mark before ours.
pub(super) fn check_mark(rules: &[Rule], (own, mine): (u32, u32)) -> Result<(), DeviceError> {
    let takes = |rule: &&Rule| {
        rule.priority <= PRIORITY_SOCKETS
            && rule.protocol != ROUTE_PROTOCOL
            && matches_mark(rule, (own, mine))
    };
    let Some(rule) = rules.iter().find(takes) else { return Ok(()) };
    let (mark, mask) = rule.mark.unwrap_or_default();
    let why = format!(
        "the mark {own:#x} is used by a rule of another program (priority {}, fwmark \
         {mark:#x}/{mask:#x}): set packet_marks to bits that no other program uses",
        rule.priority
    );
    Err(DeviceError::Unavailable { why })
}

impl SocketTable {
    pub(super) fn open(
        netlink: &mut Netlink,
        number: u32,
        mark: (u32, u32),
        networks: &[IpNet],
    ) -> Result<Self, DeviceError> {
        check_mark(&netlink.rules()?, mark)?;
        let table = Self { number, mark, networks: networks.to_vec() };
        let (routes, rules) = table.ways();
        routes.iter().try_for_each(|route| netlink.replace_route(route))?;
        rules.iter().try_for_each(|rule| netlink.add_rule(rule))?;
        Ok(table)
    }

    pub(super) fn route(&self, prefix: &IpNet) -> Option<Route> {
        let is_default = prefix.prefix_len() == 0;
        let route = refusal(prefix.trunc(), self.number, METRIC_SOCKETS);
        (!is_default).then_some(Route { interface: Some(LOOPBACK), local: true, ..route })
    }

    pub(super) fn ways(&self) -> (Vec<Route>, Vec<Rule>) {
        let routes = self.networks.iter().filter_map(|network| self.route(network));
        let rule = |ipv4| Rule {
            ipv4,
            priority: PRIORITY_SOCKETS,
            mark: Some(self.mark),
            table: self.number,
            protocol: ROUTE_PROTOCOL,
            ..Rule::default()
        };
        (routes.collect(), families(&self.networks).map(rule).collect())
    }
}
