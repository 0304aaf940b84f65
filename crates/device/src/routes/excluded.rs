//! What leaves outside the tunnel, as it would without the client, though it belongs into it.
//!
//! ```text
//! priority  rule                               table
//! 523       bears the mark of the excluded  -> inner: addresses of the server, into the TUN
//! 524       the same                        -> on with 32766
//! 525       anything                        -> near:          excluded: pass by ─┐
//! 532       anything                        -> of the tunnel: excluded: pass by ─┴─► main
//! ```
//!
//! The routes are kept by a thread of their own ([`super::passing`]): they may be thousands.
//!
//! A route that passes by is as specific as what it excludes, so that the longest prefix decides
//! between it and what is led into the tunnel. All lies in the instance's own tables, and goes with
//! them; what has no way in the main table is refused by the kernel, as ever.
//!
//! The server's inner addresses are in the tunnel whatever is said: those who mark may do so by
//! addresses that a stranger has told them, by an answer of DNS for one.
//!
//! Bits of a mark that tell uplinks apart cannot be said: they are the instances' own
//! ([`crate::answers`]).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::plan::{METRIC_TUN, Plan, inner_table, near_table, refusal};
use super::{PRIORITY_EXCLUDED, PRIORITY_INNER, PRIORITY_MAIN_TABLE};
use crate::process::ROUTE_PROTOCOL;
use crate::{Route, Rule};

/// What a client's configuration keeps out of the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// Destinations.
    pub destinations: Vec<IpNet>,
    /// What the machine's own rules have marked: the bits, and the mask under which they count.
    pub marks: Vec<(u32, u32)>,
}

/// What belongs into the tunnel in one family.
pub(super) struct Tunnel<'a> {
    pub(super) ipv4: bool,
    pub(super) tables: &'a RangeInclusive<u32>,
    /// All that has no other way does.
    pub(super) whole: bool,
    /// The server's inner addresses do whatever is excluded.
    pub(super) inner: &'a BTreeSet<IpNet>,
}

impl Excluded {
    /// What both exclude.
    pub(crate) fn within(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.destinations.retain(|it| other.destinations.contains(it));
        both.marks.retain(|it| other.marks.contains(it));
        both
    }

    /// This, and what the other excludes beyond it.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        let of_other = other.destinations.iter().filter(|it| !self.destinations.contains(it));
        both.destinations.extend(of_other);
        both.marks.extend(other.marks.iter().filter(|it| !self.marks.contains(it)));
        both
    }

    /// The routes that let its destinations pass by the tunnel, in one family.
    pub(super) fn passing(&self, tunnel: &Tunnel<'_>) -> impl Iterator<Item = Route> {
        let Tunnel { ipv4, tables, whole, inner } = *tunnel;
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

    /// Adds the rules that let what is marked pass by the tunnel, in one family.
    pub(super) fn plan_marks(&self, plan: &mut Plan, tunnel: &Tunnel<'_>) {
        let Tunnel { ipv4, tables, inner, .. } = *tunnel;
        for mark in &self.marks {
            let (mark, protocol) = (Some(*mark), ROUTE_PROTOCOL);
            let rule = Rule { ipv4, mark, protocol, ..Rule::default() };
            if !inner.is_empty() {
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
