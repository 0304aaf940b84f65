//! Rules and routes, and the numbers of their tables, priorities and metrics.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadweave_proto::UplinkId;

use crate::process::ROUTE_PROTOCOL;
use crate::{Route, Rule};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RoutePlan {
    pub rules: BTreeSet<Rule>,
    pub routes: BTreeSet<Route>,
}

pub(super) fn refusal(destination: IpNet, table: u32, metric: u32) -> Route {
    Route { destination, table, metric, protocol: ROUTE_PROTOCOL, ..Route::default() }
}

pub(super) fn tun_route(tun: u32, prefix: IpNet, table: u32) -> Route {
    let table = if prefix.prefix_len() == 0 { table } else { MAIN_TABLE };
    Route { interface: Some(tun), ..refusal(prefix, table, tun) }
}

pub(super) fn matches_mark(rule: &Rule, (own, mine): (u32, u32)) -> bool {
    let (mark, mask) = rule.mark.unwrap_or_default();
    let seen = mask & mine;
    seen != 0 && (mark ^ own) & seen == 0
}

/// An uplink's table. More than 250 uplinks share tables; nothing fails.
pub(super) fn uplink_table(tables: &RangeInclusive<u32>, id: UplinkId) -> u32 {
    tables.start() + 1 + id.0 % 250
}

pub(super) fn near_table(tables: &RangeInclusive<u32>) -> u32 {
    *tables.end()
}

pub(super) fn neighbours_table(tables: &RangeInclusive<u32>) -> u32 {
    tables.end() - 1
}

pub(super) fn split_table(tables: &RangeInclusive<u32>) -> u32 {
    tables.end() - 3
}

pub(super) fn inner_table(tables: &RangeInclusive<u32>) -> u32 {
    tables.end() - 4
}

pub(super) const MAIN_TABLE: u32 = 254;
pub(super) const LOCAL_TABLE: u32 = 255;
pub(super) const KERNEL_PROTOCOL: u8 = 2;
pub(super) const PRIORITY_INWARD: u32 = 518;
pub(super) const PRIORITY_ANSWERS: u32 = 519;
pub(super) const PRIORITY_UPLINK: u32 = 520;
pub(super) const PRIORITY_BOUND: u32 = 521;
pub(super) const PRIORITY_INNER: u32 = 523;
pub(super) const PRIORITY_EXCLUDED: u32 = 524;
pub(super) const PRIORITY_NEAR: u32 = 525;
pub(super) const PRIORITY_NEIGHBOURS: u32 = 526;
pub(super) const PRIORITY_MAIN: u32 = 530;
pub(super) const PRIORITY_TUNNEL: u32 = 531;
pub(super) const PRIORITY_REST: u32 = 532;
pub(super) const PRIORITY_MAIN_TABLE: u32 = 32766;
pub(super) const PRIORITY_SOCKETS: u32 = 522;
pub(super) const LOOPBACK: u32 = 1;
/// Not zero: for that the kernel would choose.
pub(super) const METRIC_SOCKETS: u32 = 1024;
/// Loses against a network behind this box with the same prefix.
pub(super) const METRIC_TUN: u32 = u32::MAX - 2;
/// Loses against every other route.
pub(super) const METRIC_REFUSAL: u32 = u32::MAX - 1;
