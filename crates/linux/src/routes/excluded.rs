//! Traffic that would belong into the tunnel and is to leave outside it, by destination or by mark
//! (rules 523 and 524 of [`super`]). A thread keeps the throw routes ([`super::passing`]): they may
//! be thousands. A throw route has the prefix of the excluded destination, so the longest prefix
//! decides between it and what is led into the tunnel. All routes are in the instance's own tables.
//! The server's inner addresses always stay in the tunnel: programs may mark packets by addresses
//! of strangers, as in a DNS answer. Marks' bits for uplinks are reserved ([`crate::answers`]).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::entries::{
    METRIC_TUN, PRIORITY_EXCLUDED, PRIORITY_INNER, PRIORITY_MAIN_TABLE, RoutePlan, inner_table,
    near_table, refusal,
};
use crate::process::ROUTE_PROTOCOL;
use crate::{Route, Rule};

/// What a client's configuration keeps out of the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// Destination prefixes.
    pub destinations: Vec<IpNet>,
    /// Marks set by the machine's own rules: (bits, mask).
    pub marks: Vec<(u32, u32)>,
}

impl Excluded {
    /// What both exclude.
    pub fn within(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.destinations.retain(|it| other.destinations.contains(it));
        both.marks.retain(|it| other.marks.contains(it));
        both
    }

    /// The union of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        let of_other = other.destinations.iter().filter(|it| !self.destinations.contains(it));
        both.destinations.extend(of_other);
        both.marks.extend(other.marks.iter().filter(|it| !self.marks.contains(it)));
        both
    }

    pub(super) fn passing(
        &self,
        ipv4: bool,
        tables: &RangeInclusive<u32>,
        whole: bool,
        inner: &BTreeSet<IpNet>,
    ) -> impl Iterator<Item = Route> {
        let tables = [Some(near_table(tables)), whole.then_some(*tables.start())];
        let destinations = self.destinations.iter().filter(move |it| it.addr().is_ipv4() == ipv4);
        let destinations = destinations.map(IpNet::trunc).filter(|it| !inner.contains(it));
        destinations.flat_map(move |destination| {
            let tables = tables.into_iter().flatten();
            tables.map(move |table| {
                let route = refusal(destination, table, METRIC_TUN);
                Route { passes_by: true, ..route }
            })
        })
    }

    pub(super) fn plan_marks(
        &self,
        plan: &mut RoutePlan,
        ipv4: bool,
        tables: &RangeInclusive<u32>,
        has_inner: bool,
    ) {
        for mark in &self.marks {
            let (mark, protocol) = (Some(*mark), ROUTE_PROTOCOL);
            let rule = Rule { ipv4, mark, protocol, ..Rule::default() };
            if has_inner {
                let (priority, table) = (PRIORITY_INNER, inner_table(tables));
                plan.rules.insert(Rule { priority, table, ..rule.clone() });
            }
            plan.rules.insert(Rule {
                priority: PRIORITY_EXCLUDED,
                goto: Some(PRIORITY_MAIN_TABLE),
                table: *tables.start(),
                ..rule
            });
        }
    }
}
